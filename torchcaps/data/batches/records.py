"""Order of record files: all variants of an image lie together, and a reader shuffles within a window of records."""

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from torchcaps.data.augment.base import Augmentation


@dataclass(frozen=True)
class Records:
    """Order of the CapsNet authors' files (Sabour 2017): 25 shifts of a digit in turn, read through a buffer.

    An epoch is every variant of every image once. The first augmentation must count its variants (`n_variants`); with
    25 of them, a window of 5,000 records holds about 200 images.

    Example:

        from torchcaps.data.augment import Shift
        Records(window=5000).n_variants((Shift(pixels=2),))  # 25
    """

    window: int = 5000

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"records need a window of at least 1; got {self.window}; the authors' is 5,000")

    def draw(
        self, n_images: int, n_used: int, augment: tuple[Augmentation, ...], rng: torch.Generator
    ) -> tuple[Int64[Tensor, "m"], list[Tensor]]:
        """Draw the images of an epoch, in order, and the numbers of each augmentation."""
        n_variants = self.n_variants(augment)
        order = buffered_order(n_images * n_variants, self.window, rng)[:n_used]
        images = order // n_variants
        return images, [augment[0].variant(order % n_variants), *(each.draw(n_used, rng) for each in augment[1:])]

    def n_variants(self, augment: tuple[Augmentation, ...]) -> int:
        """Count the records of an image; refuse augmentations that cannot be counted."""
        if not augment or not augment[0].n_variants:
            raise ValueError(
                "records lie in the order of an augmentation with countable variants, such as Shift(2), which must be "
                f"the first; got {', '.join(map(str, augment)) or 'none'}"
            )
        return augment[0].n_variants


def buffered_order(n: int, window: int, rng: torch.Generator) -> Int64[Tensor, "n"]:
    """Give the order in which n records leave a buffer of `window`: a random slot each time, refilled by the next.

    At the end the records that are left leave in random order. Computed without a loop: a slot holds the record that
    came in when it was last emptied.
    """
    window = min(window, n)
    slots = torch.randint(window, (n - window,), generator=rng)
    # from slot to when it was emptied: a stable sort keeps the order of time within a slot
    by_slot = slots.sort(stable=True).indices
    sorted_slots = slots[by_slot]
    again = torch.zeros_like(slots, dtype=torch.bool)
    again[1:] = sorted_slots[1:] == sorted_slots[:-1]
    before = by_slot.roll(1)
    left = torch.empty_like(slots)
    left[by_slot] = torch.where(again, window + before, sorted_slots)
    held = torch.arange(window)
    held.scatter_reduce_(0, slots, window + torch.arange(n - window), "amax")  # the last to come into each slot
    return torch.cat([left, held[torch.randperm(window, generator=rng)]])
