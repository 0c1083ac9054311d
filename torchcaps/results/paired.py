"""Paired comparison of two rows, each with one or several seeds: difference of their errors and a confidence interval.

Two variances are added: that of other test images, clustered by what they show (`compare.sd_of_mean`), and that of
other training seeds. With one seed on either side only the first is known, and the interval says so.
"""

import hashlib
from collections.abc import Mapping, Sequence
from math import isnan, nan, sqrt
from pathlib import Path
from statistics import variance
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.analysis.metrics import wrong
from torchcaps.data import fingerprint, groups
from torchcaps.probes.kinds import stored
from torchcaps.results.compare import sd_of_mean
from torchcaps.results.store import unpack
from torchcaps.train import splits

LEVEL = 0.95


class Paired(NamedTuple):
    """Error of the first row minus that of the second, in percent, with a confidence interval."""

    difference: float
    low: float  # nan where the variance cannot be estimated
    high: float
    seeds: bool  # whether the interval covers training seeds as well as test images


Loaded = dict[str, tuple[Tensor, Tensor]]  # labels and sources of a part, by the hash of its data


def paired(
    first: Sequence[Mapping[str, Any]],
    second: Sequence[Mapping[str, Any]],
    part: str,
    root: Path | None,
    loaded: Loaded,
) -> Paired:
    """Compare the results of two rows on one part; both must have the same examples in the same order.

    Parts that are not in `loaded` are loaded, checked by their hash and added to it.
    """
    labels, sources = _examples(first, part, root, loaded)
    if not torch.equal(labels, _examples(second, part, root, loaded)[0]):
        raise ValueError(
            f"{part}: {first[0]['recipe']} and {second[0]['recipe']} were evaluated on other examples; "
            "compare rows of one test set"
        )
    errors = [_errors(results, part, labels) for results in (first, second)]
    return interval(*errors, sources)


def interval(
    first: Float[Tensor, "seeds n"], second: Float[Tensor, "seeds n"], sources: Int64[Tensor, "n k"]
) -> Paired:
    """Compute the interval from errors (0 or 1) by seed and example."""
    each = first.mean(0) - second.mean(0)
    # variances of the difference with their degrees of freedom: examples, then the seeds of each row
    parts = [(sd_of_mean(each, sources) ** 2, len(sources.unique()) - 1)]
    seeds = min(len(first), len(second)) > 1
    if seeds:
        parts += [(variance(errors.mean(1).tolist()) / len(errors), len(errors) - 1) for errors in (first, second)]
    difference = 100 * each.mean().item()
    half = 100 * _half_width(parts)
    return Paired(difference, difference - half, difference + half, seeds)


def _half_width(parts: Sequence[tuple[float, int]]) -> float:
    """Half width of a t interval; the degrees of freedom are Satterthwaite's (1946)."""
    total = sum(part for part, _ in parts)
    if isnan(total):
        return nan
    if not total:
        return 0.0
    from scipy.stats import t  # comes with scikit-learn, which only the refreshing of the file needs

    freedom = total**2 / sum(part**2 / each for part, each in parts)
    return float(t.ppf((1 + LEVEL) / 2, freedom)) * sqrt(total)


def _examples(
    results: Sequence[Mapping[str, Any]], part: str, root: Path | None, loaded: Loaded
) -> tuple[Tensor, Tensor]:
    """Return labels and sources of the part that every result was evaluated on."""
    name = splits.data_of(part)
    hashes = {str(result["data"].get(name)) for result in results}
    if not hashes <= loaded.keys():
        run = stored(results[0]["run"])
        data = run.part(name, root, results[0]["seed"])
        here = fingerprint(data)
        loaded[here] = data.labels, groups(run.data, name, data, root).index
        if hashes != {here}:
            there = ", ".join(sorted(other[:8] for other in hashes))
            raise ValueError(
                f"{results[0]['recipe']}: {part} has sha256 {there}, the data here {here[:8]}; "
                "name the folder of the data by TORCHCAPS_DATA, and compare seeds with one test set"
            )
    return loaded[hashes.pop()]


def _errors(results: Sequence[Mapping[str, Any]], part: str, labels: Tensor) -> Float[Tensor, "seeds n"]:
    return torch.stack([wrong(unpack(result["predictions"][part]).long(), labels).double() for result in results])


def predictions_sha256(results: Sequence[Mapping[str, Any]], part: str) -> str:
    """Hash the data and predictions that a comparison reads, to twelve hexadecimal digits."""
    digest = hashlib.sha256()
    for result in results:
        packed = result["predictions"][part]["zlib_base64"]
        digest.update(f"{result['seed']} {result['data'].get(splits.data_of(part))} {packed}\n".encode())
    return digest.hexdigest()[:12]
