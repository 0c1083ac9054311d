"""Classes told apart by the lengths of their capsules, with reconstruction as a regulariser (Sabour 2017)."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import one_hot

from torchcaps.analysis.metrics import error_percent
from torchcaps.analysis.routing import logit_changes
from torchcaps.data import Labelled
from torchcaps.data.augment.mixup import class_shares, main_labels
from torchcaps.data.batches.images import Batch, in_order
from torchcaps.ops import margin_loss, reconstruction_loss
from torchcaps.train.tasks import Evaluation, Task
from torchcaps.train.tasks.latents import latent_numbers


@dataclass(frozen=True, kw_only=True)
class Classify(Task):
    """Margin loss on the lengths plus the weighted sum of squared errors of the true class's reconstruction."""

    reconstruction_weight: float = 0.0005

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        capsules = model(batch.images)
        shown = class_shares(batch, model.n_classes).to(capsules.activity.dtype)
        margin = model.margin_weight() * margin_loss(capsules.activity, shown).mean()
        wrong = 100 * (capsules.activity.argmax(-1) != main_labels(batch)).float().mean()
        if model.decoder is None:
            return {"loss": margin, "error_percent": wrong, "margin": margin}
        if batch.shares is not None:
            raise ValueError("Classify redraws one class and Mixup shows two; build the model without a decoder, or do not mix")
        pictures = model.reconstruct(capsules.poses, batch.labels)
        reconstruction = self.reconstruction_weight * reconstruction_loss(pictures, batch.images).mean()
        return {"loss": margin + reconstruction, "error_percent": wrong, "margin": margin, "reconstruction": reconstruction}

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: Labelled, device: torch.device) -> Evaluation:
        was_training = model.training
        model.eval()
        batches = in_order(data, 500, device, getattr(model, "augment", ()))
        scores = torch.cat([model(batch.images).activity for batch in batches]).cpu()
        model.train(was_training)
        said = scores.argmax(-1)
        return Evaluation(self.score(said, data.labels), said.to(torch.uint8), scores)

    def probe(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> dict[str, float]:
        return logit_changes(model, images)

    def extras(self, model: nn.Module, data: Labelled, device: torch.device) -> dict[str, Any]:
        """Of a model that shows its capsules as latent ones, what they do; of others nothing."""
        if not hasattr(model, "latent"):
            return {}
        return latent_numbers(model, in_order(data, 200, device, getattr(model, "augment", ())))

    def image_losses(self, model: nn.Module, scores: Float[Tensor, "n j"], labels: Int64[Tensor, "n"]) -> Float[Tensor, "n"]:
        """Of the margin loss alone."""
        return model.margin_weight() * margin_loss(scores, one_hot(labels, scores.shape[-1]).to(scores.dtype))

    def score(self, predictions: Int64[Tensor, "n"], labels: Int64[Tensor, "n"]) -> dict[str, float]:
        return {"error_percent": error_percent(predictions, labels)}
