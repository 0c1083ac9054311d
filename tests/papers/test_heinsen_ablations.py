"""What docs/papers/heinsen2019.md types of smallNORB's ablations and no mark can name: it says what the files say."""

import re
from statistics import mean, stdev

import pytest
from heinsen_results import HOME, PAGE, SAME, WITH_DATA, errors, more, result, ten_runs, welch

from torchcaps.results.store import unpack

LEFT_OUT = {  # ablations of smallNORB, as the page calls them: three seeds
    "mixup-half": "no coordinates, two passes and more mixup",
    "no-coordinates-r2": "no coordinates and two passes",
    "r2": "two passes",
    "no-coordinates": "no coordinates",
    "tied": "cost tied to the benefit",
    "no-cost": "no cost",
    "no-mixup": "no mixup",
    "r4": "four passes",
}
TRAINED_OTHERWISE = "float32", "varied", "standardised-r2", "mixup-half"


@pytest.mark.data
@WITH_DATA
@pytest.mark.parametrize("row", LEFT_OUT)
def test_what_can_be_left_out(row):
    (typed,) = re.findall(rf"^\| {LEFT_OUT[row]} \| .* \| (.*) \|$", PAGE, re.MULTILINE)
    found = more(f"smallnorb-{row}", "smallnorb", SAME)
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


def test_ablations_beside_three_and_ten_runs():
    names = "r2", "no-coordinates", "no-coordinates-r2", "tied", "no-cost"
    rows = [errors(f"smallnorb-{name}") for name in names]
    ours, ten = errors("smallnorb"), ten_runs()
    assert all(one < usual for row in rows for one, usual in zip(row, ours, strict=True))
    assert "fewer are wrong than by the row's same seed with every seed" in PAGE
    assert "{:.2f}, {:.2f}, {:.2f}, {:.2f} and {:.2f} points in the mean".format(*(mean(ours) - mean(row) for row in rows)) in PAGE
    three = [welch(row, ours) for row in rows]
    assert "has p = {:.2f}, {:.2f}, {:.2f}, {:.2f} and {:.2f}; against all ten".format(*three) in PAGE
    against_ten = "{:.2f}, {:.1f}, {:.1f}, {:.1f} and {:.1f}.".format(*(welch(row, ten) for row in rows))
    assert f"({mean(ten):.2f} ± {stdev(ten):.2f} %, in float32 and before biases of 0 too) {against_ten}" in PAGE
    late = [mean(errors(f"smallnorb{end}", (1, 2))) for end in ("-r2", "-no-coordinates", "-tied", "-no-cost", "-no-mixup", "-r4", "")]
    said = (
        "no coordinates have {:.2f} and {:.2f} % wrong, cost tied and no cost {:.2f} and {:.2f}, "
        "no mixup and four passes {:.2f} and {:.2f}, the row's seeds 1 and 2 {:.2f}."
    )
    assert said.format(*late) in PAGE


def test_what_is_missed():
    mixup, four, ours = errors("smallnorb-no-mixup"), errors("smallnorb-r4"), errors("smallnorb")
    assert f"**: {mean(mixup) - mean(ours):.2f} points more are wrong without it, Welch's p = {welch(mixup, ours):.2f} (three" in PAGE
    assert f"between three and four (p = {welch(four, ours):.2f})" in PAGE


def test_how_many_settings_and_runs():
    """On test toys and on folds, as the last lines of the page count them."""
    files = {folder.name: len(list(folder.glob("*.json"))) for folder in (HOME / "results/heinsen2019").iterdir()}
    folds = [name for name in files if name.startswith("choose-folds-")]
    of_cnn = [name for name in folds if "cnn" in name]
    assert f"the row's and {len(folds) - len(of_cnn)} others on folds" in PAGE and len(of_cnn) == 2
    rows = {name: n for name, n in files.items() if name.startswith("smallnorb")}
    cnn, routing = ({name: n for name, n in rows.items() if (name.split("-")[1:2] == ["cnn"]) == of_it} for of_it in (True, False))
    n_capsnet = routing.pop("smallnorb-capsnet")
    earlier = 4  # three before biases of 0, and the row's seed 0 again
    n_settings, n_runs = len(routing) + 1, sum(routing.values()) + earlier
    assert f"of the routing {n_settings} on the test toys, {n_runs} runs" in PAGE
    assert f"one of {n_settings} of the routing, {n_runs} runs, that were tested" in PAGE
    assert (len(cnn), sum(cnn.values()), n_capsnet) == (3, 9, 3) and "three of the CNN, nine runs, and one of CapsNet, three runs" in PAGE
    ablations = sum(n for name, n in routing.items() if name not in ("smallnorb", *(f"smallnorb-{kind}" for kind in TRAINED_OTHERWISE)))
    assert f"{ablations} of nine ablations" in PAGE and len(routing) - 1 - len(TRAINED_OTHERWISE) == 9
    views = sum(n for name, n in files.items() if name.split("-")[0] in ("azimuth", "elevation"))
    assert f"and {views} runs on viewpoints" in PAGE


def test_how_soon_the_loss_falls_by_passes():
    def first_below_1(row: str, seed: int) -> int:
        return next(line["step"] for line in result(row, seed)["curve"] if line.get("loss", 2) < 1)

    (two,) = {first_below_1("smallnorb-r2", seed) for seed in range(3)}
    more = [first_below_1(row, seed) for row in ("smallnorb", "smallnorb-r4") for seed in range(3)]
    falls = "is at step {:,} with two passes (all three seeds), at {:,}, {:,} and {:,} with three, and at {:,}, {:,} and {:,} with four"
    assert falls.format(two, *more) in PAGE
    assert f"with five the loss ends at {result('smallnorb-r5', 0)['curve'][-1]['loss']:.2f}" in PAGE
