"""Numbers behind the figures: example selection, perturbed poses, coupling mass. Nothing here draws.

Letters beyond the usual: `k` the columns of a sweep, `t` the routing iterations.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from einops import rearrange, reduce
from jaxtyping import Float, Int64, Integer, UInt8
from torch import Tensor, nn

from torchcaps.analysis.metrics import coupling_entropy
from torchcaps.analysis.routing import evaluating
from torchcaps.data import Labelled
from torchcaps.data.augment import Augmentation, as_seen
from torchcaps.data.batches.images import in_order
from torchcaps.ops import length

Picture = UInt8[Tensor, "c h w"] | Float[Tensor, "c h w"]
AT_ONCE = 100  # images per batch: unfused routing holds the votes of all of them in memory
OFFSETS = tuple(0.05 * k for k in range(-5, 6))  # Sabour 2017, figure 4; the middle one is exactly zero


class Examples(NamedTuple):
    """Indices into a data set, in its order."""

    correct: list[int]  # the first correct one of each class
    failures: list[int]


class Pictured(NamedTuple):
    """One column of figure 3: an input and the reconstruction from one of its class capsules."""

    index: int
    label: int
    prediction: int
    target: int  # class whose capsule is decoded
    picture: Float[Tensor, "c h w"]


class RoutingView(NamedTuple):
    """Routing of one image, by iteration. Mass is a fraction of the summed length of all input capsules."""

    mass: Float[Tensor, "t j"]
    places: Float[Tensor, "t h w"]  # coupling mass of the label by position; sums to its mass
    entropy: list[float]
    lengths: Float[Tensor, "t j"]


def as_input(
    model: nn.Module,
    images: UInt8[Tensor, "*b c h w"] | Float[Tensor, "*b c h w"],
    augment: Sequence[Augmentation] = (),
) -> Float[Tensor, "*b c h w"]:
    """Move images to the model's device; bytes are preprocessed by `augment` as in evaluation, floats are unchanged."""
    images = images.to(next(model.parameters()).device)
    return as_seen(images, augment) if images.dtype == torch.uint8 else images


def predict(model: nn.Module, data: Labelled, augment: Sequence[Augmentation] = ()) -> Int64[Tensor, " n"]:
    """Predict a class for every image: the longest capsule, or the highest score."""
    device = next(model.parameters()).device
    with evaluating(model):
        answers = (model(batch.images) for batch in in_order(data, AT_ONCE, device, augment))
        # a network without capsules returns only its scores
        return torch.cat([(said if isinstance(said, Tensor) else said.confidence).argmax(-1) for said in answers]).cpu()


def pick_examples(
    predictions: Integer[Tensor, " n"], labels: Int64[Tensor, " n"], n_classes: int, n_failures: int = 5
) -> Examples:
    """Pick the first correct image of each class and the first few errors; nothing is chosen for its looks."""
    right = (predictions == labels).nonzero().flatten().tolist()
    wrong = (predictions != labels).nonzero().flatten().tolist()
    first = {int(labels[index]): index for index in reversed(right)}
    return Examples([first[label] for label in range(n_classes) if label in first], wrong[:n_failures])


def picture_examples(
    model: nn.Module,
    data: Labelled,
    predictions: Integer[Tensor, " n"],
    examples: Examples,
    augment: Sequence[Augmentation] = (),
) -> list[Pictured]:
    """Reconstruct each correct example once and each error twice: from the true class and from the predicted one."""
    columns = [(index, int(data.labels[index])) for index in examples.correct]
    for index in examples.failures:
        columns += [(index, int(data.labels[index])), (index, int(predictions[index]))]
    if not columns:
        return []
    images = as_input(model, data.images[[index for index, _ in columns]], augment)
    with evaluating(model):
        poses = model(images).poses
        pictures = model.reconstruct(poses, torch.tensor([target for _, target in columns], device=poses.device)).cpu()
    return [
        Pictured(index, int(data.labels[index]), int(predictions[index]), target, picture)
        for (index, target), picture in zip(columns, pictures, strict=True)
    ]


def sweep_poses(
    poses: Float[Tensor, "j e"], label: int, offsets: tuple[float, ...] = OFFSETS
) -> Float[Tensor, "e k j e"]:
    """Copy one image's class capsules; copy (e, k) perturbs dimension e of the label's capsule by offset k."""
    n_dims = poses.shape[-1]
    steps = torch.tensor(offsets, dtype=poses.dtype, device=poses.device)
    copies = poses.expand(n_dims, len(offsets), *poses.shape).clone()
    copies[:, :, label] += torch.einsum("de,k->dke", torch.eye(n_dims, dtype=poses.dtype, device=poses.device), steps)
    return copies


def sweep(
    model: nn.Module, image: Picture, label: int, augment: Sequence[Augmentation] = ()
) -> Float[Tensor, "e k c h w"]:
    """Decode every copy of `sweep_poses`."""
    with evaluating(model):
        copies = sweep_poses(model(as_input(model, image.unsqueeze(0), augment)).poses[0], label)
        flat = rearrange(copies, "d k j e -> (d k) j e")
        pictures = model.reconstruct(flat, torch.full((len(flat),), label, device=flat.device))
    return rearrange(pictures.cpu(), "(d k) c h w -> d k c h w", k=len(OFFSETS))


def pixel_change(pictures: Float[Tensor, "e k c h w"]) -> Float[Tensor, " e"]:
    """Measure how much a dimension changes the image: mean absolute pixel difference from the unchanged column."""
    middle = pictures[:, pictures.shape[1] // 2, None]
    return (pictures - middle).abs().mean((1, 2, 3, 4))


def watch_routing(model: nn.Module, image: Picture, label: int, augment: Sequence[Augmentation] = ()) -> RoutingView:
    """Record the routing of one image between primary and class capsules."""
    with evaluating(model):
        images = as_input(model, image.unsqueeze(0), augment)
        active = model.primary_capsules(images).activity[0]  # [i]
        steps = list(model.steps(images))
    weights = active / active.sum()
    couplings = torch.stack([step.couplings[0] for step in steps])  # [t i j]
    weighted = torch.einsum("i,tij->tij", weights, couplings)
    height, width = model.grid
    places = reduce(weighted[..., label], "t (n h w) -> t h w", "sum", h=height, w=width)
    lengths = torch.stack([length(step.poses[0]) for step in steps])
    entropy = [coupling_entropy(pass_couplings) for pass_couplings in couplings]
    return RoutingView(weighted.sum(1).cpu(), places.cpu(), entropy, lengths.cpu())


def series(curve: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Collect steps and values of the log lines that hold a finite `name`."""
    points = [(line["step"], line[name]) for line in curve if math.isfinite(line.get(name, math.nan))]
    return [step for step, _ in points], [value for _, value in points]
