"""Compare two results on the same test images: errors of each alone, their difference and its standard error.

Images of one digit or one toy stand or fall together, so the standard error is clustered by digits and toys. It does not cover what
another training seed would do; for that there are several seeds.
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
from torchcaps.probes.kinds import Attack, Probe, stored
from torchcaps.results.store import unpack
from torchcaps.train import splits
from torchcaps.train.recipe import Run


class Comparison(NamedTuple):
    part: str  # as the first names it
    n: int
    first_alone: int  # wrong, where the other is right
    second_alone: int
    both: int
    sd: float  # of the difference in percent, over choices of the sources; nan where it cannot be told
    what: str
    n_sources: int

    @property
    def difference(self) -> float:
        """The first's error less the second's, in percent."""
        return 100 * (self.first_alone - self.second_alone) / self.n


def compare(first: Mapping[str, Any], second: Mapping[str, Any], root: Path | None) -> list[Comparison]:
    """For each part of the first that the second was judged on as well, under whatever name."""
    run = stored(first["run"])
    for result in (first, second):
        if isinstance(stored(result["run"]), Attack):
            raise ValueError(f"{result['recipe']} attacks a network: each result has pictures of its own; compare results on one data set")
    found = {part: other for part in first["predictions"] if (other := _counterpart(part, first, second))}
    if not found:
        judged = [", ".join(f"{part} ({_hash(part, result)[:8]}…)" for part in result["predictions"]) for result in (first, second)]
        raise ValueError(
            f"no data in common: the first was judged on {judged[0]}, the second on {judged[1]}; "
            "give two results of one data set, and where the seed draws the data, of one seed"
        )
    return [_compare(run, part, other, first, second, root) for part, other in found.items()]


def _hash(part: str, result: Mapping[str, Any]) -> str:
    return str(result["data"].get(splits.data_of(part)))


def _counterpart(part: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """The second's part with the same data, of weights as they are or averaged likewise; one of the same name if there is one."""
    extra = part.removeprefix(splits.data_of(part))
    same = [
        other
        for other in second["predictions"]
        if _hash(other, second) == _hash(part, first) and other.removeprefix(splits.data_of(other)) == extra
    ]
    return part if part in same else next(iter(same), None)


def _compare(run: Run | Probe, part: str, other: str, first: Mapping[str, Any], second: Mapping[str, Any], root: Path | None) -> Comparison:
    data = run.part(splits.data_of(part), root, first["seed"])
    if (here := fingerprint(data)) != _hash(part, first):
        raise ValueError(
            f"{part}: the results were made on data with sha256 {_hash(part, first)[:8]}…, what is here has {here[:8]}…; give --data"
        )
    said = unpack(first["predictions"][part]).long(), unpack(second["predictions"][other]).long()
    if any(predictions.shape != data.labels.shape for predictions in said):
        came = " and ".join(str(list(predictions.shape)) for predictions in said)
        raise ValueError(
            f"{part}: expected a class for each example, {list(data.labels.shape)}, got {came}; compare results of classifiers"
        )
    a, b = (wrong(predictions, data.labels) for predictions in said)
    sources = groups(run.data, splits.data_of(part), data, root)
    counts = (int(which.sum()) for which in (a & ~b, b & ~a, a & b))
    sd = 100 * sd_of_mean(a.double() - b.double(), sources.index)
    return Comparison(part, len(a), *counts, sd, sources.what, len(sources.index.unique()))


def sd_of_mean(values: Float[Tensor, " n"], sources: Int64[Tensor, "n k"]) -> float:
    """Examples that share a source may vary together in any way, others by themselves (k = 1: Liang and Zeger 1986; k = 2, the dyads of
    Aronow, Samii and Assenova 2015). nan where that cannot be estimated: of one source, or where the estimate of the variance is below 0.
    """
    off = values - values.mean()
    n_sources = len(sources.unique())
    total = _squares(off.repeat_interleave(sources.shape[1]), sources.flatten())
    if sources.shape[1] == 2:  # examples of the same two sources were counted with each other for either
        same = sources.sort(1).values.unique(dim=0, return_inverse=True)[1]
        total -= _squares(off, same)
    if n_sources < 2 or total < 0:
        return nan
    return (total * n_sources / (n_sources - 1)) ** 0.5 / len(values)


def _squares(values: Float[Tensor, " n"], group: Int64[Tensor, " n"]) -> float:
    """Of each group's sum, added up."""
    return torch.zeros(int(group.max()) + 1, dtype=values.dtype).index_add_(0, group, values).square().sum().item()
