"""Adversarial attacks on a finished network, directly or through a classifier on its features."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.analysis.attacks import Answers, Scores, fgsm, frozen, pgd
from torchcaps.data import Labelled
from torchcaps.data.augment import Batch
from torchcaps.data.batches.images import in_order
from torchcaps.models.sparsecaps import features_of
from torchcaps.probes.classifier import features_by_portion, fitted, outcome, portions
from torchcaps.probes.features import finished_weights, network, require
from torchcaps.runtime.environment import make_folder, own_randomness, pick_device
from torchcaps.runtime.metrics_log import progress_bar
from torchcaps.train.state import Options, Outcome

if TYPE_CHECKING:
    from torchcaps.probes.kinds import Attack

AT_ONCE = 500  # batch size of an attack


class Answering(NamedTuple):
    """Outputs of an attacked network: differentiable scores, and predicted classes."""

    scores: Scores
    classes: Answers


def attacked(probe: Attack, seed: int, options: Options) -> Outcome:
    """Evaluate a network on clean images and under each attack, crafted on `probe.source` if given (transfer)."""
    make_folder(options.out)
    began, device, folder = time.perf_counter(), pick_device(options.device), options.rows(probe.of, seed)
    if probe.classifier is not None:
        require(probe, folder)
    with own_randomness(seed, device):
        data = {name: probe.part(name, options.root, seed) for name in probe.parts()}
        known = data | (portions(probe, seed, options) if probe.classifier is not None else {})
        with frozen(network(probe, folder, device)) as model:
            own = _answering(probe, model, seed, options)
            if probe.source is None:
                answers = _answers(probe, data, own, own, seed, options)
            else:
                with frozen(network(probe.source, options.rows(probe.source.of, seed), device)) as other:
                    answers = _answers(probe, data, own, _answering(probe.source, other, seed, options), seed, options)
    weights = finished_weights(probe, folder) or ""
    return outcome(probe, answers, known, weights, {"n_images": probe.n_images}, began, device)


def _answering(probe: Attack, model: nn.Module, seed: int, options: Options) -> Answering:
    if probe.classifier is None:
        return Answering(lambda images: model(images).confidence, lambda images: model(images).confidence.argmax(-1))
    known = portions(probe, seed, options)
    rows, weights = features_by_portion(probe, known, seed, options)
    classifier = fitted(probe, rows, known, weights, seed, options).to(pick_device(options.device)).float()

    def seen(images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b f"]:
        return getattr(features_of(model.latent(images)), probe.features)

    return Answering(lambda images: classifier(seen(images)), lambda images: classifier.predict(seen(images)))


def _answers(
    probe: Attack, data: dict[str, Labelled], own: Answering, made_on: Answering, seed: int, options: Options
) -> dict[str, Int64[Tensor, " n"]]:
    answers: dict[str, list[Tensor]] = {name: [] for name in data}
    rng, total, done = torch.Generator().manual_seed(seed), probe.n_images * len(data), 0
    with progress_bar(f"attacks on {probe.of} seed {seed}", total, 0, options.progress) as show:
        for (method, strength), (name, part) in zip(probe.kinds(), data.items(), strict=True):
            for batch in in_order(part, AT_ONCE, pick_device(options.device), probe.network.augment):
                changed = _changed(probe, method, strength / 100, made_on, batch, rng)
                with torch.no_grad():
                    answers[name].append(own.classes(changed).cpu())
                done += len(batch.labels)
                show(done, name)
    return {name: torch.cat(parts) for name, parts in answers.items()}


def _changed(
    probe: Attack, method: str, strength: float, made_on: Answering, batch: Batch, rng: torch.Generator
) -> Tensor:
    if method == "clean":
        return batch.images
    if method == "fgsm":
        return fgsm(made_on.scores, batch.images, batch.labels, strength)
    steps = {"steps": probe.steps, "restarts": probe.restarts, "rng": rng}
    return pgd(made_on.scores, made_on.classes, batch.images, batch.labels, strength, **steps)
