"""Classification of two overlapping digits by the two longest capsules (Sabour 2017, section 6) or top two logits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot

from torchcaps.analysis.metrics import exact_match_error_percent, half_credit_error_percent
from torchcaps.analysis.routing import evaluating
from torchcaps.data.augment import Augmentation
from torchcaps.data.batches.pairs import PairBatch, pairs_in_order
from torchcaps.data.sets.pairs import Pairs, PairSource, fixed_pairs, overlap
from torchcaps.ops import margin_loss, reconstruction_loss
from torchcaps.train.tasks import Task
from torchcaps.train.tasks.fitting import PAIR_TASKS, check_output

INK = 0.5  # a pixel belongs to a digit if it is brighter than this fraction of white
SEGMENTED = 10_000  # pairs used for segmentation


@dataclass(frozen=True, kw_only=True)
class PairTask(Task):
    """Base of tasks on two overlapping digits; the prediction is the two classes with the highest scores."""

    def scores(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b j"]:
        """Compute one score for each class."""
        raise TypeError(f"{type(self).__name__} must define scores(model, images)")

    def examples(self, data: Pairs | PairSource) -> Pairs:
        """Return fixed pairs; those of training digits use each digit once as the base."""
        return fixed_pairs(data, 1) if isinstance(data, PairSource) else data

    def batches(self, data: Pairs, device: torch.device, augment: Sequence[Augmentation]) -> Iterator[PairBatch]:
        return pairs_in_order(data, self.n_at_once, device)

    def answer(self, model: nn.Module, batch: PairBatch) -> Int64[Tensor, "b 2"]:
        """Predict the two classes, sorted by class: metrics ignore their order, and sorted pairs compress better."""
        return self.scores(model, batch.images).topk(2).indices.sort().values

    def predictions(self, answers: Int64[Tensor, "n 2"]) -> Int64[Tensor, "n 2"]:
        return answers

    def score(self, predictions: Int64[Tensor, "n 2"], labels: Int64[Tensor, "n 2"]) -> dict[str, float]:
        exact, half = exact_match_error_percent(predictions, labels), half_credit_error_percent(predictions, labels)
        return {"exact_match_error_percent": exact, "half_credit_error_percent": half}

    def extras(
        self, model: nn.Module, data: Pairs | PairSource, device: torch.device, augment: Sequence[Augmentation]
    ) -> dict[str, Any]:
        """Measure how much the bounding boxes of the digits overlap."""
        pairs = self.examples(data)
        return {"box_overlap_percent": overlap(pairs)._asdict(), "n_pairs": len(pairs.picks)}


@dataclass(frozen=True, kw_only=True)
class ClassifyPairs(PairTask):
    """Margin loss with two classes present, plus the weighted squared errors of both reconstructions."""

    reconstruction_weight: float = 0.0005

    def scores(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b j"]:
        return model(images).activity

    def losses(self, model: nn.Module, batch: PairBatch) -> dict[str, Tensor]:
        capsules = model(batch.images)
        check_output(self, capsules, "lengths", PAIR_TASKS)
        # two ones per row, since the classes differ
        present = one_hot(batch.labels, model.n_classes).sum(-2).to(capsules.activity.dtype)
        margin = model.margin_weight() * margin_loss(capsules.activity, present).mean()
        wrong = _percent_wrong(capsules.activity, present)
        if model.decoder is None:
            return {"loss": margin, "error_percent": wrong, "margin": margin}
        images = reconstruct_both(model, capsules.poses, batch.labels)
        reconstruction = self.reconstruction_weight * reconstruction_loss(images, batch.sources).sum(-1).mean()
        return {
            "loss": margin + reconstruction,
            "error_percent": wrong,
            "margin": margin,
            "reconstruction": reconstruction,
        }

    def extras(
        self, model: nn.Module, data: Pairs | PairSource, device: torch.device, augment: Sequence[Augmentation]
    ) -> dict[str, Any]:
        """Measure the overlap of the bounding boxes, and the segmentation IoU of at most 10,000 pairs."""
        data = self.examples(data)
        first = data._replace(picks=data.picks[:SEGMENTED], moves=data.moves[:SEGMENTED])
        found = super().extras(model, data, device, augment)
        if model.decoder is None:
            return found
        return found | {
            "segmentation_iou": segmentation_iou(model, first, device),
            "threshold": INK,
            "n_segmented": len(first.picks),
        }


@dataclass(frozen=True, kw_only=True)
class ClassifyPairLogits(PairTask):
    """Binary cross entropy of a sigmoid for every class, summed over classes."""

    def scores(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b j"]:
        return model(images)

    def losses(self, model: nn.Module, batch: PairBatch) -> dict[str, Tensor]:
        logits = model(batch.images)
        check_output(self, logits, "logits", PAIR_TASKS)
        present = one_hot(batch.labels, model.n_classes).sum(-2).float()  # two ones: the classes differ
        loss = binary_cross_entropy_with_logits(logits.float(), present, reduction="none").sum(-1).mean()
        return {"loss": loss, "error_percent": _percent_wrong(logits, present)}


def _percent_wrong(scores: Float[Tensor, "b j"], present: Float[Tensor, "b j"]) -> Float[Tensor, ""]:
    """Compute the error of a batch in percent; both classes must be right."""
    found = present.gather(-1, scores.topk(2).indices).sum(-1)
    return 100 * (found < 2).float().mean()


def reconstruct_both(
    model: nn.Module, poses: Float[Tensor, "b j e"], labels: Int64[Tensor, "b 2"]
) -> Float[Tensor, "b 2 c h w"]:
    """Reconstruct both digits, each from its own class capsule alone."""
    pictures = model.reconstruct(repeat(poses, "b j e -> (b k) j e", k=2), rearrange(labels, "b k -> (b k)"))
    return rearrange(pictures, "(b k) c h w -> b k c h w", k=2)


def segmentation_iou(model: nn.Module, pairs: Pairs, device: torch.device, threshold: float = INK) -> float:
    """Compute the IoU of the pixels above `threshold` in each decoded digit and in its source, mean over digits.

    The two true classes are decoded, so the IoU is independent of the predicted classes.
    """
    shares = []
    with evaluating(model):
        for batch in pairs_in_order(pairs, 500, device):
            decoded = reconstruct_both(model, model(batch.images).poses, batch.labels) > threshold
            ink = batch.sources > threshold
            # leave out digits too faint to have a pixel above the threshold
            shares.append(iou(decoded, ink)[ink.flatten(2).any(-1)])
    return torch.cat(shares).mean().item()


def iou(one: Tensor, other: Tensor) -> Float[Tensor, "*b"]:
    """Compute the intersection over union of masks [*b c h w]; 0 where both are empty."""
    common, either = (one & other).sum((-3, -2, -1)), (one | other).sum((-3, -2, -1))
    return common.double() / either.clamp(min=1)
