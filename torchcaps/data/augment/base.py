"""Interface of an augmentation: drawn on the host, applied on the device, and what evaluation does instead."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64, Real, UInt8
from torch import Tensor


class Batch(NamedTuple):
    """Images and classes of one training step.

    Example:

        batch = Batch(torch.rand(4, 1, 28, 28), torch.tensor([3, 1, 4, 1]))
        len(batch.images), batch.others  # (4, None)
    """

    images: Float[Tensor, "b c h w"]  # 0..1, unless an augmentation finishes them otherwise
    labels: Int64[Tensor, "b"]
    others: Int64[Tensor, "b"] | None = None  # where images were mixed (mixup.py): the class of what was mixed in
    shares: Float[Tensor, "b"] | None = None  # and how much of each is still its own


class Augmentation:
    """Change to images: random numbers are drawn on the host and applied on the device.

    A subclass overrides what it needs.

    Example:

        rng, images = torch.Generator().manual_seed(0), torch.zeros(4, 1, 28, 28, dtype=torch.uint8)
        change = Shift(pixels=2)
        list(change.apply(images, change.draw(4, rng)).shape)  # [4, 1, 28, 28]
    """

    reach: ClassVar[int] = 0  # for one image, `mix` looks at so many of those that follow it in the batch

    @property
    def n_variants(self) -> int:
        """Number of variants that an image has, all as likely; 0 where they cannot be counted."""
        return 0

    def variant(self, number: Int64[Tensor, "n"]) -> Tensor:
        """Give the numbers that `draw` would draw for these variants."""
        raise TypeError(f"{type(self).__name__} has no variants that can be counted")

    def draw(self, n: int, rng: torch.Generator) -> Tensor:
        """Draw the random numbers for `n` images, one row each; here none."""
        return torch.empty(n, 0)

    def apply(self, images: Real[Tensor, "b c h w"], drawn: Tensor) -> Real[Tensor, "b c h2 w2"]:
        """Change training images on grey levels 0..255: bytes, or floats where an earlier augmentation made such."""
        return images

    def fixed(self, images: UInt8[Tensor, "*b c h w"]) -> UInt8[Tensor, "*b c h2 w2"]:
        """Change images in evaluation, in place of `apply`; nothing random."""
        return images

    def finish(self, images: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b c h w"]:
        """Change images in training and evaluation, at the end, on numbers in 0..1."""
        return images

    def mix(self, batch: Batch, drawn: Tensor) -> Batch:
        """Mix the images of a training batch, at the very end."""
        return batch

    def shape(self, c: int, h: int, w: int) -> tuple[int, int, int]:
        """Give the shape that images of c h w become; the model is built for it."""
        return c, h, w


def shape_after(augment: Sequence[Augmentation], shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Give the c h w that the model sees."""
    for augmentation in augment:
        shape = augmentation.shape(*shape)
    return shape


def as_seen(images: UInt8[Tensor, "*b c h w"], augment: Sequence[Augmentation] = ()) -> Float[Tensor, "*b c h2 w2"]:
    """Turn bytes into what the model sees in evaluation."""
    for augmentation in augment:
        images = augmentation.fixed(images)
    return finished(images, augment)


def finished(images: Real[Tensor, "*b c h w"], augment: Sequence[Augmentation]) -> Float[Tensor, "*b c h w"]:
    images = images.float() / 255
    for augmentation in augment:
        images = augmentation.finish(images)
    return images
