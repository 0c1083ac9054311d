"""`torchcaps ls --routings`: the routings of capsule layers, from their options and docstrings."""

import re
from dataclasses import asdict, fields
from typing import Any

from torchcaps.cli.columns import tell, tell_json
from torchcaps.cli.options import console
from torchcaps.layers.routings import ROUTINGS, Dynamic, Routing
from torchcaps.ops.couplings import COUPLINGS, FIXED

CITED = re.compile(r" ?\(([^()]*\b\d{4}\b)[^()]*\)")  # a paper, as in (Sabour 2017)


def list_routings(as_json: bool) -> None:
    """Print one line per routing: its loss, its paper and what it is."""
    if as_json:
        tell_json([{"name": name, **about(routing)} for name, routing in ROUTINGS.items()])
        return
    rows = [(name, *map(about(routing).get, ("loss", "paper", "what"))) for name, routing in ROUTINGS.items()]
    tell(("routing", "loss", "paper", "what it is"), rows)
    for line in (
        '\nCapsNet((1, 28, 28), 10, routing="em")         one argument swaps the routing',
        "torchcaps train --data FOLDER --routing em     on your own images",
    ):
        console.print(line, highlight=False, soft_wrap=True)


def about(routing: Routing) -> dict[str, Any]:
    """Describe a routing by its docstring and by the options in which it differs from the default ones."""
    text = " ".join((type(routing).__doc__ or "").split())
    cites = text
    if isinstance(routing, Dynamic) and routing.couplings != Dynamic.couplings:
        cites = COUPLINGS[routing.couplings].__doc__ or ""  # another rule is of a paper of its own, or of none
    found = CITED.search(cites)
    paper = found[1] if found else "-"
    first = re.split(r"[.;] |\.$", CITED.sub("", text))[0]
    chosen = {
        field.name: value for field in fields(routing) if (value := getattr(routing, field.name)) != field.default
    }
    if isinstance(routing, Dynamic) and "couplings" in chosen:
        rule = chosen.pop("couplings")
        first = f"Control without routing: {rule}" if rule in FIXED else f"{first}, {rule}"
        chosen.pop("n_iters", None)  # a control needs one iteration
    what = ", ".join([first, *(f"{name} {value}" for name, value in chosen.items())])
    return {"loss": routing.loss, "paper": paper, "what": what, "options": asdict(routing)}
