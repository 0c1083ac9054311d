"""Commands about data sets."""

from collections.abc import Mapping
from typing import Annotated

import typer

from torchcaps import data as datasets
from torchcaps.cli.columns import AsJson, tell, tell_facts, tell_json
from torchcaps.cli.options import Root, console

app = typer.Typer(no_args_is_help=True, help="List and download data sets.")


@app.command("ls")
def list_data(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="WORD", help="parts of names that must all match, or one name")
    ] = None,
    here: Annotated[bool, typer.Option("--here", help="only sets that are ready to use")] = False,
    every: Annotated[bool, typer.Option("--all", help="every set, not the sources alone")] = False,
    data: Root = None,
    as_json: AsJson = False,
) -> None:
    """List data sets and whether they are here; without a word, their sources.

    `torchcaps data ls smallnorb 48` filters by parts of names; `torchcaps data ls mnist` shows one set in full.
    """
    words = words or []
    alone = len(words) == 1 and words[0] in datasets.DATASETS
    found = [name for name in datasets.DATASETS if all(word == name if alone else word in name for word in words)]
    if not found:
        raise ValueError(f"no data set has {' and '.join(words)} in its name; `torchcaps data ls` lists the sources")
    status = {name: datasets.status(name, data) for name in found}
    found = [name for name in found if not here or _ready(status[name])]
    if as_json:
        tell_json([_plain(name, status[name]) for name in found])
    elif alone and found:
        tell_facts([(key, _said(value)) for key, value in _plain(found[0], status[found[0]]).items()])
    elif words or here or every:
        tell(("data set", "train", "test", "shape", "here"), [_cells(name, status[name]) for name in found])
    else:
        _tell_sources(status)


def _tell_sources(status: Mapping[str, str]) -> None:
    """Print one line per source: its number of sets, and the facts of the first."""
    sources: dict[str, list[str]] = {}
    for name in status:
        sources.setdefault(datasets.spec(name).source, []).append(name)
    rows = [
        (name, str(len(names)), "yes" if _ready(status[names[0]]) else "no", datasets.info(names[0]).about)
        for name, names in sources.items()
    ]
    tell(("source", "sets", "here", "what it is"), rows)
    console.print(
        "\ntorchcaps data ls WORD    sets with this in their name, or one set in full\n"
        "torchcaps data ls --all   every set; --here filters\n"
        "torchcaps data get NAME   fetch one",
        highlight=False,
    )


@app.command("get")
def get_data(name: str, data: Root = None) -> None:
    """Download a data set into the cache; each mirror is tried in turn."""
    for path in datasets.get(name, data, progress=print):
        print(path)


def _cells(name: str, status: str) -> tuple[str, ...]:
    about = datasets.info(name)
    shape, ready = "x".join(map(str, about.shape)), "yes" if _ready(status) else "no"
    return name, f"{about.n_train:,}", f"{about.n_test:,}", shape, ready


def _plain(name: str, status: str) -> dict[str, str | int | list[int]]:
    about = datasets.info(name)
    return {
        "name": name,
        "about": about.about,
        "shape": list(about.shape),
        "classes": about.n_classes,
        "train": about.n_train,
        "test": about.n_test,
        "where": status,
    }


def _said(value: str | int | list[int]) -> str:
    if isinstance(value, list):
        return "x".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else value


def _ready(status: str) -> bool:
    return status == "built in" or status.startswith("complete")
