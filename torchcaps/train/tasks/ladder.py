"""Classification by the activity of ladder capsules (Jeong 2019, section 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import one_hot

from torchcaps.analysis.routing import evaluating
from torchcaps.data import Labelled
from torchcaps.data.augment import Augmentation, Batch
from torchcaps.data.augment.mixup import class_shares, main_labels
from torchcaps.data.batches.images import in_order
from torchcaps.ops import code_loss, margin_loss
from torchcaps.ops.ladder import distance_loss, mean_code_loss
from torchcaps.train.tasks.logits import ClassifyLogits

LOOKED_AT = 2000  # images used by extras


@dataclass(frozen=True, kw_only=True)
class ClassifyLadder(ClassifyLogits):
    """Margin loss on the activities plus `code_weight` (paper: epsilon) times |code - activity of the inputs|².

    The code term pulls the activity of kept capsules to 1 and of others to 0. `withdrawn`: use the losses of the
    authors' withdrawn code instead, on distances and with the mean of |code - activity|. `mean_code`: that code term
    alone, beside the paper's margin loss. `ramp`: fraction of the steps over which the weight of the code term rises
    linearly from 0.
    """

    n_at_once: ClassVar[int] = 200  # evaluation batch size: the transforms of one image take 0.4 MB with K = 70

    code_weight: float = 1e-4
    withdrawn: bool = False
    mean_code: bool = False
    ramp: float = 0.0

    def logits(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        return model(images).activity

    def init(self, model: nn.Module, batch: Batch) -> None:
        if hasattr(model, "tell"):
            model.tell(batch.images)

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return self._losses(model, batch, self.code_weight)

    def losses_at(self, model: nn.Module, batch: Batch, done: Int64[Tensor, ""], n_steps: int) -> dict[str, Tensor]:
        """Compute the losses of a step; with `ramp` the weight of the code term depends on how many were done."""
        if not self.ramp:
            return self.losses(model, batch)
        risen = (done / max(self.ramp * n_steps, 1)).clamp(max=1)
        return self._losses(model, batch, self.code_weight * risen)

    def _losses(self, model: nn.Module, batch: Batch, code_weight: float | Tensor) -> dict[str, Tensor]:
        primary, (capsules, kept, misfit, _) = model.ladder(batch.images)
        shown = class_shares(batch, model.n_classes).to(capsules.activity.dtype)
        classes = distance_loss(misfit, shown) if self.withdrawn else margin_loss(capsules.activity, shown)
        code_term = mean_code_loss if self.withdrawn or self.mean_code else code_loss
        code = code_term(kept.code, primary.activity)
        wrong = 100 * (capsules.activity.argmax(-1) != main_labels(batch)).float().mean()
        classes, code = classes.mean(), code_weight * code.mean()
        return {"loss": classes + code, "error_percent": wrong, "margin": classes, "code": code}

    def image_losses(
        self,
        model: nn.Module,
        answers: Float[Tensor, "n j"],
        labels: Int64[Tensor, "n"],
    ) -> Float[Tensor, "n"]:
        """Compute the margin loss of every image, without the code term."""
        return margin_loss(answers, one_hot(labels, answers.shape[-1]).to(answers.dtype))

    def extras(
        self,
        model: nn.Module,
        data: Labelled,
        device: torch.device,
        augment: Sequence[Augmentation],
    ) -> dict[str, Any]:
        """Measure the activity of kept and other capsules on the first images (figure 4)."""
        if not hasattr(model, "ladder"):
            return {}
        kept_sum = other_sum = n_kept = n_other = n = 0.0
        first = Labelled(*(part[:LOOKED_AT] for part in data))
        ever = torch.zeros(model.classes.n_in, dtype=torch.bool, device=device)
        with evaluating(model):
            for batch in in_order(first, self.n_at_once, device, augment):
                primary, laddered = model.ladder(batch.images)
                code = laddered.kept.code
                kept_sum += (code * primary.activity).sum()
                other_sum += ((1 - code) * primary.activity).sum()
                n_kept, n_other, n = n_kept + code.sum(), n_other + (1 - code).sum(), n + len(code)
                ever |= code.bool().any(0)
        return {
            "n_capsules": model.classes.n_in,
            "n_kept": float(n_kept) / n,
            "kept_activity": float(kept_sum / n_kept),
            "other_activity": float(other_sum / max(float(n_other), 1.0)),
            "never_kept": int((~ever).sum()),
            "n_images": int(n),
        }
