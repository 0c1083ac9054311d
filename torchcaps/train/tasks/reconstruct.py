"""Learning from pictures alone: draw each from its latent capsules (Rawlinson 2018). Labels are never looked at."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from torchcaps.analysis.routing import watching
from torchcaps.data import Labelled
from torchcaps.data.batches.images import Batch, in_order, in_order_as_trained
from torchcaps.ops import reconstruction_loss
from torchcaps.train.tasks import Evaluation, Task
from torchcaps.train.tasks.latents import latent_numbers


@dataclass(frozen=True, kw_only=True)
class Reconstruct(Task):
    """The sum of squared errors of a picture, mean over the batch, unscaled.

    There is no answer to store as a prediction, so the error of every picture is, in two bytes: `score` tells their mean, the
    number that the paper prints. It says whether the mean is right, not whether the pictures are; for those there is the checkpoint.
    """

    n_at_once: ClassVar[int] = 200  # images, in evaluation
    n_studied: ClassVar[int] = 10_000  # of the training part

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self.errors(model, batch.images).mean()}

    def errors(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b"]:
        """Of each picture."""
        return reconstruction_loss(model.reconstruct(model(images).poses).to(images.dtype), images)

    def evaluate(self, model: nn.Module, data: Labelled, device: torch.device) -> Evaluation:
        with watching(model):
            errors = torch.cat([self.errors(model, batch.images).cpu() for batch in self._batches(model, data, device)])
        stored = _to_bytes(errors)
        return Evaluation(self.score(stored.long(), data.labels), stored)

    def score(self, predictions: Int64[Tensor, "n 2"], labels: Tensor) -> dict[str, float]:
        return {"squared_error": _from_bytes(predictions).double().mean().item()}

    def extras(self, model: nn.Module, data: Labelled, device: torch.device) -> dict[str, Any]:
        """How often each capsule wins, with its boost as it is and without; the support by rank as a share of the most (figure 3)."""
        return latent_numbers(model, self._batches(model, data, device))

    def study(self, model: nn.Module, train: Labelled, test: Labelled, device: torch.device, seed: int) -> dict[str, Any]:
        """How often each capsule wins among training pictures as training shows them, moved: what its boosts were steered by."""
        if getattr(model, "mask", None) is None:
            return {}
        some = Labelled(*(part[: self.n_studied] for part in train))
        shown = in_order_as_trained(some, self.n_at_once, device, getattr(model, "augment", ()), seed)
        told = latent_numbers(model, shown)
        return {f"{name}_as_trained": told[name] for name in ("winning_frequency", "winning_frequency_least", "winning_frequency_most")}

    def _batches(self, model: nn.Module, data: Labelled, device: torch.device):
        return in_order(data, self.n_at_once, device, getattr(model, "augment", ()))


def _to_bytes(errors: Float[Tensor, "n"]) -> UInt8[Tensor, "n 2"]:
    """Three digits of each, as half floats: the mean of thousands is right to five."""
    return errors.half().unsqueeze(-1).view(torch.uint8)


def _from_bytes(stored: Int64[Tensor, "n 2"]) -> Float[Tensor, "n"]:
    return stored.to(torch.uint8).view(torch.float16).squeeze(-1)
