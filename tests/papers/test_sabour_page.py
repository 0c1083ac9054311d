"""Numbers of docs/papers/sabour2017.md that no mark can name, two tables and differences: they say what the files say."""

import json
import os
import re
from pathlib import Path
from statistics import mean

import pytest
import torch
from scipy import stats

from torchcaps.analysis.metrics import wrong
from torchcaps.papers import RECIPES
from torchcaps.probes.kinds import stored
from torchcaps.results.compare import Comparison, compare, sources_of
from torchcaps.results.store import read_result, unpack
from torchcaps.train import splits

HOME = Path(__file__).parents[2]
PAGE = (HOME / "docs/papers/sabour2017.md").read_text()
POSES = {"CapsNet, 16 numbers": "sabour2017/mnist-r3-recon-64 seed 0", "CNN, 192 numbers": "sabour2017/mnist-cnn seed 2"}


def cells(start: str) -> list[str]:
    """Of the one row of a table that begins so, what follows; as it is written."""
    (row,) = re.findall(rf"^\| {re.escape(start)} \| (.*) \|$", PAGE, re.MULTILINE)
    return row.split(" | ")


def told(numbers: list[float], decimals: int) -> list[str]:
    return [f"{number:.{decimals}f}" for number in numbers]


@pytest.mark.parametrize(
    ("start", "recipe", "n", "what", "decimals"),
    [
        ("MNIST, `{}`, right, mean of seeds 0 to 4", "mnist-r3-recon-64", 5, "accuracy_percent", 2),
        ("MNIST, `{}`, entropy, mean of seeds 0 to 4", "mnist-r3-recon-64", 5, "entropy_share_by_length", 3),
        ("MultiMNIST, `{}`, both right, seed 0", "multimnist-4-r3", 1, "accuracy_percent", 2),
        ("MultiMNIST, `{}`, entropy, seed 0", "multimnist-4-r3", 1, "entropy_share_by_length", 3),
        ("MultiMNIST, `{}`, both right, seed 0", "multimnist-4-r3-high", 1, "accuracy_percent", 2),
        ("MultiMNIST, `{}`, trained with one pass, both right, seed 0", "multimnist-4-r1", 1, "accuracy_percent", 2),
        ("smallNORB, `{}`, right, mean of seeds 0 to 2", "smallnorb-types", 3, "accuracy_percent", 2),
        ("smallNORB, `{}`, entropy, mean of seeds 0 to 2", "smallnorb-types", 3, "entropy_share_by_length", 3),
        ("CIFAR-10, `{}`, right, mean of seeds 0 to 2", "cifar10", 3, "accuracy_percent", 2),
        ("CIFAR-10, `{}`, entropy, mean of seeds 0 to 2", "cifar10", 3, "entropy_share_by_length", 3),
        ("CIFAR-10, `{}`, right, seed 0", "cifar10-plain", 1, "accuracy_percent", 2),
        ("CIFAR-10, `{}`, trained with one pass, right, seed 0", "cifar10-r1", 1, "accuracy_percent", 2),
    ],
)
def test_what_the_routing_does_is_what_the_result_files_hold(start, recipe, n, what, decimals):
    files = [HOME / f"results/sabour2017/{recipe}/{seed}.json" for seed in range(n)]
    found = [json.loads(file.read_text())["diagnostics"] for file in files]
    assert all(one["n_images"] == 2000 and one["n_iters"] == (1 if "one pass" in start else 3) for one in found)
    assert not any(one["dead"]["primary_types"] or one["dead"]["class_capsules"] for one in found)
    assert cells(start.format(recipe)) == told(
        [mean(row[what] for row in by_pass) for by_pass in zip(*(one["passes"] for one in found), strict=True)], decimals
    )


@pytest.mark.parametrize("start", POSES)
def test_what_a_pose_knows_is_what_its_file_holds(start):
    found = json.loads((HOME / "docs/papers/sabour2017/equivariance.json").read_text())[POSES[start]]
    assert str(found["n_features"]) in start
    assert cells(start) == told(list(found["r2"].values()), 2)
    assert f"{found['error_percent']:.1f} %" in PAGE


def result(row: str, seed: int) -> dict:
    return read_result(HOME / f"results/sabour2017/{row}/{seed}.json")


