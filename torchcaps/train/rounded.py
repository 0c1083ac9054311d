"""Weights that a training step on CUDA reads in bfloat16.

Autocast rounds every weight before the forward pass and widens its gradient behind the backward pass: two more kernels
that read and write all of it. Here the update writes the rounded weight along with the weight, and reads the gradient
as it came. The numbers are the same where a step uses the weight once. A layer lists such weights in `ROUNDED`, and may
find their bfloat16 copies in their places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(eq=False)
class RoundedWeight:
    """A weight, the bfloat16 copy of it that gets the gradient, and the layers and names under which it is used."""

    parameter: nn.Parameter
    low: nn.Parameter
    places: list[tuple[nn.Module, str]]

    @torch.no_grad()
    def round(self) -> None:
        """Round the weight again, after anything but the update has changed it."""
        self.low.copy_(self.parameter)

    def gradient(self) -> Tensor | None:
        """Return the gradient in the weight's own dtype; compiled, the update reads it as it is."""
        return None if self.low.grad is None else self.low.grad.to(self.parameter.dtype)


def rounded_weights(model: nn.Module, trained: Iterable[nn.Parameter]) -> list[RoundedWeight]:
    """Find the weights to train that layers list in ROUNDED: autocast would round them in their only use."""
    wanted, found = {id(parameter) for parameter in trained}, dict[int, RoundedWeight]()
    for layer in model.modules():
        for path in getattr(layer, "ROUNDED", ()):
            owner, _, name = path.rpartition(".")
            place = layer.get_submodule(owner)
            parameter = getattr(place, name)
            if id(parameter) not in wanted or not parameter.requires_grad or parameter.dtype != torch.float32:
                continue
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                continue  # they would not see the gradient, which the copy gets
            if id(parameter) not in found:
                low = nn.Parameter(parameter.detach().to(torch.bfloat16))
                found[id(parameter)] = RoundedWeight(parameter, low, [])
            found[id(parameter)].places.append((place, name))
    return list(found.values())


@contextmanager
def in_place(weights: Sequence[RoundedWeight]) -> Iterator[None]:
    """Let the layers use the rounded weights."""
    try:
        for weight in weights:
            for layer, name in weight.places:
                setattr(layer, name, weight.low)
        yield
    finally:
        for weight in weights:
            for layer, name in weight.places:
                setattr(layer, name, weight.parameter)
