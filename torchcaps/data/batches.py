"""Batches that never leave the device.

All images lie on the device as bytes. What is random, the order and the augmentation of one epoch, is drawn on the host
from one generator and copied over once per epoch; a step finds its part by a counter on the device. So a CUDA graph can
replay the step, a resumed run goes on with the same draws, and CPU and GPU see the same batches.
An epoch is n // batch steps: the remainder is left out, other images each time since every epoch is drawn anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from einops import rearrange
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.nn.functional import pad

from torchcaps.data import Labelled


class Batch(NamedTuple):
    images: Float[Tensor, "b c h w"]  # 0..1
    labels: Int64[Tensor, "b"]


@runtime_checkable
class Augmentation(Protocol):
    """Something random that happens to training images: drawn on the host, applied on the device."""

    def draw(self, n: int, rng: torch.Generator) -> Tensor: ...

    def apply(self, images: UInt8[Tensor, "b c h w"], drawn: Tensor) -> UInt8[Tensor, "b c h w"]: ...


@dataclass(frozen=True)
class Shift:
    """Move each image by a whole number of pixels, uniform in ±pixels per axis; zeros come in from the border."""

    pixels: int = 2

    def draw(self, n: int, rng: torch.Generator) -> Int64[Tensor, "n 2"]:
        return torch.randint(-self.pixels, self.pixels + 1, (n, 2), generator=rng)

    def apply(self, images: UInt8[Tensor, "b c h w"], drawn: Int64[Tensor, "b 2"]) -> UInt8[Tensor, "b c h w"]:
        height, width = images.shape[-2:]
        padded = pad(images, [self.pixels] * 4)
        device = images.device
        which = torch.arange(len(images), device=device)[:, None, None]
        rows = torch.arange(height, device=device) + (self.pixels - drawn[:, :1])
        columns = torch.arange(width, device=device) + (self.pixels - drawn[:, 1:])
        return rearrange(padded[which, :, rows[:, :, None], columns[:, None, :]], "b h w c -> b c h w")


class Batches:
    """The training images on their device and this epoch's plan."""

    def __init__(self, data: Labelled, batch: int, augment: tuple[Augmentation, ...], device: torch.device) -> None:
        n = len(data.labels)
        if n < batch:
            raise ValueError(f"a batch of {batch} was asked for and there are {n} training images; use a smaller batch")
        self.images, self.labels = data.images.to(device), data.labels.to(device)
        self.batch, self.n_steps, self.augment = batch, n // batch, augment
        # these stay at one address, so that a captured step reads the next epoch's plan
        self.plan = [part.to(device) for part in self._draw(torch.Generator())]

    def new_epoch(self, rng: torch.Generator) -> None:
        """Draw the order and the augmentation of one epoch."""
        for part, drawn in zip(self.plan, self._draw(rng), strict=True):
            part.copy_(drawn)

    def at(self, step: Int64[Tensor, ""]) -> Batch:
        """The batch of this step of the epoch; `step` lies on the device, nothing waits for the host."""
        order, *drawn = (part.index_select(0, step.view(1)).squeeze(0) for part in self.plan)
        images = self.images[order]
        for augmentation, numbers in zip(self.augment, drawn, strict=True):
            images = augmentation.apply(images, numbers)
        return Batch(images.float() / 255, self.labels[order])

    def _draw(self, rng: torch.Generator) -> list[Tensor]:
        n_used = self.n_steps * self.batch
        order = torch.randperm(len(self.labels), generator=rng)[:n_used]
        drawn = [augmentation.draw(n_used, rng) for augmentation in self.augment]
        return [part.unflatten(0, (self.n_steps, self.batch)) for part in (order, *drawn)]


def in_order(data: Labelled, batch: int, device: torch.device) -> Iterator[Batch]:
    """Every image once, as it is, in order: for evaluation, where nothing is augmented and nothing left out."""
    for start in range(0, len(data.labels), batch):
        images = data.images[start : start + batch].to(device)
        yield Batch(images.float() / 255, data.labels[start : start + batch].to(device))
