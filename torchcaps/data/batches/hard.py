"""Epochs of hard images: those that the network has learnt already are skipped."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor


@dataclass(frozen=True)
class Hard:
    """Show only a `share` of the training images in an epoch, those with the largest loss when last shown.

    Images never shown come first. A part `fresh` of the epoch is drawn from all others, so that an image that became
    hard again is noticed. With `fresh=1` an epoch is a random share of the images, whatever their losses.

    Example:

        losses = torch.tensor([0.0, 0.3, torch.inf, 0.0, 0.1])  # by image; infinity: never shown
        order = Hard(share=0.6, fresh=0.0).draw(losses, 3, torch.Generator().manual_seed(0))
        sorted(order.tolist())  # [1, 2, 4]
    """

    share: float
    fresh: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or not 0 <= self.fresh <= 1:
            raise ValueError(
                "hard images need a share above 0 and a fresh part of at least 0, both at most 1; got "
                f"share={self.share} and fresh={self.fresh}; try share=0.5 and fresh=0.25"
            )

    def n_images(self, n: int) -> int:
        """Count the images of an epoch, of `n` training images."""
        return round(self.share * n)

    def draw(self, losses: Float[Tensor, "n"], n_used: int, rng: torch.Generator) -> Int64[Tensor, "m"]:
        """Draw the images of an epoch, in order. How many random numbers that takes does not depend on the losses."""
        shuffled = torch.randperm(len(losses), generator=rng)  # the sort is stable, so ties stay in random order
        hardest_first = shuffled[losses[shuffled].sort(descending=True, stable=True).indices]
        n_fresh = round(self.fresh * n_used)
        hard, others = hardest_first.split([n_used - n_fresh, len(losses) - n_used + n_fresh])
        fresh = others[torch.randperm(len(others), generator=rng)[:n_fresh]]
        return torch.cat([hard, fresh])[torch.randperm(n_used, generator=rng)]