def error(recipe: str, seed: int = 0, metric: str = "error_percent") -> float:
    return json.loads((HOME / f"results/sabour2017/{recipe}/{seed}.json").read_text())["metrics"]["test"][metric]


def test_differences_between_pairs():
    high, same_rate, one, cnn = (error(f"multimnist-4-{row}", metric="exact_match_error_percent") for row in ("r3-high", "r3", "r1", "cnn"))
    assert f"{round(1000 * (cnn - high))} pairs of 100,000, 2.7 standard deviations" in PAGE
    assert f"with half the rate {round(1000 * (cnn - same_rate))} pairs" in PAGE
    assert f"the two rates differ by {round(1000 * (same_rate - high))} pairs of 100,000" in PAGE
    assert round((8.1 - 5.2) / (cnn - high)) == 14
    assert "a fourteenth of the paper's" in PAGE
    assert PAGE.count(f"{one - high:.1f} points") == 2
    behind = error("multimnist-6-cnn", metric="exact_match_error_percent") - error("multimnist-6-r3", metric="exact_match_error_percent")
    assert f"At shift 6 the difference is {round(1000 * behind)} pairs, 2.1 standard deviations" in PAGE
    assert f"CapsNet is ahead by {behind:.2f} points there and by {cnn - high:.2f} at shift 4" in PAGE


def test_differences_between_schedules_of_the_cnn():
    def held_out(row: str) -> list[int]:  # wrong digits of 5,000, for every seed that there is
        n_seeds = len(list((HOME / f"results/sabour2017/{row}").glob("*.json")))
        return [round(50 * result(row, seed)["metrics"]["validation"]["error_percent"]) for seed in range(n_seeds)]

    def fewer(row: str, other: str) -> list[int]:
        return [theirs - ours for ours, theirs in zip(held_out(row), held_out(other), strict=False)]

    tried = ("", "-low", "-2", "-small-batch", "-exponential")
    chosen = {end: fewer("choose-cnn-half", f"choose-cnn{end}") for end in tried}
    assert [len(seeds) for seeds in chosen.values()] == [2, 2, 2, 1, 1]
    assert "Of six settings tried" in PAGE and "two of the six have one seed" in PAGE
    assert chosen[""] == [3, 3] and "three digits of 5,000 fewer wrong than with CapsNet's rate with either of two seeds" in PAGE
    assert chosen["-low"][0] == 0 and "level with a third of the rate with one of them" in PAGE
    assert all(sum(seeds) > 0 for seeds in chosen.values())
    assert fewer("choose-cosine", "choose-cnn-half") == [12, -2] and "12 fewer than the CNN with half the rate with one seed" in PAGE
    assert fewer("choose-small-batch-torch-init", "choose-cnn-half") == [14, 2] and "14 and two fewer" in PAGE


def last_tenth(row: str, seed: int = 0) -> float:
    found = result(row, seed)
    losses = [line["loss"] for line in found["curve"] if line["step"] > 0.9 * found["planned_steps"]]
    assert len(losses) == 11 and "mean of the eleven stored points of the last tenth of training" in PAGE
    return mean(losses)


def test_loss_by_passes():
    one, two, five = (last_tenth(f"cifar10-{row}") for row in ("r1", "r2", "r5"))
    three = [last_tenth("cifar10", seed) for seed in range(3)]
    assert one > two > max(three) and min(three) > five
    assert f"one pass {one:.4f} and " in PAGE and f"two {two:.4f} and " in PAGE and f"five {five:.4f} and " in PAGE
    assert f"three {min(three):.4f} to {max(three):.4f} and " in PAGE
    assert f"{three[0]:.4f} where one pass has {one:.4f} in the mean of the last tenth's points" in PAGE
    assert f"(Two passes have\n{two:.4f}, five {five:.4f}. " in PAGE
    first, third = (result(row, 0)["curve"] for row in ("cifar10-r1", "cifar10"))
    ahead = [line["step"] for line, other in zip(third, first, strict=True) if line["loss"] < other["loss"]]
    assert ahead == [line["step"] for line in third if line["step"] >= ahead[0]]
    assert f"has the lower loss from step {ahead[0]:,} on" in PAGE


