"""Figures 1 and 2, the growth phase, and what the force on experts costs: each where the runs that it shows are there."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchcaps.data import load
from torchcaps.figures.samples import architecture, growth_curve, sample_sheets
from torchcaps.figures.tradeoff import Setting, Wanted, purity_against_probe
from torchcaps.papers.hauser2019 import choices, rows
from torchcaps.papers.made import finished, results_of, runs_of
from torchcaps.results.store import read_result
from torchcaps.train.checkpoint import load_model
from torchcaps.train.recipe import Recipe, Run, recipes_of, unlike

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

SHEETS = {  # recipe: our figure's name. The paper's a and c, the complete domain, and b and d, the restricted one, are one sheet each
    "mnist": "figure-2ab",
    "fashion": "figure-2cd",
    "mnist-letter": "figure-2ab-letter",
    "fashion-letter": "figure-2cd-letter",
    "mnist-plain": "figure-2-plain",
    "mnist-plain-chosen": "figure-2-plain-chosen",
    "mnist-plain-forced": "figure-2-plain-forced",
    "mnist-stacked": "figure-2-stacked",
    "cifar10": "figure-2-cifar10",
    "digits": "figure-2-digits",
}
DRAWN_WHOLE = ("mnist", "digits")


def figures(results: Path, runs: Path, root: Path | None, device: torch.device) -> dict[str, tuple[Figure, str]]:
    """By the paper's number, with captions. `results` holds result files, `runs` checkpoints; what is missing is left out."""
    made, today, claims = {}, _today(), _claims()
    for recipe, name in SHEETS.items():
        checkpoint = runs / "hauser2019" / recipe / "0" / "checkpoint.safetensors"
        if not finished(checkpoint, today[recipe]):
            continue
        model, run, about = load_model(checkpoint, device)
        made[name] = sample_sheets(model, load(run.data, "train", root, about["seed"]), device, row=claims[recipe])
        if recipe in DRAWN_WHOLE:
            image = load(run.data, "test", root, about["seed"]).images[0] / 255
            made["figure-1" if recipe == "mnist" else f"figure-1-{recipe}"] = architecture(model, image, device, row=claims[recipe])
    growth = results / "hauser2019" / "mnist-growth" / "0.json"
    if growth.exists() and not unlike((result := read_result(growth))["run"], today["mnist-growth"]):
        made["growth"] = growth_curve(result["curve"], today["mnist-growth"].stages[1].probe_every)
    if settings := _settings(results):
        made["force"] = purity_against_probe(settings, Wanted(n_pure=15, probe_accuracy=95, n_capsules=20))
    return made


def _settings(results: Path) -> list[Setting]:
    """What the runs on held-out digits say, each seed by itself; with the name of the row that has the same settings."""
    today, kept = runs_of("hauser2019", choices), _today()
    found = results_of("hauser2019", results, today)
    rows_by = {name: [row for row, run in kept.items() if replace(run, hold_out=today[name].hold_out) == today[name]] for name in found}
    return [_setting(today[name], result["extras"], "".join(rows_by[name])) for name, those in found.items() for result in those]


def _setting(run: Run, extras: dict[str, Any], row: str) -> Setting:
    experts, decoder = run.stages[1].task, run.stages[2].optimizer
    measured = extras["restricted_n_pure"], extras["probe_accuracy"]
    return Setting(experts.sparse, experts.goal, *measured, run.model_args.get("n_plain", 0), decoder.l2, row)


def _today() -> dict[str, Run]:
    """The runs of today's rows, by name."""
    return {name: recipe.make() for name, recipe in _recipes().items()}


def _claims() -> dict[str, str]:
    """What the rows say they are, by name."""
    return {name: recipe.claim.row for name, recipe in _recipes().items()}


def _recipes() -> dict[str, Recipe]:
    return {name.removeprefix("hauser2019/"): recipe for name, recipe in recipes_of("hauser2019", rows).items()}
