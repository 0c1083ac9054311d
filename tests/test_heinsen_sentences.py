"""What docs/papers/heinsen2019.md types of sentences and no mark can name: it says what the files say."""

import re
from statistics import mean

import pytest
import torch
from scipy import stats
from torch import Tensor

from tests.heinsen_results import HOME, PAGE, WITH_DATA, errors, result
from torchcaps import parts
from torchcaps.metrics import wrong
from torchcaps.recipe import from_plain
from torchcaps.results import unpack

AHEAD = {  # lines of the page's table: the routing, the baseline
    "SST-5, MLP": ("sst5", "sst5-mlp"),
    "SST-5, linear": ("sst5", "sst5-linear"),
    "SST-2, MLP": ("sst2", "sst2-mlp"),
    "SST-2, linear": ("sst2", "sst2-linear"),
    "SST-2, best sizes, MLP": ("sst2-wide", "sst2-mlp-wider"),
    "SST-2, best sizes, linear": ("sst2-wide", "sst2-linear"),
}
LEFT_OUT = {  # and of that of ablations
    "SST-5, no depth": ("sst5", "sst5-no-depth"),
    "SST-2, no depth": ("sst2", "sst2-no-depth"),
    "SST-5, no mixup": ("sst5", "sst5-no-mixup"),
    "SST-5, whole sentences alone": ("sst5", "sst5-roots"),
}


def chance(p: float) -> str:
    return f"{p:.1g}" if p >= 0.001 else "less than 0.001"


def right(row: str) -> Tensor:
    """100 for every test sentence that is answered right, 0 for the others, by seed [3 n]."""
    truth = parts.part(from_plain(result(row.split("-")[0], 0)["run"]), "test", None, 0).labels
    answers = torch.stack([unpack(result(row, seed)["predictions"]["test"]).long() for seed in range(3)])
    return 100 - 100 * wrong(answers, truth).double()


def difference(row: str, other: str) -> tuple[float, float]:
    """By how many points `row` is ahead, and the standard error over sentences, each of which counts by its mean over the seeds."""
    ahead = (right(row) - right(other)).mean(0)
    return ahead.mean().item(), ahead.std().item() / len(ahead) ** 0.5


def on_validation(row: str) -> float:
    """% right in the mean of three seeds."""
    return 100 - mean(result(row, seed)["metrics"]["validation"]["error_percent"] for seed in range(3))


@pytest.mark.data
@WITH_DATA
@pytest.mark.parametrize("line", AHEAD)
def test_how_far_the_routing_is_ahead(line):
    (typed,) = re.findall(rf"^\| {line} \| (.*) \|$", PAGE, re.MULTILINE)
    row, other = AHEAD[line]
    seeds = stats.ttest_ind(right(row).mean(1), right(other).mean(1), equal_var=False)  # Welch's
    (ahead, error), interval = difference(row, other), seeds.confidence_interval()
    assert typed.split(" | ") == [
        f"{ahead:.2f}",
        f"{interval.low:.2f} to {interval.high:.2f}",
        f"{seeds.statistic:.1f}, {chance(seeds.pvalue)}",
        f"{error:.2f}, {chance(2 * stats.norm.sf(ahead / error))}",
    ]


@pytest.mark.data
@WITH_DATA
@pytest.mark.parametrize("line", LEFT_OUT)
def test_what_can_be_left_out_of_sentences(line):
    (typed,) = re.findall(rf"^\| {line} \| .* \| (.*) \|$", PAGE, re.MULTILINE)
    ahead, error = difference(*LEFT_OUT[line])
    assert typed == f"{abs(ahead):.2f} ± {error:.2f} {'fewer' if ahead > 0 else 'more'}"


def test_two_labels():
    assert min(errors("sst2-mlp-wider")) > max(errors("sst2-wide")) and "each seed of the routing is above each of the MLP" in PAGE
    assert round(18.21 * (mean(errors("sst2-mlp-wider")) - mean(errors("sst2-wide")))) == 7 and "is seven sentences of 1,821" in PAGE
    assert round(18.21 * (mean(errors("sst2-mlp")) - mean(errors("sst2")))) == 12 and "0.68 points, twelve sentences" in PAGE
    assert f"the MLP is ahead, {on_validation('sst2-mlp-wider'):.2f} against {on_validation('sst2-wide'):.2f} %." in PAGE.replace("\n", " ")
    assert f"ahead too, {on_validation('sst2-mlp'):.2f} against {on_validation('sst2'):.2f} %" in PAGE


def test_the_sizes_that_the_validation_part_likes_best():
    """Of all that have three seeds; of equals the smaller network."""
    tried = [
        folder.name for folder in sorted((HOME / "results/heinsen2019").glob("choose-sst2-*")) if len(list(folder.glob("*.json"))) >= 3
    ]
    kinds = {name: next((kind for kind in ("mlp", "linear") if kind in name), "routing") for name in tried}
    for kind, best in (("routing", {"choose-sst2-wide", "choose-sst2-wider"}), ("mlp", {"choose-sst2-mlp-wider-slow"})):
        missed = {name: sum(round(8.72 * error) for error in errors(name)) for name in tried if kinds[name] == kind}  # sentences of 872
        assert {name for name, n in missed.items() if n == min(missed.values())} == best and len(missed) > 4


def test_whole_sentences_alone_are_learnt_early():
    curves = [
        [line["watched_validation_error_percent"] for line in result("sst5-roots", seed)["curve"] if "epoch" in line] for seed in range(3)
    ]
    best = [1 + curve.index(min(curve)) for curve in curves]
    assert [len(curve) for curve in curves] == [30] * 3 and f"on the validation part after {min(best)} to {max(best)} epochs" in PAGE
