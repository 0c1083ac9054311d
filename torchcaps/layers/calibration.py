"""Calibration on one batch: scale a fresh layer to the inputs that it really gets."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.layers.capsules import Capsules
from torchcaps.layers.initialisation import LENGTH
from torchcaps.ops import length, unsquash

LEAST, MOST = 0.2, 0.7  # median activity after calibration
STEP = 1.2  # factor by which votes or scores are scaled until the median lies between


@runtime_checkable
class Calibrated(Protocol):
    """Layer that scales its weights to its first inputs."""

    def calibrate(self, capsules: Any) -> Capsules:
        """Scale the weights; return the outputs."""


@runtime_checkable
class CalibratedNetwork(Protocol):
    """Network that says whether the training loop calibrates it on the first batch; a paper's preset is not."""

    needs_calibration: bool

    def calibrate(self, images: Tensor) -> None:
        """Scale every capsule layer to these images."""


@torch.no_grad()
def calibrate(model: nn.Module, *inputs: Any) -> None:
    """Calibrate every capsule layer of a model, in the order in which a forward pass of `inputs` reaches them."""
    layers = capsule_layers(model)
    if list(layers) == [""]:
        layers[""].calibrate(*inputs)  # a single layer
        return
    if not layers:
        raise ValueError(f"calibrate: {type(model).__name__} has no capsule layer that can be calibrated")
    handles: dict[nn.Module, Any] = {}

    def before(layer: nn.Module, args: tuple[Any, ...]) -> None:
        handles.pop(layer).remove()  # once, and not by the forward passes of its own calibration
        layer.calibrate(*args)

    for layer in layers.values():
        handles[layer] = layer.register_forward_pre_hook(before)
    training = {part: part.training for part in model.modules()}  # parts of it may be frozen in evaluation mode
    try:
        model.eval()(*inputs)
    finally:
        for part, mode in training.items():
            part.training = mode
        for handle in handles.values():
            handle.remove()


def capsule_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that can be calibrated by name, without networks that contain such layers."""
    return {
        name: part
        for name, part in model.named_modules()
        if isinstance(part, Calibrated)
        and not any(isinstance(inner, Calibrated) for inner in part.modules() if inner is not part)
    }


def scale_votes(
    layer: nn.Module,
    poses: Float[Tensor, "*b i d"],
    route_once: Callable[[Tensor], Tensor],
    wanted: float,
    inputs: Capsules | Tensor | None = None,
) -> Capsules:
    """Scale `layer.weight` so that sums of votes have the length that the initialisation plans with.

    `route_once` routes poses without bias: by one iteration, or by all where the plan is for the last sums. Then scale
    on until the median activity is in range. `inputs`: those of the layer, where `poses` are made from them.
    """
    size = poses.float().square().sum(-1).mean().sqrt()
    if not torch.isfinite(size) or size == 0:
        raise ValueError(
            f"{type(layer).__name__}.calibrate: the inputs are all zero or not finite; give a batch of real inputs"
        )
    # routed at length 1: squash loses what is much shorter
    sums = length(unsquash(route_once((poses / size).to(poses.dtype)))).square().mean().sqrt() * size
    layer.weight.mul_(wanted * LENGTH / sums)
    return scale_until_alive(layer, poses if inputs is None else inputs, lambda factor: layer.weight.mul_(factor))


def scale_until_alive(layer: nn.Module, inputs: Any, scale: Callable[[float], Any], n_tries: int = 40) -> Capsules:
    """Scale by small factors until the median activity is in range; warn if it never is."""
    for _ in range(n_tries):
        found = layer(inputs)
        median = found.activity.float().median()
        if LEAST <= median <= MOST:
            return found
        scale(STEP if median < LEAST else 1 / STEP)
    found = layer(inputs)
    median = found.activity.float().median().item()
    warnings.warn(
        f"{type(layer).__name__}.calibrate: the median activity is {median:.2g}, wanted {LEAST} to {MOST}; "
        "give other sizes, or inputs that vary",
        RuntimeWarning,
        stacklevel=2,
    )
    return found
