"""What docs/papers/heinsen2019.md types of smallNORB and no mark can name: it says what the files say."""

import re
from statistics import mean, stdev

import pytest
import torch
from heinsen_results import (
    EARLIER,
    HARD,
    PAGE,
    SAME,
    WITH_DATA,
    again,
    errors,
    fewer_on_folds,
    missed,
    more,
    result,
    shown,
    ten_runs,
    welch,
)
from scipy import stats

from torchcaps.data.sets.smallnorb import factors
from torchcaps.results.store import unpack

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
    "mixup-half": r"shares of Beta\(0.5, 0.5\)",
    "mixup-one": r"shares of Beta\(1, 1\)",
    "cnn": "The network without capsules",
    "cnn-standardised": "and with standardised pictures",
}


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
        assert min(gains) > 0 and f"{size} fewer, {every}: the best of the ten that came before" in PAGE
    if row == "mixup-half":
        assert min(gains) > 0 and f"{size} fewer, {every}, the best of twelve" in PAGE


@pytest.mark.data
@WITH_DATA
def test_the_cnn_beside_the_best_of_twelve_on_folds():
    found = [fewer_on_folds(f"choose-folds-{kind}", other="choose-folds-mixup-half") for kind in ("cnn", "cnn-standardised")]
    assert all(sum(gain > 0 for gain in gains) == 3 for gains, _ in found)
    ahead = " and ".join(f"{mean(gains):.1f} ± {sd:.1f}" for gains, sd in found)
    assert f"of the best of twelve by {ahead}, on three folds of five" in PAGE


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
    found = more("smallnorb-cnn-standardised", "smallnorb-cnn", SAME)
    first, second, third = (f"{abs(by):.2f} ± {sd:.2f}" for by, sd in found)
    assert [by > 0 for by, _ in found] == [True, False, True]
    assert f"more than without by {first}, fewer by {second}, more by {third}" in PAGE


@pytest.mark.data
@WITH_DATA
def test_the_cnn_beside_the_network_that_folds_chose():
    found = more("smallnorb-no-coordinates-r2", "smallnorb-cnn", SAME)
    first, second, third = (f"{abs(by):.2f} ± {sd:.2f}" for by, sd in found)
    assert [by > 0 for by, _ in found] == [True, False, True]
    assert f"with seeds 0 and 2, by {first} and {third} points, and behind with seed 1, by {second};" in PAGE


def test_the_network_that_folds_chose():
    names = "choose-folds-no-coordinates-r2", "choose-folds-r2", "choose-folds", "choose-folds-no-coordinates"
    four = [mean(errors(name, range(5))) for name in names]
    assert four == sorted(four) and "no coordinates and two passes are chosen" in PAGE
    ours, cnn = errors("smallnorb-no-coordinates-r2"), errors("smallnorb-cnn")
    by = f"in the mean by {mean(ours) - mean(cnn):.2f}, which is within the chance of three seeds (Welch's p = {welch(ours, cnn):.2f})"
    assert by in PAGE


def test_the_best_of_ten_and_of_twelve_on_folds():
    tried = {row: mean(errors(f"choose-folds-{row}", range(5))) for row in TRIED if not row.startswith("cnn")}
    assert min(tried, key=tried.__getitem__) == "mixup-half" and len(tried) == 12
    before = {row: error for row, error in tried.items() if not row.startswith("mixup")}
    assert min(before, key=before.__getitem__) == "standardised-r2" and len(before) == 10


@pytest.mark.data
@WITH_DATA
def test_more_mixup():
    gains, sd = fewer_on_folds("choose-folds-mixup-half", other="choose-folds-no-coordinates-r2")
    assert f"by {mean(gains):.1f} ± {sd:.1f} points fewer than the last" in PAGE and sum(gain > 3 for gain in gains) == 2
    more_wrong = sorted(-gain for gain in gains)[2:]
    assert f"on the other three it has slightly more wrong, by {more_wrong[0]:.1f} to {more_wrong[-1]:.1f}." in PAGE
    ours, row, less, cnn = (errors(f"smallnorb{end}") for end in ("-mixup-half", "", "-no-coordinates-r2", "-cnn-mixup-half"))
    against = (mean(row) - mean(ours), welch(ours, row), mean(less) - mean(ours), welch(ours, less))
    said = "{:.2f} points fewer wrong (Welch's p = {:.2f}, three seeds each), against the same with less mixup {:.2f} (p = {:.1f})"
    assert said.format(*against) in PAGE
    toys = shown("smallnorb")[1][:, 0]
    easy = [100 * missed(row)[:, ~torch.isin(toys, HARD)].mean(1) for row in ("smallnorb-mixup-half", "smallnorb")]
    assert (
        "Without the three hard toys {:.2f}, {:.2f} and {:.2f} % are wrong, where the row has {:.2f}, {:.2f} and {:.2f};".format(
            *torch.cat(easy)
        )
        in PAGE
    )
    hard = [100 * missed(row)[:, toys == toy].mean() for row in ("smallnorb-mixup-half", "smallnorb") for toy in HARD]
    assert "of which {:.1f}, {:.1f} and {:.1f} % are wrong instead of {:.1f}, {:.1f} and {:.1f}.".format(*hard) in PAGE
    found = [number for pair in more("smallnorb-mixup-half", "smallnorb-cnn-mixup-half", SAME) for number in pair]
    ahead = "by {:.2f} ± {:.2f}, {:.2f} ± {:.2f} and {:.2f} ± {:.2f} points: within chance".format(*found)
    assert f"ahead of the routing's same seeds {ahead} (p = {welch(ours, cnn):.1f})" in PAGE


@pytest.mark.data
@WITH_DATA
def test_capsnet():
    found = [number for pair in more("smallnorb-capsnet", "smallnorb", SAME) for number in pair]
    assert "by {:.1f} ± {:.1f}, {:.1f} ± {:.1f} and {:.1f} ± {:.1f} points; without".format(*found) in PAGE
    easy = 100 * missed("smallnorb-capsnet")[:, ~torch.isin(shown("smallnorb")[1][:, 0], HARD)].mean(1)
    assert "without the three hard toys it has {:.2f}, {:.2f} and {:.2f} % wrong".format(*easy) in PAGE


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
    assert (
        f"At the end the routing has {mean(right[:3]):.2f} % right" in PAGE
        and "the CNN has {:.2f}, {:.2f} and {:.2f} % of them".format(*right[3:6]) in PAGE
    )
    assert f"CapsNet, whose loss is a margin loss, {mean(right[6:]):.2f} in the mean" in PAGE


def test_the_best_of_ten_runs():
    ten = ten_runs()
    assert len(ten) == 10 and max(100 - error for error in ten) < 98.6  # "no run of ten"
    right, best = 100 - mean(ten), 100 - min(ten)
    assert f"a mean of {right:.2f} % and a standard deviation of {stdev(ten):.2f}. The best of these ten has {best:.2f} %" in PAGE
    assert f"ten runs have {right:.2f} % in the mean, {best:.2f} the best" in PAGE
    assert "in bfloat16 {:.2f}, {:.2f} and {:.2f}".format(*EARLIER) in PAGE
    assert f"{again():.2f} % wrong where the row's file has {errors('smallnorb')[0]:.2f}" in PAGE
