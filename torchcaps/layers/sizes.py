"""Checks of the sizes that a layer or a model is built with."""

from collections.abc import Sequence
from operator import index
from typing import Any


def check_sizes(layer: str, **sizes: Any) -> None:
    """Refuse numbers of capsules or dimensions below 1; None, where a layer allows it, is left to the layer."""
    for name, size in sizes.items():
        if size is not None and _whole(size) < 1:
            raise ValueError(f"{layer}: {name} must be a whole number of at least 1, got {size!r}")


def check_each(layer: str, n: int, **sizes: Any) -> None:
    """Refuse anything but tuples of `n` numbers of at least 1."""
    for name, each in sizes.items():
        if not isinstance(each, Sequence) or len(each) != n or any(_whole(size) < 1 for size in each):
            raise ValueError(f"{layer}: {name} must be {n} whole numbers of at least 1, got {each!r}")


def check_grid(layer: str, grid: Any) -> None:
    """Refuse a grid that is not two numbers of places."""
    try:
        sizes = [_whole(size) for size in grid]
    except TypeError:
        sizes = []
    if len(sizes) != 2 or min(sizes) < 1:
        hint = f"({grid}, {grid})" if _whole(grid) >= 1 else "(6, 6)"
        raise ValueError(f"{layer}: grid must be (rows, columns) of at least 1, got {grid!r}; give such as {hint}")


def _whole(number: Any) -> int:
    try:
        return index(number)
    except TypeError:
        return 0
