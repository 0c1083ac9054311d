"""Classification by capsule lengths, with reconstruction as a regulariser (Sabour 2017)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import one_hot

from torchcaps.analysis.metrics import error_percent
from torchcaps.analysis.routing import logit_changes
from torchcaps.data import Labelled
from torchcaps.data.augment import Augmentation, Batch
from torchcaps.data.augment.mixup import class_shares, main_labels
from torchcaps.data.batches.images import in_order
from torchcaps.ops import margin_loss, reconstruction_loss
from torchcaps.train.tasks import Task
from torchcaps.train.tasks.crops import error_by_crops
from torchcaps.train.tasks.fitting import check_output
from torchcaps.train.tasks.latents import HasLatents, latent_numbers


@dataclass(frozen=True, kw_only=True)
class Classify(Task):
    """Margin loss on capsule lengths plus the weighted squared error of the true class's reconstruction.

    `shifts`: the test error is also measured over several crops, as in `ClassifySpread`.
    """

    reconstruction_weight: float = 0.0005
    shifts: int = 0

    def quick(self) -> "Classify":
        return replace(self, shifts=0)

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return self.losses_per_image(model, batch)[0]

    def losses_per_image(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], Float[Tensor, "b"]]:
        """Compute the losses of a batch, and the margin loss of each image."""
        capsules = model(batch.images)
        check_output(self, capsules, "lengths")
        shown = class_shares(batch, model.n_classes).to(capsules.activity.dtype)
        each = margin_loss(capsules.activity, shown)
        margin = model.margin_weight() * each.mean()
        wrong = 100 * (capsules.activity.argmax(-1) != main_labels(batch)).float().mean()
        if model.decoder is None:
            return {"loss": margin, "error_percent": wrong, "margin": margin}, each
        if batch.shares is not None:
            raise ValueError(
                "Classify redraws one class and Mixup shows two; build the model without a decoder, or do not mix"
            )
        pictures = model.reconstruct(capsules.poses, batch.labels)
        reconstruction = self.reconstruction_weight * reconstruction_loss(pictures, batch.images).mean()
        found = {"loss": margin + reconstruction, "error_percent": wrong, "margin": margin}
        return found | {"reconstruction": reconstruction}, each

    def answer(self, model: nn.Module, batch: Batch) -> Float[Tensor, "b j"]:
        return model(batch.images).activity

    def probe(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> dict[str, float]:
        return logit_changes(model, images)

    def extras(
        self, model: nn.Module, data: Labelled, device: torch.device, augment: Sequence[Augmentation]
    ) -> dict[str, Any]:
        """Measure the error over several crops, and the latent capsules of a model that has them."""
        found = error_by_crops(self, model, data, device, augment, self.shifts)
        if isinstance(model, HasLatents):
            found |= latent_numbers(model, in_order(data, 200, device, augment))
        return found

    def activity(self, answers: Float[Tensor, "n j"]) -> Float[Tensor, "n j"]:
        """Return the class activities, which are what `answer` gives."""
        return answers

    def image_losses(
        self, model: nn.Module, answers: Float[Tensor, "n j"], labels: Int64[Tensor, "n"]
    ) -> Float[Tensor, "n"]:
        """Compute the margin loss of every image, without reconstruction."""
        return model.margin_weight() * margin_loss(answers, one_hot(labels, answers.shape[-1]).to(answers.dtype))

    def score(self, predictions: Int64[Tensor, "n"], labels: Int64[Tensor, "n"]) -> dict[str, float]:
        return {"error_percent": error_percent(predictions, labels)}


@dataclass(frozen=True, kw_only=True)
class ClassifyFrozen(Classify):
    """Classification that leaves some parameters as they started: those whose names begin with one of `frozen`."""

    frozen: tuple[str, ...]

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        found = super().parameters(model)
        kept = {name: parameter for name, parameter in found.items() if not name.startswith(self.frozen)}
        if len(kept) == len(found) or not kept:
            raise ValueError(
                f"ClassifyFrozen: parameters that begin with {', '.join(self.frozen)} should be some of the model's; "
                f"they are {len(found) - len(kept)} of {len(found)}"
            )
        return kept
