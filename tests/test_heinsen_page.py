"""Differences that docs/papers/heinsen2019.md types, which no mark can name: they say what the files say."""

import os
import re
from pathlib import Path
from statistics import mean

import pytest
import torch
from scipy import stats
from torch import Tensor

from torchcaps import parts
from torchcaps.compare import sd_of_mean, sources_of
from torchcaps.metrics import wrong
from torchcaps.recipe import from_plain
from torchcaps.results import read_result, unpack

HOME = Path(__file__).parent.parent
PAGE = (HOME / "docs/papers/heinsen2019.md").read_text()
pytestmark = [pytest.mark.data, pytest.mark.skipif("TORCHCAPS_DATA" not in os.environ, reason="TORCHCAPS_DATA names no folder")]


def result(row: str, seed: int) -> dict:
    return read_result(HOME / f"results/heinsen2019/{row}/{seed}.json")


def amiss(found: dict, labels: Tensor, part: str = "test") -> Tensor:
    return wrong(unpack(found["predictions"][part]).long(), labels).double()


def test_statistics_of_unmixed_pictures_on_folds():
    gains, variances = [], []
    for fold in range(5):
        found = result("choose-folds", fold)
        run = from_plain(found["run"])
        data = parts.part(run, "test", None, fold)
        fewer = amiss(found, data.labels) - amiss(found, data.labels, "test_unmixed")
        gains.append(100 * fewer.mean().item())
        variances.append((100 * sd_of_mean(fewer, sources_of(run, "test", data, None).of)) ** 2)
    sd = sum(variances) ** 0.5 / 5  # no toy is in two folds, and all folds are of one size
    assert f"a difference of {mean(gains):.1f} with a standard deviation of {sd:.1f} over choices of toys" in PAGE


def chance(p: float) -> str:
    return f"{p:.1g}" if p >= 0.001 else "less than 0.001"


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
