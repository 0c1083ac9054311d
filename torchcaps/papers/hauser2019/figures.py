"""Figures 1 and 2, the growth phase and the trade-off of the force on experts, for available runs."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchcaps.data import load
from torchcaps.papers.finished import finished, runs_of
from torchcaps.papers.hauser2019 import ablations, rows
from torchcaps.papers.hauser2019.samples import architecture, growth_curve, sample_sheets
from torchcaps.papers.hauser2019.tradeoff import Setting, Wanted, purity_against_probe
from torchcaps.results.claims import recipes_of
from torchcaps.results.store import read_result
from torchcaps.results.tuning import Line, read_tuning, tuning_path
from torchcaps.train.loading import load_model
from torchcaps.train.plain import unlike
from torchcaps.train.recipe import Run
from torchcaps.train.vary import parsed, value_of, vary

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any  # matplotlib is imported when something is drawn

# by row; the paper's a and b, complete and restricted domain, are one sheet, and so are c and d
SHEETS = {
    "mnist-letter": "figure-2ab-letter",
    "fashion-letter": "figure-2cd-letter",
    "mnist": "figure-2ab",
    "fashion": "figure-2cd",
    "digits": "figure-2-digits",
    "mnist-letter-no-bias": "figure-2ab-letter-no-bias",
    "digits-letter-no-bias": "figure-2-digits-letter-no-bias",
    "mnist-plain": "figure-2-plain",
    "mnist-plain-chosen": "figure-2-plain-chosen",
}
ARCHITECTURES = {"mnist": "figure-1", "mnist-letter": "figure-1-letter", "digits": "figure-1-digits"}


def figures(results: Path, runs: Path, root: Path | None, device: torch.device) -> dict[str, tuple[Figure, str]]:
    """Draw all figures that result files in `results` and checkpoints in `runs` allow, by name, with captions."""
    made, today = {}, _today()
    for recipe, name in SHEETS.items():
        checkpoint = runs / "hauser2019" / recipe / "0" / "checkpoint.safetensors"
        if not finished(checkpoint, today[recipe]):
            continue
        model, run, about = load_model(checkpoint, device)
        row = _titles()[recipe]
        made[name] = sample_sheets(model, load(run.data, "train", root, about["seed"]), device, row=row)
        if recipe in ARCHITECTURES:
            image = load(run.data, "test", root, about["seed"]).images[0] / 255
            made[ARCHITECTURES[recipe]] = architecture(model, image, device, row=row)
    growth = results / "hauser2019" / "mnist-growth" / "0.json"
    if growth.exists() and not unlike((result := read_result(growth))["run"], today["mnist-growth"]):
        made["growth"] = growth_curve(result["curve"], today["mnist-growth"].stages[1].probe_every)
    if settings := tried(results):
        made["force"] = purity_against_probe(settings, Wanted(n_pure=15, probe_accuracy=95, n_capsules=20))
    return made


def tried(results: Path) -> list[Setting]:
    """Draw the settings tried on held-out digits, one dot per seed."""
    lines = read_tuning(tuning_path(results, "hauser2019"))
    purity, probe = (
        {line.run: line for line in lines if line.metric == name} for name in ("restricted_n_pure", "probe_accuracy")
    )
    return [_setting(line, probe[run], seed) for run, line in purity.items() for seed in line.by_seed]


def _setting(purity: Line, probe: Line, seed: int) -> Setting:
    changes = {name: parsed(value) for name, _, value in (part.partition("=") for part in purity.changes.split())}
    run = vary(_today()[purity.row], changes)
    return Setting(
        force=value_of(run, "sparse"),
        goal=value_of(run, "goal"),
        n_pure=purity.by_seed[seed],
        probe_accuracy=probe.by_seed[seed],
        n_plain=value_of(run, "n_plain") or 0,
        l2=value_of(run, "stages.2.optimizer.l2"),
        row=purity.row if set(changes) <= {"hold_out"} else "",
    )


@cache
def _today() -> dict[str, Run]:
    """Collect the runs of the current rows, by name."""
    return runs_of("hauser2019", rows, ablations)


def _titles() -> dict[str, str]:
    """Collect the text of each row, by name."""
    found = recipes_of("hauser2019", rows) | recipes_of("hauser2019", ablations)
    return {name.removeprefix("hauser2019/"): recipe.claim.row for name, recipe in found.items()}