def test_differences_between_folds():
    row, types = ([error(f"choose-smallnorb-folds{change}", fold) for fold in range(5)] for change in ("", "-types"))
    assert "Folds differ by up to {} and {} points".format(*told([max(row) - min(row), max(types) - min(types)], 0)) in PAGE
    gains = [before - after for before, after in zip(row, types, strict=True)]
    assert "better on three folds of five, by {}, {} and {} points".format(*told(gains[:3], 1)) in PAGE
    assert "worse on two, by {} and {}; in the mean better by {}".format(*told([-gains[3], -gains[4], mean(gains)], 1)) in PAGE
    assert "ahead by {} points in the mean of five folds ({} without".format(*told([mean(gains), mean(gains[1:])], 1)) in PAGE


def test_one_pass_on_folds():
    files = [HOME / f"results/sabour2017/choose-smallnorb-folds/{fold}.json" for fold in range(5)]
    right = [[row["accuracy_percent"] for row in json.loads(file.read_text())["diagnostics"]["passes"]] for file in files]
    ahead = [by_pass[0] - by_pass[2] for by_pass in right]
    assert "first and fourth fold of the row's settings, by {} and {} points".format(*told([ahead[0], ahead[3]], 2)) in PAGE
    assert "worse on the others, by {}, {} and {}.".format(*told([-ahead[fold] for fold in (1, 2, 4)], 2)) in PAGE


def test_differences_between_rows_of_smallnorb():
    fewer = [error("smallnorb", seed) - error("smallnorb-types", seed) for seed in range(2)]
    assert "Seeds 0 and 1 have {} and {} points fewer wrong".format(*told(fewer, 1)) in PAGE
    printed = RECIPES["sabour2017/smallnorb"].claim.printed
    behind = [mean(error(row, seed) for seed in range(n)) - printed for row, n in (("smallnorb-types", 3), ("smallnorb", 2))]
    assert "smallNORB is {} points worse than printed with the setting that training toys chose, {} with".format(*told(behind, 1)) in PAGE


WITH_DATA = pytest.mark.skipif("TORCHCAPS_DATA" not in os.environ, reason="TORCHCAPS_DATA names no folder")


def beside(first: str, second: str, seed: int = 0) -> Comparison:
    return compare(result(first, seed), result(second, seed), None)[0]


@pytest.mark.data
@WITH_DATA
def test_what_other_test_digits_do():
    found = beside("multimnist-4-cnn", "multimnist-4-r3-high")
    assert f"{found.difference / found.sd:.1f} standard deviations" in PAGE
    assert f"standard deviation over test digits {1000 * beside('multimnist-4-r3', 'multimnist-4-r3-high').sd:.0f}" in PAGE
    half_the_rate, far_apart = beside("multimnist-4-cnn", "multimnist-4-r3"), beside("multimnist-6-cnn", "multimnist-6-r3")
    assert 1.9 < half_the_rate.difference / half_the_rate.sd < 2.1
    assert f"{far_apart.difference / far_apart.sd:.1f} standard deviations, of the same test digits" in PAGE


def over_seeds(first: str, second: str) -> tuple[float, float]:
    """By how many points the first has more wrong, mean over all seeds of either, and its sd over choices of pictures."""
    found = []
    for row in (first, second):
        n_seeds = len(list((HOME / f"results/sabour2017/{row}").glob("*.json")))
        labels = splits.part(stored(result(row, 0)["run"]), "test", None, 0).labels
        answers = [unpack(result(row, seed)["predictions"]["test"]).long() for seed in range(n_seeds)]
        found.append(100 * torch.stack([wrong(answer, labels).double() for answer in answers]).mean(0))
    more = found[0] - found[1]
    return more.mean().item(), more.std().item() / len(more) ** 0.5


