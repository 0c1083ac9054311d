"""By how far the routing is ahead on sentences, as docs/papers/heinsen2019.md types it."""

import re

import pytest
import torch
from scipy import stats

from tests.heinsen_results import PAGE, WITH_DATA, result
from torchcaps import parts
from torchcaps.metrics import wrong
from torchcaps.recipe import from_plain
from torchcaps.results import unpack


def chance(p: float) -> str:
    return f"{p:.1g}" if p >= 0.001 else "less than 0.001"


@pytest.mark.data
@WITH_DATA
@pytest.mark.parametrize("labels", ["5", "2"])
@pytest.mark.parametrize("baseline", ["mlp", "linear"])
def test_how_far_the_routing_is_ahead_on_sentences(labels, baseline):
    (typed,) = re.findall(rf"^\| SST-{labels}, {baseline} \| (.*) \|$", PAGE, re.MULTILINE | re.IGNORECASE)
    truth = parts.part(from_plain(result(f"sst{labels}", 0)["run"]), "test", None, 0).labels
    answers = [
        torch.stack([unpack(result(row, seed)["predictions"]["test"]).long() for seed in range(3)])
        for row in (f"sst{labels}", f"sst{labels}-{baseline}")
    ]
    routing, other = (100 - 100 * wrong(each, truth).double() for each in answers)
    seeds = stats.ttest_ind(routing.mean(1), other.mean(1), equal_var=False)  # Welch's
    ahead, interval = (routing - other).mean(0), seeds.confidence_interval()  # of each sentence, by its mean over the seeds
    error = ahead.std().item() / len(ahead) ** 0.5
    assert typed.split(" | ") == [
        f"{ahead.mean():.2f}",
        f"{interval.low:.2f} to {interval.high:.2f}",
        f"{seeds.statistic:.1f}, {chance(seeds.pvalue)}",
        f"{error:.2f}, {chance(2 * stats.norm.sf(ahead.mean().item() / error))}",
    ]
