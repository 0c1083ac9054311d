"""Two results on the same pictures: what each alone has wrong, and how far chance moves the difference.

That chance is the choice of what was tested: other digits, other toys. What the training's seed does is not in it; for that there are
several seeds.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from torchcaps import parts
from torchcaps.data import fingerprint, smallnorb
from torchcaps.data.pairs import Pairs
from torchcaps.data.portions import N_DIGITS, picked
from torchcaps.data.views import N_WARPED
from torchcaps.recipe import Run, from_plain
from torchcaps.results import unpack


class Sources(NamedTuple):
    """What the examples of a part are made of. One digit is in many pairs, one toy in many pictures: these stand or fall together."""

    what: str  # "digits"
    of: Int64[Tensor, "n k"]  # of each example; two of a pair


class Comparison(NamedTuple):
    part: str
    n: int
    first_alone: int  # wrong, where the other is right
    second_alone: int
    both: int
    sd: float  # of the difference in percent, over choices of the sources
    what: str
    n_sources: int

    @property
    def difference(self) -> float:
        """The first's error less the second's, in percent."""
        return 100 * (self.first_alone - self.second_alone) / self.n


def compare(first: Mapping[str, Any], second: Mapping[str, Any], root: Path | None) -> list[Comparison]:
    """For each part on which both were judged."""
    run = from_plain(first["run"])
    common = [part for part in first["predictions"] if part in second["predictions"]]
    same = [part for part in common if first["data"].get(_data_of(part)) == second["data"].get(_data_of(part))]
    if not same:
        judged = [", ".join(result["predictions"]) for result in (first, second)]
        why = (
            f"{', '.join(common)} of the two are other data"
            if common
            else f"the first was judged on {judged[0]}, the second on {judged[1]}"
        )
        raise ValueError(f"nothing to compare: {why}; give two results of one data set, and where their seeds draw the data, of one seed")
    return [_compare(run, part, first, second, root) for part in same]


def _data_of(part: str) -> str:
    """Averaged weights are judged on the same pictures."""
    return part.removesuffix("_ema").removesuffix("_unmixed")


def _compare(run: Run, part: str, first: Mapping[str, Any], second: Mapping[str, Any], root: Path | None) -> Comparison:
    data = parts.part(run, _data_of(part), root, first["seed"])
    if fingerprint(data) != first["data"][_data_of(part)]:
        raise ValueError(f"the data at hand for {part} is not what the results were made on; `torchcaps verify` says more")
    a, b = (wrong(unpack(result["predictions"][part]).long(), data.labels) for result in (first, second))
    sources = sources_of(run, _data_of(part), data, root)
    sd = 100 * sd_of_mean(a.double() - b.double(), sources.of)
    return Comparison(
        part, len(a), int((a & ~b).sum()), int((b & ~a).sum()), int((a & b).sum()), sd, sources.what, len(sources.of.unique())
    )


def wrong(predictions: Int64[Tensor, "n *k"], labels: Int64[Tensor, "n *k"]) -> Bool[Tensor, " n"]:
    """Of two classes in a picture both must be found."""
    return predictions != labels if labels.ndim == 1 else (predictions.sort(-1).values != labels.sort(-1).values).any(-1)


def sd_of_mean(values: Float[Tensor, " n"], sources: Int64[Tensor, "n k"]) -> float:
    """Examples that share a source may vary together in any way, others by themselves (k = 1: Liang and Zeger 1986; k = 2, the dyads of
    Aronow, Samii and Assenova 2015).
    """
    off = values - values.mean()
    n_sources = len(sources.unique())
    sums = torch.zeros(int(sources.max()) + 1, dtype=off.dtype).index_add_(0, sources.flatten(), off.repeat_interleave(sources.shape[1]))
    # the square of a sum holds each example's own square once for every source it has, which is once too often for a pair
    total = sums.square().sum() - (sources.shape[1] - 1) * off.square().sum()
    return (total.clamp(min=0) * n_sources / max(n_sources - 1, 1)).sqrt().item() / len(values)


def sources_of(run: Run, part: str, data: Any, root: Path | None) -> Sources:
    """By what the part shows; where nothing is known, each example is drawn by itself."""
    if isinstance(data, Pairs):
        return Sources("digits", data.picks)
    each = torch.arange(len(data.labels))
    if part.startswith("affnist-like") or (part == "test" and run.data == "affnist-like"):
        return Sources("digits", (picked(part, len(each)) % N_DIGITS)[:, None])
    if part == f"{parts.HELD}_warped":
        return Sources("digits", (each % (len(each) // N_WARPED))[:, None])
    if run.data in ("smallnorb", "smallnorb-48", "smallnorb-48-thinned") and part == "test":
        return Sources("toys", (data.labels * 10 + smallnorb.instances("test", root))[:, None])
    if run.data.startswith("smallnorb") and run.data.endswith(("-toys", "-folds")) and part == "test":
        return Sources("toys", data.labels[:, None])  # one of each category
    return Sources("pictures" if hasattr(data, "images") else "sentences", each[:, None])
