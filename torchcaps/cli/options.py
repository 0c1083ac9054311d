"""What several commands take, and where they write."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

# names of folders, classes and files may hold brackets and colons, which mean nothing here
console = Console(markup=False, emoji=False)
say = partial(print, file=sys.stderr, flush=True)  # progress: what is piped away stays clean

Trained = Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="a checkpoint, or a name of `torchcaps pretrained`")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")]
Root = Annotated[Path | None, typer.Option("--data", help="a folder with data files; else TORCHCAPS_DATA, then the cache")]
Results = Annotated[Path, typer.Option(help="the folder of result files")]
Out = Annotated[Path | None, typer.Option(help="folder for checkpoint, metrics and result; default runs/RECIPE/SEED")]
Seed = Annotated[int, typer.Option(help="decides weights, order and augmentation")]
Deterministic = Annotated[bool, typer.Option(help="repeat to the bit on CUDA too; slower")]


def table(first: str, *rest: str, title: str | None = None) -> Table:
    """A table that never cuts a name short: the first column stays whole, the others wrap."""
    lines = Table(title=title)
    lines.add_column(first, no_wrap=True)
    for name in rest:
        lines.add_column(name, overflow="fold")
    return lines


def plainly(numbers: Mapping[str, Any]) -> str:
    """Nested numbers, and words, in one line; of a table no more than how many rows it has."""
    return ", ".join(f"{name} {_short(x)}" for name, x in numbers.items())


def _short(value: Any) -> str:
    if not isinstance(value, Mapping):
        return value if isinstance(value, str) else f"{value:g}"
    rows = [row for row in value.values() if isinstance(row, Mapping)]
    return f"({len(rows)} rows, in the result file)" if rows else f"({plainly(value)})"


def numbers_of(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in metrics.items())


def seeds_of(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"--seeds takes whole numbers with commas, as 0,1,2; got {text!r}") from error
