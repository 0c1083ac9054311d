"""What docs/papers/heinsen2019.md types of smallNORB's ablations and no mark can name: it says what the files say."""

import re
from statistics import mean, stdev

import pytest

from tests.heinsen_results import PAGE, SAME, WITH_DATA, errors, more, nine_runs, result, welch
from torchcaps.results import unpack

LEFT_OUT = {  # ablations of smallNORB, as the page calls them: three seeds
    "no-coordinates-r2": "no coordinates and two passes",
    "r2": "two passes",
    "no-coordinates": "no coordinates",
}
LEFT_OUT_ONCE = {  # and one seed
    "tied": "cost tied to the benefit",
    "no-cost": "no cost",
    "no-mixup": "no mixup",
    "r4": "four passes",
}
ABLATIONS = LEFT_OUT | LEFT_OUT_ONCE


@pytest.mark.data
@WITH_DATA
@pytest.mark.parametrize("row", ABLATIONS)
def test_what_can_be_left_out(row):
    (typed,) = re.findall(rf"^\| {ABLATIONS[row]} \| .* \| (.*) \|$", PAGE, re.MULTILINE)
    found = more(f"smallnorb-{row}", "smallnorb", SAME if row in LEFT_OUT else [(0, seed) for seed in range(3)])
    differences = ", ".join(f"{abs(by):.2f} ± {sd:.2f}" for by, sd in found)
    assert typed == f"{differences} {'more' if found[0][0] > 0 else 'fewer'}"
    assert len({by > 0 for by, _ in found}) == 1


def test_one_pass_gives_one_answer():
    def said(row: str, seed: int) -> int:
        (answer,) = unpack(result(row, seed)["predictions"]["test"]).unique().tolist()
        return answer

    assert said("smallnorb-r1", 0) == 4 and [said("choose-folds-r1", fold) for fold in range(5)] == [4, 1, 1, 1, 4]
    assert "cars on the test toys and on folds 0 and 4, humans on folds 1 to 3" in PAGE
    steps, losses = zip(*((line["step"], line["loss"]) for line in result("smallnorb-r1", 0)["curve"] if "loss" in line), strict=True)
    late = [loss for step, loss in zip(steps, losses, strict=True) if step > 0.9 * steps[-1]]
    assert f"to {mean(late):.2f} in the mean of the last tenth" in PAGE


def test_ablations_beside_three_and_nine_runs():
    rows = [errors(f"smallnorb-{row}") for row in ("r2", "no-coordinates", "no-coordinates-r2")]
    ours, nine = errors("smallnorb"), nine_runs()
    assert "{:.2f}, {:.2f} and {:.2f} points in the mean".format(*(mean(ours) - mean(row) for row in rows)) in PAGE
    against_three, against_nine = ("{:.2f}, {:.2f} and {:.2f}".format(*(welch(row, runs) for row in rows)) for runs in (ours, nine))
    assert f"has p = {against_three}; against the nine runs of the row's network ({mean(nine):.2f} ± {stdev(nine):.2f} %" in PAGE
    assert f"too) {against_nine}." in PAGE
    rest = [mean(errors(row, (1, 2))) for row in ("smallnorb-r2", "smallnorb-no-coordinates", "smallnorb")]
    assert "without it they have {:.2f} and {:.2f} % wrong, the row's seeds 1 and 2 have {:.2f}".format(*rest) in PAGE
    three = [welch(row, ours) for row in rows]
    assert f"(p = {min(three):.2f} to {max(three):.2f})" in PAGE
    below = [(mean(nine) - errors(f"smallnorb-{row}", [0])[0]) / stdev(nine) for row in ("tied", "no-cost")]
    assert "no cost are {:.1f} and {:.1f} standard deviations below the nine runs".format(*below) in PAGE


def test_how_soon_the_loss_falls_by_passes():
    def first_below_1(row: str, seed: int) -> int:
        return next(line["step"] for line in result(row, seed)["curve"] if line.get("loss", 2) < 1)

    (two,) = {first_below_1("smallnorb-r2", seed) for seed in range(3)}
    three, four = [first_below_1("smallnorb", seed) for seed in range(3)], first_below_1("smallnorb-r4", 0)
    falls = "is at step {:,} with two passes (all three seeds), at {:,}, {:,} and {:,} with three, and at {:,} with four"
    assert falls.format(two, *three, four) in PAGE
    assert f"with five the loss ends at {result('smallnorb-r5', 0)['curve'][-1]['loss']:.2f}" in PAGE
