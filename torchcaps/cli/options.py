"""Options and output that several commands share."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

# names of folders, classes and files may hold brackets and colons, which rich would read as markup
console = Console(markup=False, emoji=False)
say = partial(print, file=sys.stderr, flush=True)  # progress goes to stderr, so that piped output stays clean

Trained = Annotated[
    Path,
    typer.Argument(
        metavar="CHECKPOINT", help="a checkpoint, the --out folder of a run, or a name from `torchcaps pretrained`"
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")]
Root = Annotated[
    Path | None, typer.Option("--data", help="folder with data files; default: TORCHCAPS_DATA, then the cache")
]
Results = Annotated[Path, typer.Option(help="folder of result files")]
Out = Annotated[
    Path | None, typer.Option(help="output folder for checkpoint, metrics and result; default: runs/RECIPE/SEED")
]
Seed = Annotated[int, typer.Option(help="random seed of initialisation, data order and augmentation")]
Deterministic = Annotated[bool, typer.Option(help="use deterministic CUDA algorithms; slower")]


def table(first: str, *rest: str, title: str | None = None) -> Table:
    """Make a table that never truncates names: the first column stays on one line, the others wrap."""
    lines = Table(title=title)
    lines.add_column(first, no_wrap=True)
    for name in rest:
        lines.add_column(name, overflow="fold")
    return lines


def plainly(numbers: Mapping[str, Any]) -> str:
    """Format nested numbers in one line; a table is shown as its number of rows."""
    return ", ".join(f"{name} {_short(x)}" for name, x in numbers.items())


def _short(value: Any) -> str:
    if not isinstance(value, Mapping):
        return value if isinstance(value, str) else f"{value:g}"
    rows = [row for row in value.values() if isinstance(row, Mapping)]
    return f"({len(rows)} rows, in the result file)" if rows else f"({plainly(value)})"


def in_words(metrics: Mapping[str, float]) -> str:
    """Format metrics for a reader who does not know their names: `error 0.56 %`."""
    said = []
    for name, value in metrics.items():
        unit = " %" if name.endswith("_percent") else ""
        said.append(f"{name.removesuffix('_percent').replace('_', ' ')} {value:.2f}{unit}")
    return ", ".join(said)


def seeds_of(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"--seeds takes whole numbers with commas, as 0,1,2; got {text!r}") from error
