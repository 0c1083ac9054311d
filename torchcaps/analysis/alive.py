"""Capsule layers that have died: none of their capsules is active on any image, so nothing can be learnt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.analysis.routing import evaluating
from torchcaps.data import Labelled
from torchcaps.data.augment import Augmentation
from torchcaps.data.batches.images import in_order
from torchcaps.layers import Capsules
from torchcaps.layers.calibration import capsule_layers

DEAD = 1e-4  # highest activity of a dead layer
N_IMAGES = 16  # few, since without a kernel their votes are held in memory


@torch.no_grad()
def dead_layers(model: nn.Module, images: Float[Tensor, "b c h w"]) -> list[str]:
    """Return the names of capsule layers whose activities are all below `DEAD` on these images."""
    dead: list[str] = []
    layers = capsule_layers(model)
    if not layers:
        return dead

    def look(name: str):
        def after(layer: nn.Module, inputs: tuple, found: Capsules) -> None:
            if name not in dead and found.activity.max() < DEAD:
                dead.append(name)

        return after

    handles = [layer.register_forward_hook(look(name)) for name, layer in layers.items()]
    try:
        with evaluating(model):
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    return dead


def dead_on(model: nn.Module, data: Any, device: torch.device, augment: Sequence[Augmentation] = ()) -> list[str]:
    """Return the names of layers that are dead on the first images of a set; none for other data than images."""
    if not isinstance(data, Labelled):
        return []
    some = Labelled(data.images[:N_IMAGES], data.labels[:N_IMAGES])
    return dead_layers(model, next(iter(in_order(some, N_IMAGES, device, augment))).images)


def obituary(name: str) -> str:
    """Say that a layer has died, and what to do."""
    return (
        f"layer {name}: all activities below {DEAD:g}, so it learns nothing; "
        "lower the learning rate; calibrate a network of your own before you train it"
    )
