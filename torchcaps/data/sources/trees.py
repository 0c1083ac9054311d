"""Labelled trees in brackets, one a line: `(3 (2 It) (4 (2 's) (4 lovely)))`.

Every bracket is a phrase with a label of its own. This is how the Stanford Sentiment Treebank (Socher et al. 2013) is
written: 0 very negative, 1 negative, 2 neutral, 3 positive, 4 very positive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from torchcaps.data.sources.files import DataError

N_LABELS = 5
NEUTRAL = 2
LABELS = {str(label): label for label in range(N_LABELS)}
ESCAPES = {"-LRB-": "(", "-RRB-": ")"}  # brackets within a sentence cannot be written as such


class Phrase(NamedTuple):
    text: str  # words with a space between two
    label: int


class _Open(NamedTuple):
    """Bracket that is not closed yet."""

    number: int  # number of the phrase, in the order in which brackets open
    label: int
    start: int  # the first of its words


def read_trees(text: str, name: str) -> list[tuple[Phrase, ...]]:
    """Read the phrases of every line: the whole sentence, then its parts in the order in which their brackets open.

    `name` is that of the file, for errors, which also name the line.
    """
    trees = []
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        try:
            trees.append(read_tree(line))
        except DataError as error:
            shown = line if len(line) <= 60 else line[:57] + "..."
            raise DataError(
                f"{name}, line {number}: {error}; wanted one tree like (3 (2 It) (4 (2 's) (4 lovely))), got {shown!r}"
            ) from error
    return trees


def read_tree(line: str) -> tuple[Phrase, ...]:
    """Read one tree, without recursion: a line of ten thousand brackets is an error to name, not a crash."""
    pieces = re.findall(r"[()]|[^ \t\r()]+", line)  # a word may hold a space that does not break: `8 1/2` is one
    if not pieces:
        raise DataError("the line is empty")
    words: list[str] = []
    phrases: list[Phrase | None] = []
    open_ones: list[_Open] = []
    after_label = False  # whether a word may come: only the first thing in a bracket can be one
    position = 0
    while position < len(pieces):
        piece = pieces[position]
        if phrases and not open_ones:
            raise DataError(f"{piece!r} stands behind the tree")
        if piece == "(":
            label = _label(pieces[position + 1] if position + 1 < len(pieces) else "nothing")
            open_ones.append(_Open(len(phrases), label, len(words)))
            phrases.append(None)
            after_label, position = True, position + 2
            continue
        if piece == ")":
            if not open_ones:
                raise DataError("a bracket is closed that was never opened")
            number, label, start = open_ones.pop()
            if start == len(words):
                raise DataError("a bracket holds no words: the sentence, or a part of it, is empty")
            phrases[number] = Phrase(" ".join(words[start:]), label)
        elif not after_label:
            raise DataError(
                f"the word {piece!r} stands {'beside other parts' if open_ones else 'outside of all brackets'}"
            )
        else:
            words.append(ESCAPES.get(piece, _plain(piece)))
        after_label, position = False, position + 1
    if open_ones:
        raise DataError(f"{len(open_ones)} bracket{'s are' if len(open_ones) > 1 else ' is'} never closed")
    return tuple(phrases)


def roots(trees: Iterable[tuple[Phrase, ...]]) -> list[Phrase]:
    """Keep the whole sentences."""
    return [tree[0] for tree in trees]


def unique_phrases(trees: Iterable[tuple[Phrase, ...]]) -> list[Phrase]:
    """Keep every text once, sentences and parts alike; with several labels, the first one."""
    first: dict[str, int] = {}
    for tree in trees:
        for text, label in tree:
            first.setdefault(text, label)
    return [Phrase(text, label) for text, label in first.items()]


def negative_or_positive(phrases: Iterable[Phrase]) -> list[Phrase]:
    """Label phrases 0 negative, 1 positive; leave out neutral ones."""
    return [Phrase(text, int(label > NEUTRAL)) for text, label in phrases if label != NEUTRAL]


def _label(piece: str) -> int:
    if piece not in LABELS:
        raise DataError(f"a bracket begins with a label from 0 to {N_LABELS - 1}, not with {piece!r}")
    return LABELS[piece]


def _plain(word: str) -> str:
    return word.replace("\\/", "/").replace("\\*", "*").replace("\xa0", " ")
