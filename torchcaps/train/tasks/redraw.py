"""Reconstruction loss beside the loss of the classes, for networks that have a decoder."""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from torchcaps.data.augment import Batch
from torchcaps.layers import Capsules
from torchcaps.ops import reconstruction_loss


@runtime_checkable
class Redraws(Protocol):
    """Network with a `decoder`, or None, which redraws an image from the capsule of its class.

    Only its method is asked for: torch.compile cannot check attributes.
    """

    def reconstruct(self, poses: Tensor, labels: Tensor) -> Tensor:
        """Reconstruct images from the capsules of their classes."""


def with_reconstruction(
    task: Any, model: nn.Module, capsules: Capsules, batch: Batch, found: dict[str, Tensor], name: str
) -> dict[str, Tensor]:
    """Add the weighted reconstruction loss to `found`, whose loss is kept as `name`; without a decoder, nothing."""
    if not isinstance(model, Redraws) or model.decoder is None:
        return found
    if batch.shares is not None:
        raise ValueError(
            f"{type(task).__name__} redraws one class and Mixup shows two; build the model without a decoder, or do "
            "not mix"
        )
    images = model.reconstruct(capsules.poses, batch.labels)
    reconstruction = task.reconstruction_weight * reconstruction_loss(images, batch.images).mean()
    return found | {"loss": found["loss"] + reconstruction, name: found["loss"], "reconstruction": reconstruction}
