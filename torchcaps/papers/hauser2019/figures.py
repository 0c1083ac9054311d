"""Figures 1 and 2, the growth phase, and what the force on experts costs: each where the runs that it shows are there."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchcaps.data import load
from torchcaps.figures.samples import architecture, growth_curve, sample_sheets
from torchcaps.figures.tradeoff import Setting, Wanted, purity_against_probe
from torchcaps.papers.hauser2019 import rows
from torchcaps.papers.made import finished
from torchcaps.results.claims import Recipe, recipes_of
from torchcaps.results.store import read_result
from torchcaps.results.tuning import Line, read_tuning, tuning_path
from torchcaps.train.loading import load_model
from torchcaps.train.plain import unlike
from torchcaps.train.recipe import Run

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
    """What the settings tried on held-out digits gave, each seed by itself; with the name of the row that has the same."""
    lines = read_tuning(tuning_path(results, "hauser2019"))
    purity, probe = ({line.run: line for line in lines if line.metric == name} for name in ("restricted_n_pure", "probe_accuracy"))
    return [_setting(line, probe[run], seed) for run, line in purity.items() for seed in line.by_seed]


def _setting(purity: Line, probe: Line, seed: int) -> Setting:
    """The row's own values where a setting does not change them."""
    changed = dict(part.split("=", 1) for part in purity.changes.split())
    run = _recipes()[purity.row].make()
    experts, decoder = run.stages[1].task, run.stages[2].optimizer
    force = float(changed.get("stages.1.task.sparse", experts.sparse)), float(changed.get("stages.1.task.goal", experts.goal))
    plain = int(changed.get("model_args.n_plain", run.model_args.get("n_plain", 0)))
    l2 = float(changed.get("stages.2.optimizer.l2", decoder.l2))
    row = purity.row if set(changed) <= {"hold_out"} else ""
    return Setting(*force, purity.by_seed[seed], probe.by_seed[seed], plain, l2, row)


def _today() -> dict[str, Run]:
    """The runs of today's rows, by name."""
    return {name: recipe.make() for name, recipe in _recipes().items()}


def _claims() -> dict[str, str]:
    """What the rows say they are, by name."""
    return {name: recipe.claim.row for name, recipe in _recipes().items()}


def _recipes() -> dict[str, Recipe]:
    return {name.removeprefix("hauser2019/"): recipe for name, recipe in recipes_of("hauser2019", rows).items()}
