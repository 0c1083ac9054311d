"""Plain columns that fit the terminal: one line per row, cut between words."""

import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from torchcaps.cli.options import console

AsJson = Annotated[bool, typer.Option("--json", help="print JSON, for scripts")]
LEAST = 20  # a last column that is cut to less than this says nothing, and is left out
ENOUGH = 0.6  # part of the room that whole words must fill; else the cut goes through a compound, at its hyphen
GAP = "  "
PART = re.compile(r"[,:;] ")  # between the parts of a description
LEAST_PART = 12  # characters of a part that differs beside the first word; with fewer, the word is left out


def cut(text: str, width: int) -> str:
    """Shorten a text to `width` characters, between two words; an ellipsis marks it. Only a first word is broken."""
    if len(text) <= width:
        return text
    head = text[: width - 1]
    whole = head if text[width - 1] == " " else head.rpartition(" ")[0]
    if len(whole) < ENOUGH * len(head):
        whole = max(whole, head if text[width - 1] == "-" else head.rpartition("-")[0], key=len)
    return (whole or head).rstrip(" ,;:(-") + "…"


def apart(texts: Sequence[str], width: int) -> list[str]:
    """Shorten texts so that those that differ still do.

    Where a cut at the end would hide the difference from another text, the middle that both share is left out: the
    first word, an ellipsis, and the part that differs.
    """
    shown = {text: cut(text, width) for text in texts}
    for text in texts:
        kept = shown[text].removesuffix("…")
        alike = {other for other in texts if other.startswith(kept)} - {text}
        if len(text) > width and alike:
            shown[text] = _from_difference(text, alike, width)
    before = dict(shown)
    for text, short in before.items():
        # texts that differ in several parts may be cut to equal ones: then from the first that differs
        alike = {other for other in texts if before[other] == short} - {text}
        if alike:
            shown[text] = _from_difference(text, alike, width, first_word=False)
    _keep_differing_words(shown, width)
    _refine(shown, width)
    return [shown[text] for text in texts]


def _keep_differing_words(shown: dict[str, str], width: int) -> None:
    """Show texts that still read alike by the words in which they differ, with an ellipsis for those between."""
    rivals: dict[str, list[str]] = {text: [] for text in shown}
    for _ in shown:  # a text that is changed may come to read like another one
        alike = {text: [other for other in shown if shown[other] == shown[text] != text] for text in shown}
        alike = {text: [other for other in others if other != text] for text, others in alike.items()}
        if not any(alike.values()):
            return
        for text, others in alike.items():
            if others:
                rivals[text] = others + [other for other in rivals[text] if other not in others]
                shown[text] = _differing(text, rivals[text], width)


def _refine(shown: dict[str, str], width: int) -> None:
    """Replace a short form that other texts would have too, where the words that differ fit no other text."""
    for text, short in shown.items():
        rivals = [other for other in shown if other != text and _fits(short, other)] if short != text else []
        better = _differing(text, rivals, width) if rivals else ""
        if better and not any(_fits(better, other) for other in shown if other != text):
            shown[text] = better


def _fits(short: str, text: str) -> bool:
    """Tell whether a text may have been shortened to this: its pieces follow each other there."""
    first, *rest = short.split("…")
    if not text.startswith(first) or (rest and not text.endswith(rest[-1])):
        return False
    at = len(first)
    for piece in rest:
        found = text.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return bool(rest) or text == short


def _differing(text: str, rivals: Iterable[str], width: int) -> str:
    """Cut a text to the first word that differs from each rival, as far as they fit, and words that follow."""
    words = text.split()
    kept: set[int] = set()
    for rival in rivals:
        pairs = enumerate(zip(words, rival.split(), strict=False))
        place = next((at for at, (one, two) in pairs if one.strip(",:;") != two.strip(",:;")), len(words) - 1)
        if not kept or len(_joined(words, kept | {place})) <= width:
            kept.add(min(place, len(words) - 1))
    for place in range(min(kept), len(words)):
        if len(_joined(words, kept | {place})) > width:
            break
        kept.add(place)
    return cut(_joined(words, kept), width)


def _joined(words: Sequence[str], kept: Iterable[int]) -> str:
    """Join the words at these places; an ellipsis stands for others."""
    text, before = "", -1
    for place in sorted(kept):
        gap = "…" if place > before + 1 else " " if text else ""
        text = (text.rstrip(",:;") if gap == "…" else text) + gap + words[place]
        before = place
    return text if before == len(words) - 1 else text.rstrip(",:;") + "…"


def _from_difference(text: str, alike: Iterable[str], width: int, first_word: bool = True) -> str:
    """Cut a text to its first word and the part that differs from similar texts; its last part, if these go on."""
    same = max(_n_same(text, other) for other in alike)
    if between := PART.match(text, same):
        same = between.end()
    starts = [0, *(found.end() for found in PART.finditer(text))]
    start = max(place for place in starts if place <= same)
    if same < len(text) and same - start > width // 2:
        start = text.rfind(" ", 0, same) + 1  # the part is long: its word that differs
    head = f"{text.split()[0].rstrip(',:;')}…"
    if not first_word or len(head) >= start or width - len(head) < min(LEAST_PART, len(text) - start):
        head = "…" if start else ""
    return head + cut(text[start:], width - len(head))


def _n_same(text: str, other: str) -> int:
    """Count the characters that two texts have in common at their beginning."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((place for place, (one, two) in pairs if one != two), min(len(text), len(other)))


def lines_of(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Format rows under their heads. Only the last column is shortened; names and numbers stay whole."""
    table = [head, *rows]
    widths = [max(len(row[number]) for row in table) for number in range(len(head) - 1)]
    left = width - sum(widths) - len(GAP) * len(widths)
    padded = [[cell.ljust(size) for cell, size in zip(row, widths, strict=False)] for row in table]
    shown = left >= min(LEAST, max(len(row[-1]) for row in table))
    texts = [cut(head[-1], left), *apart([row[-1] for row in rows], left)]
    last = [[text] if shown else [] for text in texts]
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


def tell_text(text: str) -> None:
    """Print a sentence, as wide as the terminal: broken between words, further lines indented."""
    lines = textwrap.wrap(
        text,
        console.width,
        subsequent_indent=GAP,
        break_long_words=False,  # paths and commands are copied as a whole
        break_on_hyphens=False,
        replace_whitespace=False,
        expand_tabs=False,
    )
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


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
