"""Result files of Heinsen 2019 and what tests of its page compute from them."""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor

from torchcaps.analysis.metrics import wrong
from torchcaps.pretrained.registry import FOLDER
from torchcaps.probes.kinds import stored
from torchcaps.results.compare import sd_of_mean, sources_of
from torchcaps.results.store import read_result, unpack
from torchcaps.train import splits
from torchcaps.train.recipe import Run

HOME = Path(__file__).parents[2]
PAGE = (HOME / "docs/papers/heinsen2019.md").read_text()
EARLIER = [100 * wrong_ones / 24_300 for wrong_ones in (513, 572, 384)]  # of `smallnorb` before biases of 0, files in the history
HARD = torch.tensor([21, 45, 42])  # airplane 1, car 5, car 2
SAME = [(seed, seed) for seed in range(3)]  # seeds
CHOSEN = {  # for sentences, by the last round: what was run on the validation part, and the row of the same settings
    ("sst5", "routing"): ("choose-sst5-fast", "sst5"),
    ("sst5", "MLP"): ("choose-sst5-mlp-slow-dropout", "sst5-mlp-dropout"),
    ("sst5", "linear probe"): ("choose-sst5-linear-slow-no-mixup", "sst5-linear"),
    ("sst2", "routing"): ("choose-sst2-wide", "sst2-wide"),
    ("sst2", "MLP"): ("choose-sst2-mlp-wider-slower", "sst2-mlp-wider-slow"),
    ("sst2", "linear probe"): ("choose-sst2-linear-slow-no-mixup", "sst2-linear"),
}
WITH_DATA = pytest.mark.skipif("TORCHCAPS_DATA" not in os.environ, reason="TORCHCAPS_DATA names no folder")


def result(row: str, seed: int) -> dict:
    return read_result(HOME / f"results/heinsen2019/{row}/{seed}.json")


def errors(row: str, seeds: Sequence[int] = range(3)) -> list[float]:
    return [result(row, seed)["metrics"]["test"]["error_percent"] for seed in seeds]


def n_parameters(run: Run) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in run.build().parameters())


def welch(some: list[float], others: list[float]) -> float:
    """p of Welch's t test."""
    return stats.ttest_ind(some, others, equal_var=False).pvalue


def amiss(found: dict, labels: Tensor, part: str = "test") -> Tensor:
    return wrong(unpack(found["predictions"][part]).long(), labels).double()


@cache
def shown(row: str, fold: int = 0) -> tuple[Tensor, Tensor]:
    """The label of each picture that `row` is judged on, and its toy, as `torchcaps compare` has them."""
    run = stored(result(row, fold)["run"])
    data = splits.part(run, "test", None, fold)
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


def again() -> float:
    """The error of a second run of the row's seed 0, whose weights are in the package."""
    return read_result(FOLDER / "em-capsnet-smallnorb.json")["metrics"]["test"]["error_percent"]


def ten_runs() -> list[float]:
    """Errors of the row's network, whatever the precision and the first biases."""
    return errors("smallnorb") + errors("smallnorb-float32") + EARLIER + [again()]
