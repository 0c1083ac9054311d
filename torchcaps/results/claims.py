"""Recipes: runs and probes by name, each tied to the printed number that it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from torchcaps.train.recipe import Run
from torchcaps.train.vary import vary

Make = Callable[[], Any]  # a Run, or a probe


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The printed number that a recipe is for."""

    table: str
    row: str
    metric: str  # "test.error_percent"
    printed: float | None = None
    printed_sd: float | None = None
    selected: str = ""  # how the paper selected its number, in a word or two: "mean of 3", "stopped on test"
    beside: tuple[str, ...] = ()  # further metrics, or numbers of `extras`, that stand in the same cell


@dataclass(frozen=True)
class Recipe:
    """A named function that returns a run or a probe."""

    name: str  # "sabour2017/mnist-r3-recon"
    make: Make
    claim: Claim | None

    @property
    def about(self) -> str:
        return (self.make.__doc__ or "").strip()


def reproduces(**claim: Any) -> Callable[[Make], Make]:
    """Tie a recipe to the number it is for: table, row, metric, printed, printed_sd, selected, beside."""

    def tie(make: Make) -> Make:
        make.claim = Claim(**claim)
        return make

    return tie


class Variant:
    """A row that differs from another one in a few fields (train/vary.py); keywords add to its claim."""

    def __init__(self, row: str, changes: Mapping[str, Any], **claim: Any) -> None:
        self.row, self.changes, self.claim = row, changes, claim


class Variants(dict[str, Make]):
    """A table of rows, by name, that `recipes_of` finds in a paper's module."""


def variants(base: Callable[[], Run], rows: Mapping[str, Variant], **claim: Any) -> Variants:
    """Rows that change a few fields of `base`; keywords are the claim that they share. Without a table they claim nothing."""
    return Variants({name: _made(base, variant, claim | variant.claim) for name, variant in rows.items()})


def _made(base: Callable[[], Run], variant: Variant, claim: Mapping[str, Any]) -> Make:
    def make() -> Run:
        return vary(base(), variant.changes)

    changed = ", ".join(f"{name} {value}" for name, value in variant.changes.items())
    make.__doc__ = f"{variant.row}: as `{base.__name__.strip('_').replace('_', '-')}`, with {changed}."
    make.claim = Claim(row=variant.row, **claim) if claim else None
    return make


def recipes_of(paper: str, module: ModuleType) -> dict[str, Recipe]:
    """The recipes that a module defines, public functions and tables of variants, in the order of its text."""
    found: dict[str, Make] = {}
    for name, part in vars(module).items():
        if isinstance(part, Variants):
            found |= part
        elif (
            callable(part)
            and getattr(part, "__module__", "") == module.__name__
            and not name.startswith("_")
            and not isinstance(part, type)
        ):
            found[name.replace("_", "-")] = part
    return {f"{paper}/{name}": Recipe(f"{paper}/{name}", make, getattr(make, "claim", None)) for name, make in found.items()}


def find(name: str, recipes: Mapping[str, Recipe]) -> Recipe:
    """The recipe of that name, or an error with the nearest names."""
    if name in recipes:
        return recipes[name]
    near = get_close_matches(name, recipes, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "`torchcaps ls` lists them all"
    raise ValueError(f"no recipe {name!r}; {hint}")
