"""Mixup (Zhang et al. 2017): a training image is a weighted sum of two, and so is its label."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import one_hot

from torchcaps.data.augment.base import Augmentation, Batch


@dataclass(frozen=True)
class Mixup(Augmentation):
    """Mix each image with the next one of its batch, by a share drawn from Beta(alpha, alpha) for this image alone.

    The order of an epoch is drawn anew, so any other image is as likely to be the next.

    Example:

        batch = Batch(torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)]), torch.tensor([3, 7]))
        mixed = Mixup(alpha=0.2).mix(batch, torch.tensor([0.25, 0.75]))
        mixed.images[0, 0, 0, 0].item(), mixed.others.tolist()  # (0.75, [7, 3])
    """

    reach: ClassVar[int] = 1

    alpha: float = 0.2

    def draw(self, n: int, rng: torch.Generator) -> Float[Tensor, "n"]:
        # torch.distributions takes no generator; in float32 a small alpha could make both parts of a pair round to 0
        both = torch._sample_dirichlet(torch.full((n, 2), self.alpha, dtype=torch.float64), generator=rng)
        return both[:, 0].float()

    def mix(self, batch: Batch, drawn: Float[Tensor, "b"]) -> Batch:
        images = torch.lerp(batch.images.roll(-1, 0), batch.images, rearrange(drawn, "b -> b 1 1 1"))
        return Batch(images, batch.labels, batch.labels.roll(-1), drawn)


def class_shares(batch: Batch, n_classes: int) -> Float[Tensor, "b k"]:
    """Give the share of each class in each image; a row sums to 1."""
    own = one_hot(batch.labels, n_classes).float()
    if batch.shares is None:
        return own
    return torch.lerp(one_hot(batch.others, n_classes).float(), own, rearrange(batch.shares, "b -> b 1"))


def main_labels(batch: Batch) -> Int64[Tensor, "b"]:
    """Give the class of the larger part of each image, by which training accuracy is counted."""
    return batch.labels if batch.shares is None else torch.where(batch.shares < 0.5, batch.others, batch.labels)
