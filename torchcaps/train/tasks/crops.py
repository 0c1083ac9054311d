"""Test error with class activities averaged over several crops of an image (Hinton 2018)."""

from collections.abc import Sequence
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.analysis.metrics import error_percent
from torchcaps.analysis.routing import evaluating
from torchcaps.data import Labelled
from torchcaps.data.augment import Augmentation, shape_after


class HasActivities(Protocol):
    """Task whose outputs are turned into class activities by `activity`."""

    def activity(self, answers: Float[Tensor, "n j"]) -> Float[Tensor, "n j"]:
        """Compute class activities from the outputs that `answer` gives."""


def error_by_crops(
    task: HasActivities,
    model: nn.Module,
    data: Labelled,
    device: torch.device,
    augment: Sequence[Augmentation],
    shifts: int,
) -> dict[str, float]:
    """Average over the centre crop and crops 1 to `shifts` pixels away along both diagonals; nothing without any."""
    if not shifts:
        return {}
    sizes = data.images.shape[-3:]
    least = min(before - after for before, after in zip(sizes[1:], shape_after(augment, sizes)[1:], strict=True))
    if least < 2 * shifts:
        raise ValueError(
            f"crops {shifts} pixels off the centre need images {2 * shifts} pixels larger than what the "
            f"network sees, and these are {least} larger; crop more, or use shifts=0"
        )
    moves = [(0, 0)] + [(y * n, x * n) for n in range(1, shifts + 1) for y in (-1, 1) for x in (-1, 1)]
    total = torch.zeros(())
    with evaluating(model):
        for move in moves:
            # what wraps around lies outside of the crop
            moved = data._replace(images=data.images.roll(move, (-2, -1)))
            batches = task.batches(moved, device, augment)
            total = total + torch.cat([task.activity(task.answer(model, batch)).cpu() for batch in batches])
    return {f"error_percent_{len(moves)}_crops": error_percent(total.argmax(-1), data.labels)}
