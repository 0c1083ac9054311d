"""Classifiers on the frozen features of a finished network."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.analysis.classifiers import (
    LinearDecision,
    SvmDecision,
    fit_linear,
    fit_svm,
    load_svm,
    principal_components,
    save_svm,
)
from torchcaps.data import Labelled, fingerprint
from torchcaps.data.subsets import cut, pool, pool_of
from torchcaps.probes.features import DAMAGED, look, pixels, require, rows_of
from torchcaps.runtime.environment import made_by, make_folder, own_randomness, peak_memory, pick_device
from torchcaps.train.plain import to_plain
from torchcaps.train.state import Options, Outcome
from torchcaps.train.tasks import Evaluation

if TYPE_CHECKING:
    from torchcaps.probes.kinds import FrozenClassifier, Probe


@dataclass(frozen=True, kw_only=True)
class Svm:
    """One-against-one support vector machines with a radial basis function kernel.

    `gamma=None` is one over (number of features times variance), scikit-learn's "scale".
    """

    C: float = 100.0
    gamma: float | None = 0.1

    def fit(
        self, rows: Float[Tensor, "n f"], labels: Int64[Tensor, " n"], cache: Path, jobs: int, title: str
    ) -> SvmDecision:
        """Fit the machines, or load them from the cache file if it is there and whole."""
        if cache.exists():
            try:
                return load_svm(cache)
            except DAMAGED:
                warnings.warn(f"{cache} is damaged; the support vector machines are fitted again", stacklevel=2)
        gamma = 1 / (rows.shape[1] * rows.double().var(correction=0).item()) if self.gamma is None else self.gamma
        machine = fit_svm(rows, labels, self.C, gamma, jobs, title)
        save_svm(cache, machine)
        return machine


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Softmax regression on standardised features."""

    decay: float = 1e-4

    def fit(
        self, rows: Float[Tensor, "n f"], labels: Int64[Tensor, " n"], cache: Path, jobs: int, title: str
    ) -> LinearDecision:
        """Fit the layer; it takes seconds, so the cache is not used."""
        return fit_linear(rows, labels, self.decay)


def classified(probe: FrozenClassifier, seed: int, options: Options) -> Outcome:
    """Fit the classifier and evaluate it on every part."""
    began, device = _begin(options)
    if probe.features != "pixels":
        require(probe, options.rows(probe.of, seed))
    with own_randomness(seed, device):
        known = portions(probe, seed, options)
        rows, weights = features_by_portion(probe, known, seed, options)
        classifier = fitted(probe, rows, known, weights, seed, options)
        answers = {name: classifier.predict(rows[name]) for name in probe.on}
    extras = {"n_fit": min(probe.n_fit, len(rows[probe.fit])), "n_features": rows[probe.fit].shape[1]}
    if isinstance(classifier, SvmDecision):
        extras["n_support_vectors"] = len(classifier.vectors)
    return outcome(probe, answers, known, weights, extras, began, device)


def _begin(options: Options) -> tuple[float, torch.device]:
    make_folder(options.out)
    return time.perf_counter(), pick_device(options.device)


def outcome(
    probe: Probe,
    answers: dict[str, Int64[Tensor, " n"]],
    known: dict[str, Labelled],
    weights: str,
    extras: dict[str, Any],
    began: float,
    device: torch.device,
) -> Outcome:
    """Build the outcome of a probe; `known` holds the parts it was fitted to and evaluated on."""
    labels = {name: known[name].labels for name in answers}
    maker = made_by(device)
    return Outcome(
        evaluations={
            name: Evaluation(probe.score(said, labels[name]), said.to(torch.uint8), said)
            for name, said in answers.items()
        },
        labels=labels,
        data={name: fingerprint(part) for name, part in known.items()},
        weights_sha256=weights,
        made_by=[maker],
        evaluated_by=maker,
        seconds=time.perf_counter() - began,
        peak_memory_bytes=peak_memory(device),
        extras=extras,
    )


def portions(probe: FrozenClassifier, seed: int, options: Options) -> dict[str, Labelled]:
    """Load the data that the classifier is fitted to and tested on, by name; each pool is read once."""
    pools = {name: pool(name, options.root, seed) for name in probe.pools()}
    return {name: cut(name, pools[pool_of(name)]) for name in dict.fromkeys((probe.fit, *probe.on)) if name}


def features_by_portion(
    probe: FrozenClassifier, known: dict[str, Labelled], seed: int, options: Options
) -> tuple[dict[str, Float[Tensor, "n f"]], str]:
    """Compute the features to fit and test on, by name, and the hash of the weights behind them."""
    names = tuple(dict.fromkeys((probe.fit, *probe.on)))
    if probe.features == "pixels":
        found = {name: pixels(known[name]) for name in names}
        components = principal_components(found[probe.fit][: probe.n_fit])
        return {name: components(part) for name, part in found.items()}, ""
    folder, device = options.rows(probe.of, seed), pick_device(options.device)
    wanted = {pool_of(name) for name in names}
    seen = {name: look(probe, name, folder, device, options.root, seed, options.progress) for name in wanted}
    weights = {part.weights for part in seen.values()}
    if len(weights) > 1:
        raise ValueError(
            f"the features in {folder} are of several trainings; remove that folder's features, and make them again"
        )
    return {name: rows_of(name, seen[pool_of(name)].features(probe.features)) for name in names}, weights.pop()


def fitted(
    probe: FrozenClassifier,
    rows: dict[str, Float[Tensor, "n f"]],
    known: dict[str, Labelled],
    weights: str,
    seed: int,
    options: Options,
) -> SvmDecision | LinearDecision:
    """Fit the classifier. Its cache file is named by a hash of weights, features and settings."""
    features, labels = rows[probe.fit][: probe.n_fit], known[probe.fit].labels[: probe.n_fit]
    asked = [weights, probe.features, probe.fit, len(features), to_plain(probe.classifier)]
    if not weights:
        asked.append(hashlib.sha256(features.numpy().tobytes()).hexdigest())
    key = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]
    folder = options.rows(probe.of, seed) if weights else options.out.parent
    title = f"support vector machines for {probe.features} of {probe.of or 'images'} seed {seed}, fitted to {probe.fit}"
    return probe.classifier.fit(
        features, labels, folder / f"svm-{key}.npz", options.jobs, title if options.progress else ""
    )
