"""Runs that train no network, carried out: classifiers of frozen features, and attacks (readings.py says what they are)."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.analysis.attacks import Answers, Scores, fgsm, frozen, pgd
from torchcaps.analysis.classifiers import (
    Components,
    LinearDecision,
    SvmDecision,
    fit_linear,
    fit_svm,
    load_svm,
    principal_components,
    save_svm,
)
from torchcaps.data import Labelled, fingerprint
from torchcaps.data.batches.images import Batch, in_order
from torchcaps.data.subsets import cut, pool, pool_of
from torchcaps.models.sparsecaps import features_of
from torchcaps.probes.features import finished_weights, look, network, pixels, require, rows_of
from torchcaps.probes.kinds import Attack, Linear, Reading
from torchcaps.runtime.environment import made_by, own_randomness, peak_memory
from torchcaps.runtime.metrics_log import progress_bar
from torchcaps.train import splits
from torchcaps.train.recipe import to_plain
from torchcaps.train.state import Trained
from torchcaps.train.tasks import Evaluation

AT_ONCE = 500  # pictures under attack


@dataclass(kw_only=True)
class Place:
    """Where such a run finds its network and leaves its classifier, and how it runs. Nothing here may change a result."""

    folder_of: Callable[[str], Path]  # by the name of a row: where its checkpoint and its features lie
    own: Path
    device: torch.device
    seed: int
    root: Path | None = None
    jobs: int = 1
    progress: bool = True


def derive(run: Reading, place: Place) -> Trained:
    """Fit, answer, and say who did it."""
    began = time.perf_counter()
    if run.features != "pixels" and run.classifier is not None:
        require(run, place.folder_of(run.of))
    with own_randomness(place.seed, place.device):
        known = {name: splits.part(run, name, place.root, place.seed) for name in splits.names(run)} if isinstance(run, Attack) else {}
        known |= _portions(run, place)
        data = {name: known[name] for name in splits.names(run)}
        said, weights, extras = _attacked(run, data, place) if isinstance(run, Attack) else _read(run, known, place)
    evaluations = {name: Evaluation(run.judge().score(said[name], data[name].labels), said[name].to(torch.uint8)) for name in data}
    hashes = {name: fingerprint(part) for name, part in known.items()}  # with what was fitted
    maker = made_by(place.device)
    return Trained(
        model=None, weights=weights, evaluations=evaluations, labels={name: part.labels for name, part in data.items()}, steps=0, planned=0,
        seconds=time.perf_counter() - began, peak_memory_bytes=peak_memory(place.device), curve=[], data=hashes, routing="",
        diagnostics={}, extras=extras, met=None, made_by=[maker], evaluated_by=maker,
    )  # fmt: skip


def _portions(run: Reading, place: Place) -> dict[str, Labelled]:
    """What is fitted and asked, by name; a pool is read once."""
    pools = {name: pool(name, place.root, place.seed) for name in run.pools() if run.classifier is not None}
    return {name: cut(name, pools[pool_of(name)]) for name in dict.fromkeys((run.fit, *run.on)) if pools and name}


def _read(run: Reading, known: dict[str, Labelled], place: Place) -> tuple[dict[str, Int64[Tensor, " n"]], str, dict[str, Any]]:
    rows, weights = features_by_portion(run, known, place)
    classifier = fitted(run, rows[run.fit], known[run.fit].labels, weights, place)
    said = {name: classifier.predict(rows[name]) for name in run.on}
    machine = {"n_support_vectors": len(classifier.vectors)} if isinstance(classifier, SvmDecision) else {}
    return said, weights, {"n_fit": min(run.n_fit, len(rows[run.fit])), "n_features": rows[run.fit].shape[1], **machine}


def features_by_portion(run: Reading, known: dict[str, Labelled], place: Place) -> tuple[dict[str, Float[Tensor, "n f"]], str]:
    """What the classifier is fitted to and asked, by name, and the hash of the weights that made it."""
    names = tuple(dict.fromkeys((run.fit, *run.on)))
    if run.features == "pixels":
        found = {name: pixels(known[name]) for name in names}
        components: Components = principal_components(found[run.fit][: run.n_fit])
        return {name: components(part) for name, part in found.items()}, ""
    folder = place.folder_of(run.of)
    wanted = {pool_of(name) for name in names}
    seen = {name: look(run, name, folder, place.device, place.root, place.seed, place.progress) for name in wanted}
    weights = {part.weights for part in seen.values()}
    if len(weights) > 1:
        raise ValueError(f"the features in {folder} are of several trainings; remove that folder's features, and make them again")
    return {name: rows_of(name, seen[pool_of(name)].features(run.features)) for name in names}, weights.pop()


def fitted(
    run: Reading, rows: Float[Tensor, "n f"], labels: Int64[Tensor, " n"], weights: str, place: Place
) -> SvmDecision | LinearDecision:
    """The classifier; a support vector machine from its file, where the same one was fitted before."""
    rows, labels = rows[: run.n_fit], labels[: run.n_fit]
    if isinstance(run.classifier, Linear):
        return fit_linear(rows, labels, run.classifier.decay)
    asked = [weights, run.features, run.fit, len(rows), to_plain(run.classifier)]
    if not weights:
        asked.append(hashlib.sha256(rows.numpy().tobytes()).hexdigest())
    key = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]
    path = (place.folder_of(run.of) if weights else place.own.parent) / f"svm-{key}.npz"
    if path.exists():
        return load_svm(path)
    title = f"support vector machines for {run.features} of {run.of or 'pictures'} seed {place.seed}, fitted to {run.fit}" * place.progress
    own = run.classifier.gamma
    gamma = 1 / (rows.shape[1] * rows.double().var(correction=0).item()) if own is None else own
    machine = fit_svm(rows, labels, run.classifier.C, gamma, place.jobs, title)
    save_svm(path, machine)
    return machine


def _attacked(run: Attack, data: dict[str, Labelled], place: Place) -> tuple[dict[str, Int64[Tensor, " n"]], str, dict[str, Any]]:
    """Answers to the pictures as they are, and to each attack; the pictures are made on the source, where there is one."""
    with frozen(network(run, place.folder_of(run.of), place.device)) as model:
        own = _answering(run, model, place)
        if run.source is None:
            return _answers(run, data, own, own, place), _weights(run, place), {"n_images": run.n_images}
        with frozen(network(run.source, place.folder_of(run.source.of), place.device)) as other:
            made_on = _answering(run.source, other, place)
            return _answers(run, data, own, made_on, place), _weights(run, place), {"n_images": run.n_images}


def _weights(run: Reading, place: Place) -> str:
    return finished_weights(run, place.folder_of(run.of)) or ""


def _answering(run: Attack, model: torch.nn.Module, place: Place) -> tuple[Scores, Answers]:
    """How the network answers: scores with a gradient, and what it says."""
    if run.classifier is None:
        return (lambda images: model(images).activity), (lambda images: model(images).activity.argmax(-1))
    known = _portions(run, place)
    rows, weights = features_by_portion(run, known, place)
    classifier = fitted(run, rows[run.fit], known[run.fit].labels, weights, place).to(place.device).float()
    kind = run.features

    def seen(images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b f"]:
        return getattr(features_of(model.latent(images)), kind)

    return (lambda images: classifier(seen(images))), (lambda images: classifier.predict(seen(images)))


def _answers(
    run: Attack, data: dict[str, Labelled], own: tuple[Scores, Answers], made_on: tuple[Scores, Answers], place: Place
) -> dict[str, Int64[Tensor, " n"]]:
    said: dict[str, list[Tensor]] = {name: [] for name in data}
    rng, total = torch.Generator().manual_seed(place.seed), run.n_images * len(data)
    with progress_bar(f"attacks on {run.of} seed {place.seed}", total, 0, place.progress) as show:
        for (method, strength), (name, part) in zip(run.kinds(), data.items(), strict=True):
            for batch in in_order(part, AT_ONCE, place.device, run.augment):
                changed = _changed(run, method, strength / 100, made_on, batch, rng)
                with torch.no_grad():
                    said[name].append(own[1](changed).cpu())
                show(sum(len(answers) for answers_of in said.values() for answers in answers_of), name)
    return {name: torch.cat(answers) for name, answers in said.items()}


def _changed(run: Attack, method: str, strength: float, made_on: tuple[Scores, Answers], batch: Batch, rng: torch.Generator) -> Tensor:
    scores, answers = made_on
    if method == "clean":
        return batch.images
    if method == "fgsm":
        return fgsm(scores, batch.images, batch.labels, strength)
    return pgd(scores, answers, batch.images, batch.labels, strength, steps=run.steps, restarts=run.restarts, rng=rng)
