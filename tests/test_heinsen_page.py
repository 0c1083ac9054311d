"""Differences that docs/papers/heinsen2019.md types, which no mark can name: they say what the files say."""

import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import mean, stdev

import pytest
import torch
from scipy import stats
from torch import Tensor

from torchcaps import parts
from torchcaps.compare import sd_of_mean, sources_of
from torchcaps.data.smallnorb import factors
from torchcaps.metrics import wrong
from torchcaps.recipe import from_plain
from torchcaps.results import read_result, unpack

HOME = Path(__file__).parent.parent
PAGE = (HOME / "docs/papers/heinsen2019.md").read_text()
EARLIER = [100 * wrong_ones / 24_300 for wrong_ones in (513, 572, 384)]  # of `smallnorb` before biases of 0, files in the history
WATCHED = [(row, seed) for row in ("smallnorb", "smallnorb-cnn", "smallnorb-capsnet") for seed in range(3)]
TRIED = {  # settings on folds of training toys, as the page calls them
    "r2": "two passes instead of three",
    "no-coordinates": "No coordinates",
    "no-coordinates-r2": "no coordinates and two passes",
    "standardised": "Standardised pictures",
    "varied": "warped and mirrored",
    "light": "brightness and contrast at random",
    "fast": "twice the rate",
    "no-mixup": "no mixup",
    "light-varied": "light and warps together",
    "standardised-r2": "Both together",
    "cnn": "The network without capsules",
    "cnn-standardised": "and with standardised pictures",
}
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
HARD = torch.tensor([21, 45, 42])  # airplane 1, car 5, car 2
SAME = [(seed, seed) for seed in range(3)]  # seeds
WITH_DATA = pytest.mark.skipif("TORCHCAPS_DATA" not in os.environ, reason="TORCHCAPS_DATA names no folder")


def result(row: str, seed: int) -> dict:
    return read_result(HOME / f"results/heinsen2019/{row}/{seed}.json")


def errors(row: str, seeds: Sequence[int] = range(3)) -> list[float]:
    return [result(row, seed)["metrics"]["test"]["error_percent"] for seed in seeds]


def amiss(found: dict, labels: Tensor, part: str = "test") -> Tensor:
    return wrong(unpack(found["predictions"][part]).long(), labels).double()


@cache
def shown(row: str, fold: int = 0) -> tuple[Tensor, Tensor]:
    """The label of each picture that `row` is judged on, and its toy, as `torchcaps compare` has them."""
    run = from_plain(result(row, fold)["run"])
    data = parts.part(run, "test", None, fold)
    return data.labels, sources_of(run, "test", data, None).of


def missed(row: str) -> Tensor:
    """Of the test pictures, by every seed [3 n]."""
    return torch.stack([amiss(result(row, seed), shown("smallnorb")[0]) for seed in range(3)])


def more(row: str, other: str, pairs: list[tuple[int, int]]) -> list[tuple[float, float]]:
    """How many more `row` has wrong than `other`, in percent, for pairs of seeds, and the sd over choices of the 25 test toys."""
    labels, toys = shown("smallnorb")
    gains = [100 * (amiss(result(row, one), labels) - amiss(result(other, two), labels)) for one, two in pairs]
    return [(gain.mean().item(), sd_of_mean(gain, toys)) for gain in gains]


def fewer_on_folds(row: str, part: str = "test", other: str = "choose-folds") -> tuple[list[float], float]:
    """How many fewer `row` has wrong than `other`, in percent: by fold, and the sd of their mean over choices of the 25 toys."""
    gains, toys = [], []
    for fold in range(5):
        labels, of_fold = shown("choose-folds", fold)
        gains.append(100 * (amiss(result(other, fold), labels) - amiss(result(row, fold), labels, part)))
        toys.append(of_fold + 100 * fold)  # every fold numbers its toys alike
    return [gain.mean().item() for gain in gains], sd_of_mean(torch.cat(gains), torch.cat(toys))


@pytest.mark.data
@WITH_DATA
def test_statistics_of_unmixed_pictures_on_folds():
    gains, sd = fewer_on_folds("choose-folds", "test_unmixed")
    assert f"a difference of {mean(gains):.1f} with a standard deviation of {sd:.1f} over choices of toys" in PAGE