@pytest.mark.data
@WITH_DATA
def test_what_other_test_pictures_do():
    chosen, alike = over_seeds("mnist-cnn-half", "mnist-r3-recon-64-torch-init"), over_seeds("mnist-cnn-half", "mnist-r3-recon")
    assert f"{chosen[0]:.3f} points, {chosen[0] / chosen[1]:.1f} standard deviations of what the choice of test digits" in PAGE
    assert f"in the same batches {alike[0]:.3f}, less than one standard deviation" in PAGE and alike[0] < alike[1]
    behind, taken = over_seeds("mnist-cnn", "mnist-r3-recon")[0], over_seeds("mnist-cnn", "mnist-cnn-half")[0]
    assert f"the CNN was behind by {behind:.3f}: half the rate, or newer code, takes {taken:.3f} of that away" in PAGE
    plain, two = over_seeds("cifar10", "cifar10-plain"), over_seeds("cifar10", "cifar10-r2")
    assert (
        f"without it {plain[0]:.2f} points fewer are wrong (one seed, newer code), less than one standard deviation" in PAGE
        and plain[0] < plain[1]
    )
    assert f"Two passes have {two[0]:.2f} points fewer wrong than three, {two[0] / two[1]:.1f} standard deviations" in PAGE
    for passes in ("r1", "r5"):
        more, sd = over_seeds("cifar10", f"cifar10-{passes}")
        assert abs(more) < sd and "one and five passes differ from three by less than one standard deviation" in PAGE


def test_the_cnn_and_capsnet_by_seeds():
    cnn, capsnet = ([error(row, seed) for seed in range(n)] for row, n in (("mnist-cnn-half", 3), ("mnist-r3-recon-64-torch-init", 5)))
    p = stats.ttest_ind(cnn, capsnet, equal_var=False).pvalue
    assert f"by the seeds p = {p:.2f} (Welch)" in PAGE


@pytest.mark.data
@WITH_DATA
def test_what_other_held_out_digits_do():
    chosen = [beside("choose-cnn", "choose-cnn-half", seed) for seed in range(2)]
    assert "by 0.06 points with either seed, with standard deviations of {:.2f} and {:.2f}".format(*(one.sd for one in chosen)) in PAGE
    assert [f"{one.difference:.2f}" for one in chosen] == ["0.06", "0.06"]
    ahead, behind = (beside("choose-cnn-half", "choose-cosine", seed) for seed in range(2))
    assert f"({ahead.difference / ahead.sd:.1f} standard deviations over choices of digits), two more with the other (half of one)" in PAGE
    assert round(behind.difference / behind.sd, 1) == -0.5


@pytest.mark.data
@WITH_DATA
def test_what_other_toys_do():
    def over(folds: list[Comparison]) -> tuple[float, float]:  # no toy is in two folds, and all folds are of one size
        return mean(one.difference for one in folds), sum(one.sd**2 for one in folds) ** 0.5 / len(folds)

    folds = [beside("choose-smallnorb-folds", "choose-smallnorb-folds-types", fold) for fold in range(5)]
    assert "better by {:.1f} with a standard deviation of {:.1f} over choices of toys".format(*over(folds)) in PAGE
    assert "on the other four it is ahead by {:.1f} with a standard deviation of {:.1f}".format(*over(folds[1:])) in PAGE
    assert "less than one standard deviation of what the choice of 25 toys does; the seeds overlap" in PAGE
    assert all(0 < one.difference < one.sd for one in (beside("smallnorb", "smallnorb-types", seed) for seed in range(2)))


@pytest.mark.data
@WITH_DATA
def test_the_three_toys_that_most_mistakes_are_of():
    hard = {"airplane 1": 21, "car 5": 45, "car 2": 42}  # category and number
    shares, others, of_toy = [], [], {toy: [] for toy in hard}
    for row, n in (("smallnorb", 2), ("smallnorb-types", 3), ("smallnorb-authors", 1)):
        run = stored(result(row, 0)["run"])
        data = splits.part(run, "test", None, 0)
        toys = sources_of(run, "test", data, None).of[:, 0]
        of_hard = torch.isin(toys, torch.tensor(list(hard.values())))
        for seed in range(n):
            amiss = wrong(unpack(result(row, seed)["predictions"]["test"]).long(), data.labels).double()
            shares.append(100 * (amiss * of_hard).sum() / amiss.sum())
            others.append(100 * amiss[~of_hard].mean())
            for toy, number in hard.items():
                of_toy[toy].append(100 * amiss[toys == number].mean())
    assert f"Three toys of 25 have {min(shares):.0f} to {max(shares):.0f} % of the mistakes" in PAGE
    assert "{}, {} and {} % are wrong".format(*(f"{min(found):.0f} to {max(found):.0f}" for found in of_toy.values())) in PAGE
    assert f"of the other toys it is {min(others):.1f} to {max(others):.1f} %" in PAGE
