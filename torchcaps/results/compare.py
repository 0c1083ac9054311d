"""Paired comparison of two results on the same test images: errors, difference and its standard error.

Errors on images of one digit or one toy are correlated, so the standard error is clustered by digit or toy. It does not
cover the variation between training seeds; for that, compare several seeds.
"""

from collections.abc import Mapping
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.analysis.metrics import wrong
from torchcaps.data import fingerprint, groups
from torchcaps.probes.kinds import Probe, stored
from torchcaps.results.store import unpack
from torchcaps.train import splits
from torchcaps.train.recipe import Run


class Comparison(NamedTuple):
    """Paired errors of two results on one part.

    Example:

        found = Comparison("test", 1000, first_alone=12, second_alone=20, both=5, sd=0.5, what="images", n_sources=1000)
        found.difference  # -0.8
    """

    part: str  # name of the part in the first result
    n: int
    first_alone: int  # errors of the first where the second is right
    second_alone: int
    both: int
    sd: float  # standard error of the difference, in percent; nan where it cannot be estimated
    what: str  # kind of source, by which the standard error is clustered
    n_sources: int

    @property
    def difference(self) -> float:
        """Error of the first minus error of the second, in percent."""
        return 100 * (self.first_alone - self.second_alone) / self.n


def compare(first: Mapping[str, Any], second: Mapping[str, Any], root: Path | None) -> list[Comparison]:
    """Compare two results on every part that both were evaluated on; its names may differ."""
    run = stored(first["run"])
    for result in (first, second):
        if stored(result["run"]).own_images:
            raise ValueError(
                f"{result['recipe']} attacks a network: each result has images of its own; "
                "compare results on one data set"
            )
    found = {part: other for part in first["predictions"] if (other := _counterpart(part, first, second))}
    if not found:
        evaluated = [
            ", ".join(f"{part} ({_hash(part, result)[:8]}…)" for part in result["predictions"])
            for result in (first, second)
        ]
        raise ValueError(
            f"no data in common: the first was evaluated on {evaluated[0]}, the second on {evaluated[1]}; "
            "give two results of one data set, and where the seed draws the data, of one seed"
        )
    return [_compare(run, part, other, first, second, root) for part, other in found.items()]


def _hash(part: str, result: Mapping[str, Any]) -> str:
    return str(result["data"].get(splits.data_of(part)))


def _counterpart(part: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """Find the part of the second result with the same data and kind of weights, preferably of the same name."""
    extra = part.removeprefix(splits.data_of(part))
    same = [
        other
        for other in second["predictions"]
        if _hash(other, second) == _hash(part, first) and other.removeprefix(splits.data_of(other)) == extra
    ]
    return part if part in same else next(iter(same), None)


def _compare(
    run: Run | Probe, part: str, other: str, first: Mapping[str, Any], second: Mapping[str, Any], root: Path | None
) -> Comparison:
    data = run.part(splits.data_of(part), root, first["seed"])
    if (here := fingerprint(data)) != _hash(part, first):
        raise ValueError(
            f"{part}: the results were made on data with sha256 {_hash(part, first)[:8]}…, "
            f"what is here has {here[:8]}…; give --data"
        )
    said = unpack(first["predictions"][part]).long(), unpack(second["predictions"][other]).long()
    if any(predictions.shape != data.labels.shape for predictions in said):
        came = " and ".join(str(list(predictions.shape)) for predictions in said)
        raise ValueError(
            f"{part}: expected a class for each example, {list(data.labels.shape)}, got {came}; "
            "compare results of classifiers"
        )
    a, b = (wrong(predictions, data.labels) for predictions in said)
    sources = groups(run.data, splits.data_of(part), data, root)
    counts = (int(which.sum()) for which in (a & ~b, b & ~a, a & b))
    sd = 100 * sd_of_mean(a.double() - b.double(), sources.index)
    return Comparison(part, len(a), *counts, sd, sources.what, len(sources.index.unique()))


def sd_of_mean(values: Float[Tensor, " n"], sources: Int64[Tensor, "n k"]) -> float:
    """Compute the cluster-robust standard error of a mean; examples are correlated if they share a source.

    One source each (k = 1): Liang and Zeger 1986. Two (k = 2), dyads: Aronow, Samii and Assenova 2015.
    Return nan for a single source, or if the estimated variance is negative.
    """
    off = values - values.mean()
    n_sources = len(sources.unique())
    total = _squares(off.repeat_interleave(sources.shape[1]), sources.flatten())
    if sources.shape[1] == 2:  # pairs of examples with both sources in common were counted twice
        same = sources.sort(1).values.unique(dim=0, return_inverse=True)[1]
        total -= _squares(off, same)
    if n_sources < 2 or total < 0:
        return nan
    return (total * n_sources / (n_sources - 1)) ** 0.5 / len(values)


def _squares(values: Float[Tensor, " n"], group: Int64[Tensor, " n"]) -> float:
    """Compute the sum over groups of the squared group sum."""
    return torch.zeros(int(group.max()) + 1, dtype=values.dtype).index_add_(0, group, values).square().sum().item()
