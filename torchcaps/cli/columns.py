"""Plain columns that fit the terminal: one line per row, and no word is broken."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from torchcaps.cli.options import console

AsJson = Annotated[bool, typer.Option("--json", help="print JSON, for scripts")]
LEAST = 20  # a last column that is cut to less than this says nothing, and is left out
GAP = "  "


def cut(text: str, width: int) -> str:
    """Shorten a text to `width` characters, between two words if possible, and mark it by an ellipsis."""
    if len(text) <= width:
        return text
    head = text[: width - 1]
    whole = head if text[width - 1] == " " else head.rpartition(" ")[0]
    return (whole or head).rstrip(" ,;:(") + "…"


def lines_of(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Format rows under their heads. Only the last column is shortened; names and numbers stay whole."""
    table = [head, *rows]
    widths = [max(len(row[number]) for row in table) for number in range(len(head) - 1)]
    left = width - sum(widths) - len(GAP) * len(widths)
    padded = [[cell.ljust(size) for cell, size in zip(row, widths, strict=False)] for row in table]
    shown = left >= min(LEAST, max(len(row[-1]) for row in table))
    last = [[cut(row[-1], left)] if shown else [] for row in table]
    return [GAP.join(one + other).rstrip() for one, other in zip(padded, last, strict=True)]


def tell(head: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a title and columns, as wide as the terminal."""
    if title:
        console.print(cut(title, console.width), style="bold", highlight=False, soft_wrap=True)
    first, *rest = lines_of(head, rows, console.width)
    console.print(first, style="dim", highlight=False, soft_wrap=True)
    for line in rest:
        console.print(line, highlight=False, soft_wrap=True)


def tell_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair per line; long values go on under their first word."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        first, *rest = _wrapped(value, console.width - width - len(GAP))
        console.print(f"{name.ljust(width)}{GAP}{first}", highlight=False, soft_wrap=True)
        for line in rest:
            console.print(f"{' ' * width}{GAP}{line}", highlight=False, soft_wrap=True)


def _wrapped(text: str, width: int) -> list[str]:
    """Break a text between words; a word longer than the line, such as a path, stays whole."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".lstrip()
    return lines


def tell_json(data: Any) -> None:
    """Print data as JSON on standard output."""
    print(json.dumps(data, indent=1))
