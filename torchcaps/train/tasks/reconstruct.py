"""Learning from images alone: reconstruct each from its latent capsules (Rawlinson 2018). Labels are never used."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from torchcaps.data import Labelled
from torchcaps.data.augment import Augmentation, Batch
from torchcaps.data.batches.images import in_order, in_order_as_trained
from torchcaps.ops import reconstruction_loss
from torchcaps.train.tasks import Task
from torchcaps.train.tasks.latents import latent_numbers


@dataclass(frozen=True, kw_only=True)
class ReconstructionTask(Task):
    """Tasks whose metric is the squared error of an image.

    There is no class to store as a prediction, so the error of every image is, in two bytes: `score` computes their mean, the
    number that the paper prints. It proves the mean, not the images; for those there is the checkpoint.
    """

    n_at_once: ClassVar[int] = 200

    def errors(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b"]:
        """Squared error of each image, summed over its pixels."""
        return reconstruction_loss(model.reconstruct(model(images).poses).to(images.dtype), images)

    def answer(self, model: nn.Module, batch: Batch) -> Float[Tensor, "b"]:
        return self.errors(model, batch.images)

    def predictions(self, answers: Float[Tensor, "n"]) -> UInt8[Tensor, "n 2"]:
        """Three digits of each, as half floats: the mean of thousands is right to five."""
        return answers.half().unsqueeze(-1).view(torch.uint8)

    def score(self, predictions: Int64[Tensor, "n 2"], labels: Tensor) -> dict[str, float]:
        errors = predictions.to(torch.uint8).view(torch.float16).squeeze(-1)
        return {"squared_error": errors.double().mean().item()}


@dataclass(frozen=True, kw_only=True)
class Reconstruct(ReconstructionTask):
    """The sum of squared errors of an image, mean over the batch, unscaled."""

    n_studied: ClassVar[int] = 10_000  # training images

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self.errors(model, batch.images).mean()}

    def extras(self, model: nn.Module, data: Labelled, device: torch.device, augment: Sequence[Augmentation]) -> dict[str, Any]:
        """How often each capsule wins, with its boost and without; the support by rank relative to the highest (figure 3)."""
        return latent_numbers(model, in_order(data, self.n_at_once, device, augment))

    def study(
        self, model: nn.Module, train: Labelled, test: Labelled, device: torch.device, augment: Sequence[Augmentation], seed: int
    ) -> dict[str, Any]:
        """How often each capsule wins among training images as training shows them: what its boosts were steered by."""
        if getattr(model, "mask", None) is None:
            return {}
        some = Labelled(*(part[: self.n_studied] for part in train))
        found = latent_numbers(model, in_order_as_trained(some, self.n_at_once, device, augment, seed))
        names = "winning_frequency", "winning_frequency_least", "winning_frequency_most"
        return {f"{name}_as_trained": found[name] for name in names}
