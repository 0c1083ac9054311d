"""Two results on the same pictures: what each alone has wrong, and how far another choice of test pictures would move the difference.

Pictures of one digit or one toy stand or fall together, so it is digits and toys that are drawn, not pictures. What another seed of the
training does is not in it; for that there are several seeds.
"""

from collections.abc import Mapping
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.analysis.metrics import wrong
from torchcaps.data import fingerprint
from torchcaps.data.sets import affnist, smallnorb
from torchcaps.data.sets import smallnorb as smallnorb_views
from torchcaps.data.sets.pairs import Pairs
from torchcaps.data.subsets import N_DIGITS, N_WARPED, picked
from torchcaps.probes.kinds import Attack
from torchcaps.results.store import unpack
from torchcaps.train import splits
from torchcaps.train.recipe import Run, from_plain


class Sources(NamedTuple):
    """What the examples of a part show."""

    what: str  # "digits"
    of: Int64[Tensor, "n k"]  # of each example; two of a pair


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
    run = from_plain(first["run"])
    for result in (first, second):
        if isinstance(from_plain(result["run"]), Attack):
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


def _compare(run: Run, part: str, other: str, first: Mapping[str, Any], second: Mapping[str, Any], root: Path | None) -> Comparison:
    data = splits.part(run, splits.data_of(part), root, first["seed"])
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
    sources = sources_of(run, splits.data_of(part), data, root)
    counts = (int(which.sum()) for which in (a & ~b, b & ~a, a & b))
    return Comparison(part, len(a), *counts, 100 * sd_of_mean(a.double() - b.double(), sources.of), sources.what, len(sources.of.unique()))


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


def sources_of(run: Run, part: str, data: Any, root: Path | None) -> Sources:
    """By what the part shows; where nothing is known, each example is drawn by itself."""
    if isinstance(data, Pairs):
        return Sources("digits", data.picks)
    each = torch.arange(len(data.labels))
    name = part.partition("/")[0] if "/" in part else part if part in run.tests else run.data
    if name == "affnist-like":
        return Sources("digits", (picked(part, len(each)) % N_DIGITS)[:, None])
    if name == "affnist":
        return Sources("digits", affnist.read_all(root).original[:, None])
    if part == f"{splits.HELD}_warped":
        return Sources("digits", (each % (len(each) // N_WARPED))[:, None])
    if name.startswith("smallnorb"):
        return Sources("toys", (data.labels * 10 + _toys(name, part, root, len(each)))[:, None])
    return Sources("pictures" if hasattr(data, "images") else "sentences", each[:, None])


def _toys(name: str, part: str, root: Path | None, n: int) -> Int64[Tensor, " n"]:
    """Which toy of its category each picture of a smallNORB set shows."""
    if name.endswith(("-toys", "-folds")) and part == "test":
        return torch.zeros(n, dtype=torch.long)  # one of each category is kept aside
    if "-viewpoint-" in name and part in ("test", name):
        factors = smallnorb.factors("test", root)
        vary, _, familiar = name.partition("-viewpoint-")[2].partition("-")
        return factors.instance[smallnorb_views.part_of(factors, vary, "familiar" if familiar else "novel")]
    toys = smallnorb.instances("test", root)
    if part not in ("test", name, f"{name}/test") or len(toys) != n:
        raise ValueError(f"{part} of {name}: which toys its {n:,} pictures show is not known; compare on the whole test part")
    return toys
