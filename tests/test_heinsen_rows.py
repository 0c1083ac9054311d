"""The rows of Heinsen 2019 on smallNORB are what their names say."""

import re

import pytest
import torch

from torchcaps.data import info
from torchcaps.papers import RECIPES
from torchcaps.recipe import differences, to_plain

ROWS = {name.removeprefix("heinsen2019/"): recipe for name, recipe in RECIPES.items() if name.startswith("heinsen2019/") and recipe.claim}
TABLE_2 = ["smallnorb", "smallnorb-capsnet", "smallnorb-cnn"]


def n_parameters(run) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in run.build().parameters())


@pytest.mark.parametrize("name", TABLE_2)
def test_table_2_tells_parameters_and_epochs_as_they_are(name):
    claim, run = ROWS[name].claim, ROWS[name].make()
    size, unit = re.search(r"([\d.]+)([KM]) parameters", claim.row).groups()
    assert claim.table == "2" and n_parameters(run) == pytest.approx(float(size) * {"K": 1e3, "M": 1e6}[unit], rel=0.005)
    assert f"{run.stages[0].epochs} epochs" in claim.row and run.stages[0].steps is None


def test_the_networks_beside_it_are_trained_alike():
    """Everything of a stage but the task, and every picture at its own scale: 16 of 96 pixels are 8 of 48."""
    ours, capsnet, cnn = (ROWS[name].make() for name in TABLE_2)
    for run in (capsnet, cnn):
        other = differences(to_plain(ours.stages[0]), to_plain(run.stages[0]))
        assert other and all(line.startswith("task") for line in other)
        assert [type(part) for part in run.augment] == [type(part) for part in ours.augment]
        crop, whole = run.augment[0], info(run.data).shape[-1]
        assert crop.size == whole and crop.border / whole == ours.augment[0].border / ours.augment[0].size
    assert n_parameters(cnn) == 271_545 and n_parameters(ours) == 271_688


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("no-cost", "model_args.cost: separate, none"),
        ("tied", "model_args.cost: separate, tied"),
        *[(f"r{n}", f"model_args.n_iters: 3, {n}") for n in (1, 2, 4, 5)],
        ("no-coordinates", "model_args.coordinates: True, False"),
        ("no-mixup", "augment: "),
    ],
)
def test_an_ablation_changes_one_thing(name, changed):
    other = differences(to_plain(ROWS["smallnorb"].make()), to_plain(ROWS[f"smallnorb-{name}"].make()))
    other = [line for line in other if not line.startswith("stages[0].watch")]  # a curve changes nothing
    assert len(other) == 1 and other[0].startswith(changed)


def test_rows_of_viewpoints_say_on_what_they_were_trained():
    views = {name: recipe for name, recipe in ROWS.items() if recipe.claim.table == "viewpoints"}
    assert len(views) == 6
    for name, recipe in views.items():
        run = recipe.make()
        assert "-viewpoint-" in run.data and "trained on official test toys" in recipe.claim.row
        assert run.tests == (f"{run.data}-familiar",) and recipe.claim.beside == (f"{run.tests[0]}.error_percent",)
        assert name.split("-")[0] in run.data
    assert not any("-viewpoint-" in recipe.make().data for name, recipe in ROWS.items() if name not in views)