@pytest.mark.data
@WITH_DATA
@pytest.mark.parametrize("row", TRIED)
def test_other_settings_on_folds(row):
    gains, sd = fewer_on_folds(f"choose-folds-{row}")
    every = "and fewer on every fold"
    size = f"{abs(mean(gains)):.1f} ± {sd:.1f}"
    found = re.search(rf"{TRIED[row]} (\S+ ± \S+)(?: points)? (fewer|more)", PAGE.replace("\n", " "))
    assert found and found.groups() == (size, "fewer" if mean(gains) > 0 else "more")
    if row == "r2":
        over_folds = stats.ttest_1samp(gains, 0)
        assert min(gains) > 0 and f"{size} points fewer, {every}" in PAGE
        assert f"{mean(gains) / sd:.1f} standard deviations over toys" in PAGE
        assert f"(over the five folds t = {over_folds.statistic:.1f}, p = {over_folds.pvalue:.2f}" in PAGE
    if row == "no-coordinates-r2":
        assert min(gains) > 0 and f"{size} fewer, {every}, {mean(gains) / sd:.1f} standard deviations: than two passes" in PAGE
        beside, sd = fewer_on_folds("choose-folds-no-coordinates-r2", other="choose-folds-r2")
        assert f"than two passes alone {mean(beside):.1f} ± {sd:.1f} fewer" in PAGE
    if row == "standardised-r2":
        assert min(gains) > 0 and f"{size} fewer, {every}: the best of ten" in PAGE


@pytest.mark.data
@WITH_DATA
def test_the_cnn_beside_the_best_of_ten_on_folds():
    gains, sd = fewer_on_folds("choose-folds-cnn-standardised", other="choose-folds-standardised-r2")
    assert sum(gain > 0 for gain in gains) == 3 and f"of the best of ten by {mean(gains):.1f} ± {sd:.1f}, on three folds of five" in PAGE


@pytest.mark.data
@WITH_DATA
def test_what_smallnorb_got_wrong():
    (labels, toys), views = shown("smallnorb"), factors("test")
    toys = toys[:, 0]
    answers = torch.stack([unpack(result("smallnorb", seed)["predictions"]["test"]).long() for seed in range(3)])
    mistakes = missed("smallnorb")
    assert "{:.0f}, {:.0f} and {:.0f} of 24,300 are wrong".format(*mistakes.sum(1)) in PAGE
    assert f"{mistakes.any(0).sum():,} are wrong in at least one of the three" in PAGE
    called = 100 * ((labels == 4) & (answers == 3)).sum() / mistakes.sum()
    assert f"({called:.0f} %) are cars called trucks" in PAGE

    share = 100 * mistakes.double().mean(0)
    by_light, by_azimuth, by_elevation = (
        [share[of == k].mean() for k in of.unique()] for of in (views.lighting, views.azimuth, views.elevation)
    )
    others = sorted(by_light)[:-1]
    assert by_light[2] == max(by_light) and f"Light 2 is worst, {by_light[2]:.1f} % against {others[0]:.1f} to {others[-1]:.1f}" in PAGE
    assert sorted(by_azimuth)[-2:] == [by_azimuth[15], by_azimuth[7]]  # in steps of 20 degrees
    assert f"140 and 300 degrees\n({by_azimuth[7]:.1f} and {by_azimuth[15]:.1f} %)" in PAGE
    assert by_elevation[0] == max(by_elevation) and f"the lowest elevation ({by_elevation[0]:.1f} %)" in PAGE

    cnn, of_hard = missed("smallnorb-cnn"), torch.isin(toys, HARD)
    of_toy = [share[toys == toy].mean() for toy in HARD]
    assert of_toy == sorted((share[toys == toy].mean() for toy in toys.unique()), reverse=True)[:3]
    assert f"Three toys of 25 have {100 * share[of_hard].sum() / share.sum():.0f} % of the mistakes" in PAGE
    assert "with {:.1f}, {:.1f} and {:.1f} % of their\npictures wrong".format(*of_toy) in PAGE
    of_all = 100 * cnn[:, of_hard].sum(1) / cnn.sum(1)
    assert "The same three toys have {:.0f}, {:.0f} and {:.0f} % of its mistakes".format(*of_all) in PAGE
    left = [each[~of_hard].mean() for each in (*100 * cnn, share)]
    assert "without them it has {:.2f}, {:.2f} and {:.2f} % wrong, the routing {:.2f}".format(*left) in PAGE


