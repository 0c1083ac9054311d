"""Recipes: named runs and probes, each tied to the printed number that it reproduces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import Parameter, signature
from types import ModuleType
from typing import Any

from torchcaps.train.recipe import Run
from torchcaps.train.vary import vary

Make = Callable[[], Any]  # a Run, or a probe


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Printed number that a recipe reproduces.

    Example:

        @reproduces(table="1", row="CapsNet", metric="test.error_percent", printed=0.25)
        def mnist():
            return Run(data="mnist", model="capsnet", model_args={})

        mnist.claim.printed  # 0.25
    """

    table: str
    row: str
    metric: str  # "test.error_percent"
    printed: float | None = None
    printed_sd: float | None = None
    selected: str = ""  # how the paper selected its number: "mean of 3", "stopped on test"
    beside: tuple[str, ...] = ()  # further metrics, or numbers of `extras`, shown in the same cell


@dataclass(frozen=True)
class Recipe:
    """Named function that returns a run or a probe.

    Example:

        from torchcaps.papers import RECIPES
        recipe = find("sabour2017/mnist-r3-recon", RECIPES)
        recipe.claim.printed, type(recipe.make()).__name__  # (0.25, 'Run')
    """

    name: str  # "sabour2017/mnist-r3-recon"
    make: Make
    claim: Claim | None

    @property
    def about(self) -> str:
        """Description: the docstring of the function."""
        return (self.make.__doc__ or "").strip()


def reproduces(**claim: Any) -> Callable[[Make], Make]:
    """Attach a claim to a recipe: table, row, metric, printed, printed_sd, selected, beside."""

    def tie(make: Make) -> Make:
        make.claim = Claim(**claim)
        return make

    return tie


class Variant:
    """Row that differs from a base run in a few fields (train/vary.py); keywords extend its claim.

    Example:

        def base():
            return Run(data="mnist", model="capsnet", model_args={})

        rows = variants(base, {"slow": Variant("low learning rate", {"learning_rate": 1e-4})})
        rows["slow"]().stages[0].learning_rate  # 0.0001
    """

    def __init__(self, row: str, changes: Mapping[str, Any], **claim: Any) -> None:
        self.row, self.changes, self.claim = row, changes, claim


class Variants(dict[str, Make]):
    """Table of rows, by name, that `recipes_of` collects from a paper's module.

    Example:

        def base():
            return Run(data="mnist", model="capsnet", model_args={})

        rows = variants(base, {f"r{n}": Variant(f"{n} iterations", {"n_iters": n}) for n in (1, 3)})
        list(rows), rows["r1"]().model_args  # (['r1', 'r3'], {'n_iters': 1})
    """


def variants(base: Callable[[], Run], rows: Mapping[str, Variant], **claim: Any) -> Variants:
    """Build rows that change a few fields of `base`; keywords are their common claim, if any."""
    return Variants({name: _made(base, variant, claim | variant.claim) for name, variant in rows.items()})


def _made(base: Callable[[], Run], variant: Variant, claim: Mapping[str, Any]) -> Make:
    def make() -> Run:
        return vary(base(), variant.changes)

    changed = ", ".join(f"{name} {value}" for name, value in variant.changes.items())
    make.__doc__ = f"{variant.row}: as `{base.__name__.strip('_').replace('_', '-')}`, with {changed}."
    make.claim = Claim(row=variant.row, **claim) if claim else None
    return make


def recipes_of(paper: str, module: ModuleType) -> dict[str, Recipe]:
    """Collect the recipes of a module in order: its public functions and its tables of variants."""
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
            if needed := needed_by(part):
                raise TypeError(
                    f"{module.__name__}.{name} is public, so it is a recipe, which takes nothing; it takes "
                    f"{', '.join(needed)}. Begin its name with an underscore"
                )
            found[name.replace("_", "-")] = part
    return {
        f"{paper}/{name}": Recipe(f"{paper}/{name}", make, getattr(make, "claim", None)) for name, make in found.items()
    }


def needed_by(function: Callable[..., Any]) -> list[str]:
    """Name the arguments without which the function cannot be called."""
    rest = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
    given = signature(function).parameters.items()
    return [name for name, parameter in given if parameter.default is parameter.empty and parameter.kind not in rest]


def find(name: str, recipes: Mapping[str, Recipe]) -> Recipe:
    """Return the recipe of that name, or raise an error with the nearest names."""
    if name in recipes:
        return recipes[name]
    near = get_close_matches(name, recipes, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "`torchcaps ls --all` lists them all"
    raise ValueError(f"no recipe {name!r}; {hint}")
