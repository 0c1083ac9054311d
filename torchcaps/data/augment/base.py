"""What an augmentation is: drawn on the host, applied on the device, and what evaluation does instead."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64, Real, UInt8
from torch import Tensor


class Batch(NamedTuple):
    images: Float[Tensor, "b c h w"]  # 0..1, unless an augmentation finishes them otherwise
    labels: Int64[Tensor, "b"]
    others: Int64[Tensor, "b"] | None = None  # where images were mixed (mixup.py): the class of what was mixed in
    shares: Float[Tensor, "b"] | None = None  # and how much of each is still its own


class Augmentation:
    """Something that happens to images: drawn on the host, applied on the device. An own one overrides what it needs."""

    reach: ClassVar[int] = 0  # how many of the images that follow it in the batch `mix` looks at for one

    def draw(self, n: int, rng: torch.Generator) -> Tensor:
        """The random numbers for `n` images, one row each; here none."""
        return torch.empty(n, 0)

    def apply(self, images: Real[Tensor, "b c h w"], drawn: Tensor) -> Real[Tensor, "b c h2 w2"]:
        """In training, on grey levels 0..255: bytes, unless something before it made them numbers of any size."""
        return images

    def fixed(self, images: UInt8[Tensor, "*b c h w"]) -> UInt8[Tensor, "*b c h2 w2"]:
        """In evaluation, instead of `apply`: nothing random."""
        return images

    def finish(self, images: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b c h w"]:
        """In both, at the end, on numbers in 0..1."""
        return images

    def mix(self, batch: Batch, drawn: Tensor) -> Batch:
        """In training, at the very end: where the images of a batch meet."""
        return batch

    def shape(self, c: int, h: int, w: int) -> tuple[int, int, int]:
        """What becomes of images of c h w; the model is built for it."""
        return c, h, w


def shape_after(augment: Sequence[Augmentation], shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """The c h w that the model sees."""
    for augmentation in augment:
        shape = augmentation.shape(*shape)
    return shape


def as_seen(images: UInt8[Tensor, "*b c h w"], augment: Sequence[Augmentation] = ()) -> Float[Tensor, "*b c h2 w2"]:
    """What the model sees of these images in evaluation."""
    for augmentation in augment:
        images = augmentation.fixed(images)
    return finished(images, augment)


def finished(images: Real[Tensor, "*b c h w"], augment: Sequence[Augmentation]) -> Float[Tensor, "*b c h w"]:
    images = images.float() / 255
    for augmentation in augment:
        images = augmentation.finish(images)
    return images