@pytest.mark.data
@WITH_DATA
def test_how_far_the_cnn_is_ahead():
    found = more("smallnorb", "smallnorb-cnn", [(one, two) for one in range(3) for two in range(3)])
    by, times = sorted(by for by, _ in found), sorted(by / sd for by, sd in found)
    ahead = f"by {by[0]:.2f} to {by[-1]:.2f} points, which is {times[0]:.1f} to {times[-1]:.1f} standard deviations"
    assert f"is behind each of the CNN, {ahead}" in PAGE


@pytest.mark.data
@WITH_DATA
def test_standardised_pictures_and_two_passes():
    found = [number for by, sd in more("smallnorb-standardised-r2", "smallnorb", SAME) for number in (-by, sd)]
    assert "by {:.2f} ± {:.2f}, {:.2f} ± {:.2f} and {:.2f} ± {:.2f} points".format(*found) in PAGE
    hard = torch.isin(shown("smallnorb")[1][:, 0], HARD)
    easy = [100 * missed(row)[:, ~hard].mean(1) for row in ("smallnorb-standardised-r2", "smallnorb")]
    assert "with {:.2f}, {:.2f} and {:.2f} % wrong where the row has {:.2f}, {:.2f} and {:.2f},".format(*torch.cat(easy)) in PAGE
    first, second, third = (f"{abs(by):.2f} ± {sd:.2f}" for by, sd in more("smallnorb-cnn-standardised", "smallnorb-cnn", SAME))
    assert f"more than without by {first}, fewer by {second}, more by {third}" in PAGE


@pytest.mark.data
@WITH_DATA
@pytest.mark.parametrize("row", LEFT_OUT | LEFT_OUT_ONCE)
def test_what_can_be_left_out(row):
    (typed,) = re.findall(rf"^\| {(LEFT_OUT | LEFT_OUT_ONCE)[row]} \| .* \| (.*) \|$", PAGE, re.MULTILINE)
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
    against_three, against_nine = (
        "{}, {} and {}".format(*(chance(stats.ttest_ind(row, runs, equal_var=False).pvalue) for row in rows)) for runs in (ours, nine)
    )
    assert f"has p = {against_three}; against the nine runs of the row's network ({mean(nine):.2f} ± {stdev(nine):.2f} %" in PAGE
    assert f"too) {against_nine}." in PAGE
    rest = [mean(errors(row, (1, 2))) for row in ("smallnorb-r2", "smallnorb-no-coordinates", "smallnorb")]
    assert "without it they have {:.2f} and {:.2f} % wrong, the row's seeds 1 and 2 have {:.2f}".format(*rest) in PAGE
    below = [(mean(nine) - errors(f"smallnorb-{row}", [0])[0]) / stdev(nine) for row in ("tied", "no-cost")]
    assert "no cost are {:.1f} and {:.1f} standard deviations below the nine runs".format(*below) in PAGE


@pytest.mark.data
@WITH_DATA
def test_the_cnn_beside_the_network_that_folds_chose():
    first, second, third = (f"{abs(by):.2f} ± {sd:.2f}" for by, sd in more("smallnorb-no-coordinates-r2", "smallnorb-cnn", SAME))
    assert f"with seeds 0 and 2, by {first} and {third} points, and behind with seed 1, by {second};" in PAGE
    ours, cnn = errors("smallnorb-no-coordinates-r2"), errors("smallnorb-cnn")
    p = chance(stats.ttest_ind(ours, cnn, equal_var=False).pvalue)
    assert f"in the mean by {mean(ours) - mean(cnn):.2f}, which is within the chance of three seeds (Welch's p = {p})" in PAGE


@pytest.mark.data
@WITH_DATA
def test_capsnet():
    found = [number for pair in more("smallnorb-capsnet", "smallnorb", SAME) for number in pair]
    assert "by {:.1f} ± {:.1f}, {:.1f} ± {:.1f} and {:.1f} ± {:.1f} points; without".format(*found) in PAGE
    easy = 100 * missed("smallnorb-capsnet")[:, ~torch.isin(shown("smallnorb")[1][:, 0], HARD)].mean(1)
    assert "without the three hard toys it has {:.2f}, {:.2f} and {:.2f} % wrong".format(*easy) in PAGE


@pytest.mark.data
@WITH_DATA
def test_viewpoints():
    by = []
    for vary in ("azimuth", "elevation"):
        labels, toys = shown(vary)
        more_wrong = 100 * (amiss(result(vary, 0), labels) - amiss(result(f"{vary}-cnn", 0), labels))
        by += [more_wrong.mean().item(), sd_of_mean(more_wrong, toys)]
    assert "it has {:.2f} ± {:.2f} points more wrong at new azimuths and {:.2f} ± {:.2f} at new elevations".format(*by) in PAGE


