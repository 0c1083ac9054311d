"""Model cards in Markdown, generated from the registry entry and the result file."""

import re
from typing import Any

from torchcaps.data import DataInfo, OwnImages, class_names, info
from torchcaps.pretrained.registry import Entry
from torchcaps.train.recipe import stored_run


def card(name: str, made: Entry, result: dict[str, Any]) -> str:
    """Format the card of a released model."""
    run = stored_run(result["run"])
    data = info(run.data)
    command = (
        "on a user's own images" if isinstance(run.data, OwnImages) else f"`{_command(made.recipe)} --seed {made.seed}`"
    )
    dirty = ", with changes that were not committed" if made.dirty else ""
    left_out = f"; left out: the {', '.join(made.without)}" if made.without else ""
    lines = [
        f"# {name}",
        "",
        f"{made.about.rstrip('.')}. Model `{made.model}`, {made.n_parameters:,} parameters{left_out}.",
        "",
        "```python",
        "import torchcaps",
        "",
        f'model = torchcaps.load("{name}")',
        f"# or the path of {made.file}",
        "```",
        "",
        "| | |",
        "|---|---|",
        f"| takes | {_takes(data)} |",
        f"| classes | {', '.join(class_names(run.data))} |",
        f"| trained | {command}, {result['steps']:,} steps, {result['seconds']:,.0f} s on {result['device']} |",
        f"| data | {run.data}: {data.about} |",
        f"| code | commit {made.commit}{dirty}; later code may give other weights |",
        f"| weights | {' and '.join(f'{n:,} numbers in {kind}' for kind, n in made.numbers.items())} |",
        f"| file | {made.file}, {made.bytes:,} bytes, sha256 {made.sha256} |",
        f"| licence | {made.licence} |",
        "",
        "| part | metric | as trained | this file |",
        "|---|---|---|---|",
        *(
            _row(part, metric, value, made)
            for part, metrics in made.metrics.items()
            for metric, value in metrics.items()
        ),
        "",
        f"As trained: from {name}.json, the result file that `torchcaps verify` checks. "
        "This file: measured again with the weights in it.",
        *(
            f"Answers of part `{part}` that are not those of the weights as trained: {n:,}."
            for part, n in made.changed.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _command(name: str) -> str:
    """Return the training command; the name of a run encodes --quick and --hold-out."""
    recipe, quick, held = re.fullmatch(r"(.*?)(-quick)?(?:-hold-out-(\d+))?", name).groups()
    return f"torchcaps train {recipe}" + (" --quick" if quick else "") + (f" --hold-out {held}" if held else "")


def _takes(data: DataInfo) -> str:
    if data.kind != "images":
        return f"embeddings [batch, tokens, {data.shape[1]} layers, {data.shape[2]} numbers] and which tokens are there"
    shape = " x ".join(map(str, data.shape))
    return (
        f"images of {shape} (channels, height, width) as bytes, through `torchcaps.pretrained.prepare(model, pixels)`"
    )


def _row(part: str, metric: str, value: float, made: Entry) -> str:
    again = made.measured.get(part, {}).get(metric)
    # averaged weights and unmixed statistics are not in the file
    words = "another model" if part.endswith(("_ema", "_unmixed")) else f"not measured: {made.unmeasured.get(part)}"
    return f"| {part} | {metric} | {value:.6g} | {words if again is None else f'{again:.6g}'} |"
