"""Classification by the spread loss on activities (Hinton 2018): the margin rises with training."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import one_hot

from torchcaps.analysis.metrics import error_percent
from torchcaps.data import Labelled
from torchcaps.data.augment import Augmentation, Batch
from torchcaps.data.augment.mixup import class_shares, main_labels
from torchcaps.ops import spread_loss
from torchcaps.train.tasks import Task
from torchcaps.train.tasks.crops import error_by_crops
from torchcaps.train.tasks.fitting import check_output
from torchcaps.train.tasks.redraw import with_reconstruction


@dataclass(frozen=True, kw_only=True)
class ClassifySpread(Task):
    """Spread loss whose margin rises linearly from `start` to `end` over the fraction `rise` of the steps.

    `shifts`: the test error is also measured with the class activities averaged over the centre crop and crops that are
    1 to so many pixels away along both diagonals; 3 are the paper's 13 crops.
    """

    n_at_once: ClassVar[int] = 100  # without a kernel a GPU holds all votes of a batch, 31 MB per image of 32x32

    start: float = 0.2
    end: float = 0.9
    rise: float = 0.25
    shifts: int = 0
    reconstruction_weight: float = 0.0005  # as in Classify; for networks that have a decoder

    def quick(self) -> "ClassifySpread":
        return replace(self, shifts=0)

    def margin(self, done: Int64[Tensor, ""], n_steps: int) -> Float[Tensor, ""]:
        """Compute the margin after `done` of `n_steps` steps, on the device."""
        risen = (done / max(self.rise * n_steps, 1)).clamp(max=1)
        return self.start + (self.end - self.start) * risen

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return self._losses(model, batch, self.end)

    def losses_at(self, model: nn.Module, batch: Batch, done: Int64[Tensor, ""], n_steps: int) -> dict[str, Tensor]:
        """Compute the losses of a step, whose margin depends on how many were done."""
        return self._losses(model, batch, self.margin(done, n_steps))

    def _losses(self, model: nn.Module, batch: Batch, margin: float | Tensor) -> dict[str, Tensor]:
        capsules = model(batch.images)
        check_output(self, capsules, "scores")
        shown = class_shares(batch, capsules.activity.shape[-1])
        wrong = 100 * (capsules.score.argmax(-1) != main_labels(batch)).float().mean()
        loss = spread_loss(capsules.activity.float(), shown, margin=margin).mean()
        found = {"loss": loss, "error_percent": wrong}
        return with_reconstruction(self, model, capsules, batch, found, "spread")

    def answer(self, model: nn.Module, batch: Batch) -> Float[Tensor, "b j"]:
        return model(batch.images).score

    def image_losses(
        self, model: nn.Module, answers: Float[Tensor, "n j"], labels: Int64[Tensor, "n"]
    ) -> Float[Tensor, "n"]:
        """Compute the loss of every image, by the last margin."""
        present = one_hot(labels, answers.shape[-1]).to(answers.dtype)
        return spread_loss(answers.sigmoid(), present, margin=self.end)

    def activity(self, answers: Float[Tensor, "n j"]) -> Float[Tensor, "n j"]:
        """Compute class activities from the outputs that `answer` gives."""
        return answers.sigmoid()

    def score(self, predictions: Int64[Tensor, "n"], labels: Int64[Tensor, "n"]) -> dict[str, float]:
        return {"error_percent": error_percent(predictions, labels)}

    def extras(
        self, model: nn.Module, data: Labelled, device: torch.device, augment: Sequence[Augmentation]
    ) -> dict[str, Any]:
        """Measure the error with class activities averaged over several crops; nothing without `shifts`."""
        return error_by_crops(self, model, data, device, augment, self.shifts)
