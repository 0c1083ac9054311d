"""Unsupervised learning: reconstruct each image from its latent capsules (Rawlinson 2018)."""

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
    """Base of tasks whose metric is the squared error of an image.

    There is no class to predict, so the stored prediction is the error of each image, in two bytes. `score` computes
    their mean, the number in the paper. This verifies the mean but not the images; those need the checkpoint.
    """

    n_at_once: ClassVar[int] = 200

    def errors(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b"]:
        """Compute the squared error of each image, summed over its pixels."""
        return reconstruction_loss(model.reconstruct(model(images).poses).to(images.dtype), images)

    def answer(self, model: nn.Module, batch: Batch) -> Float[Tensor, "b"]:
        return self.errors(model, batch.images)

    def predictions(self, answers: Float[Tensor, "n"]) -> UInt8[Tensor, "n 2"]:
        """Store each error as a half float (three digits); the mean of thousands is accurate to five digits."""
        return answers.half().unsqueeze(-1).view(torch.uint8)

    def score(self, predictions: Int64[Tensor, "n 2"], labels: Tensor) -> dict[str, float]:
        errors = predictions.to(torch.uint8).view(torch.float16).squeeze(-1)
        return {"squared_error": errors.double().mean().item()}


@dataclass(frozen=True, kw_only=True)
class Reconstruct(ReconstructionTask):
    """Sum of squared errors of an image, mean over the batch, unscaled. Labels are not used."""

    n_studied: ClassVar[int] = 10_000  # training images

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self.errors(model, batch.images).mean()}

    def extras(
        self, model: nn.Module, data: Labelled, device: torch.device, augment: Sequence[Augmentation]
    ) -> dict[str, Any]:
        """Measure winning frequencies with and without boost, and the relative support by rank (figure 3)."""
        return latent_numbers(model, in_order(data, self.n_at_once, device, augment))

    def study(
        self,
        model: nn.Module,
        train: Labelled,
        test: Labelled,
        device: torch.device,
        augment: Sequence[Augmentation],
        seed: int,
    ) -> dict[str, Any]:
        """Measure winning frequencies on augmented training images, the quantity that steers the boosts."""
        if getattr(model, "mask", None) is None:
            return {}
        some = Labelled(*(part[: self.n_studied] for part in train))
        found = latent_numbers(model, in_order_as_trained(some, self.n_at_once, device, augment, seed))
        names = "winning_frequency", "winning_frequency_least", "winning_frequency_most"
        return {f"{name}_as_trained": found[name] for name in names}
