"""Rows of Jeong 2019: what each changes, how large its network is, and what an image costs."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from torchcaps.models import CapsNet, LCapsNet
from torchcaps.papers import RECIPES
from torchcaps.results.tuning import read_tuning
from torchcaps.train.plain import differences, to_plain, unlike

RESULTS = Path(__file__).parents[2] / "results" / "jeong2019"
ROWS = {name.removeprefix("jeong2019/"): recipe for name, recipe in RECIPES.items() if name.startswith("jeong2019/")}


def changed(row: str, base: str) -> set[str]:
    """Fields in which two rows differ."""
    return {line.split(":")[0] for line in differences(to_plain(ROWS[base].make()), to_plain(ROWS[row].make()))}


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/*.json")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_stored_run_is_the_row_of_today(path):
    stored = json.loads(path.read_text())
    assert unlike(stored["run"], ROWS[path.parent.name].make()) == []


def test_every_row_has_a_result():
    assert {path.parent.name for path in RESULTS.glob("*/*.json")} == set(ROWS)


def test_rows_have_fourteen_printed_numbers():
    assert sum(recipe.claim.printed is not None for recipe in ROWS.values()) == 14


@pytest.mark.parametrize(
    ("row", "base", "fields"),
    [
        ("mnist-k50", "mnist-k70", {"model_args.n_kept"}),
        ("mnist-wide-k70", "mnist-k70", {"model_args.primary_kernel"}),
        ("mnist-shift-k70", "mnist-k70", {"augment"}),
        ("like-wide-k50", "like-k50", {"model_args.kernel", "model_args.primary_kernel"}),
        ("like-no-ladder", "like-wide-k70", {"model_args.agreement"}),
        ("like-no-pruning", "like-wide-k70", {"model_args.n_kept"}),
        ("like-no-code-loss", "like-wide-k70", {"stages[0].task.code_weight"}),
        ("like-k70-constant-code", "like-k70", {"model_args.code"}),
        ("like-k50-up", "like-k50", {"model_args.agreement"}),
    ],
)
def test_a_variant_changes_what_it_says(row, base, fields):
    assert changed(row, base) == fields


@pytest.mark.parametrize(
    ("row", "n_capsules"),
    [
        ("mnist-k70", 1152),
        ("mnist-wide-k70", 288),
        ("like-k50", 4608),
        ("like-wide-k70", 1152),
        ("like-wide-capsnet", 1152),
    ],
)
def test_primary_capsules_are_as_many_as_in_the_paper(row, n_capsules):
    with torch.device("meta"):
        assert ROWS[row].make().build().classes.n_in == n_capsules


def test_settings_chosen_on_held_out_digits_are_on_record():
    lines = [line for line in read_tuning(RESULTS / "tuning.csv") if line.metric == "validation_warped.error_percent"]
    tried = {line.run: line.by_seed[0] for line in lines}
    placed = {name: error for name, error in tried.items() if name.startswith(("choose-like-k", "choose-like-wide"))}
    assert min(placed, key=placed.get) == "choose-like-k50-up"
    assert min(tried, key=tried.get) == "choose-like-constant-code-9x9-long"


@pytest.mark.slow
def test_a_ladder_multiplies_more_than_a_capsnet():
    """Convolutions take 199.4 million multiply-adds an image in both; the ladder adds 37.4, routing and decoder 3.8."""

    def millions(model: torch.nn.Module, poses_needed: bool) -> float:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            capsules = model(torch.zeros(1, 1, 28, 28))
            if poses_needed:
                model.decoder(capsules.poses, torch.eye(1, 10))
        return counter.get_total_flops() / 2e6

    head = 10 * (2 * _dense(1152, 384, 256, 128, 128 * 70) + _dense(1152, 210, 140, 70, 70)) + 2 * 10 * 70 * 8 * 16
    routing = 1152 * 10 * 8 * 16 + (3 + 2) * 1152 * 10 * 16 + _dense(160, 512, 1024, 784)
    convolutions = 20 * 20 * 256 * 81 + 6 * 6 * 256 * 256 * 81
    assert (convolutions / 1e6, head / 1e6, routing / 1e6) == pytest.approx((199.4, 37.4, 3.8), abs=0.06)
    assert (convolutions + head) / (convolutions + routing) == pytest.approx(1.17, abs=0.005)
    assert millions(LCapsNet(), False) == pytest.approx((convolutions + head) / 1e6, rel=0.01)
    assert millions(CapsNet(), True) == pytest.approx((convolutions + routing) / 1e6, rel=0.03)  # some votes twice


def _dense(*sizes: int) -> int:
    """Multiply-adds of fully connected layers."""
    return sum(a * b for a, b in pairwise(sizes))