def test_how_soon_the_loss_falls_by_passes():
    def first_below_1(row: str, seed: int) -> int:
        return next(line["step"] for line in result(row, seed)["curve"] if line.get("loss", 2) < 1)

    (two,) = {first_below_1("smallnorb-r2", seed) for seed in range(3)}
    three, four = [first_below_1("smallnorb", seed) for seed in range(3)], first_below_1("smallnorb-r4", 0)
    falls = "is at step {:,} with two passes (all three seeds), at {:,}, {:,} and {:,} with three, and at {:,} with four"
    assert falls.format(two, *three, four) in PAGE
    assert f"with five the loss ends at {result('smallnorb-r5', 0)['curve'][-1]['loss']:.2f}" in PAGE


@pytest.mark.data
@WITH_DATA
def test_warped_and_mirrored():
    found = more("smallnorb-varied", "smallnorb", SAME)
    assert "by {} ± {}, {} ± {} and {} ± {} points".format(*(f"{number:.1f}" for pair in found for number in pair)) in PAGE
    assert max(errors("smallnorb")) < min(errors("smallnorb-varied")) and "all three seeds more than the row's worst" in PAGE
    animal = shown("smallnorb")[1][:, 0] == 2
    rows = [100 * missed(row)[:, animal].mean(1) for row in ("smallnorb", "smallnorb-varied")]
    usual, warped = ([f"{number:.0f}" for number in (min(shares), max(shares))] for shares in rows)
    assert f"has {' to '.join(usual)} % wrong, has {' to '.join(warped)}," in PAGE


def test_the_ends_of_the_curves():
    watched = [[line for line in result(row, seed)["curve"] if "watched_test_error_percent" in line][-1] for row, seed in WATCHED]
    right = [100 - line["watched_test_error_percent"] for line in watched]
    assert f"At the end {mean(right[:3]):.2f} %" in PAGE and "the CNN has {:.2f}, {:.2f} and {:.2f} % of them".format(*right[3:6]) in PAGE
    assert f"CapsNet, whose loss is a margin loss, {mean(right[6:]):.2f} in the mean" in PAGE


def nine_runs() -> list[float]:
    """Errors of the row's network, whatever the precision and the first biases."""
    return errors("smallnorb") + errors("smallnorb-float32") + EARLIER


def test_the_best_of_ten():
    nine = nine_runs()
    assert len(nine) == 9 and max(100 - error for error in nine) < 98.6  # "no run of nine"
    right, sd = 100 - mean(nine), stdev(nine)
    assert f"a mean of {right:.2f} % and a standard deviation of {sd:.2f}" in PAGE and f"nine runs have {right:.2f} % in the mean" in PAGE
    assert f"1.54 standard deviations above the mean, at {right + 1.54 * sd:.1f} %" in PAGE
    assert "in bfloat16 {:.2f}, {:.2f} and {:.2f}".format(*EARLIER) in PAGE


def chance(p: float) -> str:
    return f"{p:.1g}" if p >= 0.001 else "less than 0.001"


@pytest.mark.data
@WITH_DATA
@pytest.mark.parametrize("labels", ["5", "2"])
@pytest.mark.parametrize("baseline", ["mlp", "linear"])
def test_how_far_the_routing_is_ahead_on_sentences(labels, baseline):
    (typed,) = re.findall(rf"^\| SST-{labels}, {baseline} \| (.*) \|$", PAGE, re.MULTILINE | re.IGNORECASE)
    truth = parts.part(from_plain(result(f"sst{labels}", 0)["run"]), "test", None, 0).labels
    rows = f"sst{labels}", f"sst{labels}-{baseline}"
    routing, other = (100 - 100 * torch.stack([amiss(result(row, seed), truth) for seed in range(3)]) for row in rows)
    seeds = stats.ttest_ind(routing.mean(1), other.mean(1), equal_var=False)  # Welch's
    ahead, interval = (routing - other).mean(0), seeds.confidence_interval()  # of each sentence, by its mean over the seeds
    error = ahead.std().item() / len(ahead) ** 0.5
    assert typed.split(" | ") == [
        f"{ahead.mean():.2f}",
        f"{interval.low:.2f} to {interval.high:.2f}",
        f"{seeds.statistic:.1f}, {chance(seeds.pvalue)}",
        f"{error:.2f}, {chance(2 * stats.norm.sf(ahead.mean().item() / error))}",
    ]
