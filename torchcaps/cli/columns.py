"""Plain columns that fit the terminal: one line per row, cut between words where that leaves enough of a text."""

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from torchcaps.cli.options import console

AsJson = Annotated[bool, typer.Option("--json", help="print JSON, for scripts")]
LEAST = 20  # a last column that is cut to less than this says nothing, and is left out
ENOUGH = 0.6  # part of the room that whole words must fill; else the cut goes through a word
GAP = "  "


def cut(text: str, width: int) -> str:
    """Shorten a text to `width` characters, between two words if that fills most of them; an ellipsis marks it."""
    if len(text) <= width:
        return text
    head = text[: width - 1]
    whole = head if text[width - 1] == " " else head.rpartition(" ")[0]
    return (whole if len(whole) >= ENOUGH * len(head) else head).rstrip(" ,;:(") + "…"


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


def tell_facts(facts: Sequence[Sequence[str]]) -> None:
    """Print names and values, one row per line; long last values go on under their first word."""
    widths = [max(map(len, column)) for column in zip(*facts, strict=True)][:-1]
    left = sum(widths) + len(GAP) * len(widths)
    for *names, value in facts:
        start = "".join(name.ljust(width) + GAP for name, width in zip(names, widths, strict=True))
        for line in _wrapped(value, console.width - left):
            console.print(f"{start}{line}", highlight=False, soft_wrap=True)
            start = " " * left


def tell_card(text: str) -> None:
    """Print a model card, as wide as the terminal: tables as columns, code unbroken."""
    for number, block in enumerate(text.split("```")):
        for part in block.removeprefix("python").strip("\n").split("\n\n"):
            lines = part.splitlines()
            if not part.startswith("# "):
                console.print()
            if number % 2:
                lines = [f"    {line}" for line in lines]
            elif lines[0].startswith("|"):
                tell_facts(_cells(lines))
                lines = []
            else:
                lines = [row for line in lines for row in _wrapped(line.removeprefix("# "), console.width)]
            for line in lines:
                console.print(line, highlight=False, soft_wrap=True)


def _cells(lines: Sequence[str]) -> list[list[str]]:
    """Split the rows of a Markdown table; an empty head and the rule under it are left out."""
    rows = [line for line in lines if line.strip("|- ")]
    return [row.removeprefix("| ").removesuffix(" |").split(" | ", lines[0].count("|") - 2) for row in rows]


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
