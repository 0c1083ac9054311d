"""Two classes in one picture, told by the two longest capsules; each digit is reconstructed by itself (Sabour 2017, section 6)."""

from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import one_hot

from torchcaps.analysis.metrics import exact_match_error_percent, half_credit_error_percent
from torchcaps.data.batches.pairs import PairBatch, pairs_in_order
from torchcaps.data.sets.pairs import Pairs, PairSource, fixed_pairs, overlap
from torchcaps.ops import margin_loss, reconstruction_loss
from torchcaps.train.tasks import Evaluation, Task

INK = 0.5  # a pixel belongs to a digit when it is brighter than this share of white
SEGMENTED = 10_000  # pairs


@dataclass(frozen=True, kw_only=True)
class ClassifyPairs(Task):
    """Margin loss with two classes present, plus the weighted squared errors of both digits' reconstructions, added."""

    reconstruction_weight: float = 0.0005

    def losses(self, model: nn.Module, batch: PairBatch) -> dict[str, Tensor]:
        capsules = model(batch.images)
        present = one_hot(batch.labels, model.n_classes).sum(-2).to(capsules.activity.dtype)  # two ones: the classes differ
        margin = model.margin_weight() * margin_loss(capsules.activity, present).mean()
        found = present.gather(-1, capsules.activity.topk(2).indices).sum(-1)
        wrong = 100 * (found < 2).float().mean()  # both must be right
        if model.decoder is None:
            return {"loss": margin, "error_percent": wrong, "margin": margin}
        pictures = reconstruct_both(model, capsules.poses, batch.labels)
        reconstruction = self.reconstruction_weight * reconstruction_loss(pictures, batch.sources).sum(-1).mean()
        return {"loss": margin + reconstruction, "error_percent": wrong, "margin": margin, "reconstruction": reconstruction}

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: Pairs | PairSource, device: torch.device) -> Evaluation:
        pairs = fixed_pairs(data, 1) if isinstance(data, PairSource) else data  # training digits: each the base once
        was_training = model.training
        model.eval()
        # in the order of the classes, not of the lengths: the metrics do not ask, and it packs better
        said = [model(batch.images).activity.topk(2).indices.sort().values for batch in pairs_in_order(pairs, 500, device)]
        model.train(was_training)
        predictions = torch.cat(said).cpu()
        return Evaluation(self.score(predictions, pairs.labels), predictions.to(torch.uint8))

    def extras(self, model: nn.Module, data: Pairs | PairSource, device: torch.device) -> dict[str, Any]:
        """How much the digits' boxes overlap, and how well each digit's pixels are found (10,000 pairs at most)."""
        data = fixed_pairs(data, 1) if isinstance(data, PairSource) else data
        first = data._replace(picks=data.picks[:SEGMENTED], moves=data.moves[:SEGMENTED])
        found = {"box_overlap_percent": overlap(data)._asdict(), "n_pairs": len(data.picks)}
        if model.decoder is not None:
            found |= {"segmentation_iou": segmentation_iou(model, first, device), "threshold": INK, "n_segmented": len(first.picks)}
        return found

    def score(self, predictions: Int64[Tensor, "n 2"], labels: Int64[Tensor, "n 2"]) -> dict[str, float]:
        exact, half = exact_match_error_percent(predictions, labels), half_credit_error_percent(predictions, labels)
        return {"exact_match_error_percent": exact, "half_credit_error_percent": half}


def reconstruct_both(model: nn.Module, poses: Float[Tensor, "b j e"], labels: Int64[Tensor, "b 2"]) -> Float[Tensor, "b 2 c h w"]:
    """The decoder once per digit, each time with that digit's capsule alone."""
    pictures = model.reconstruct(repeat(poses, "b j e -> (b k) j e", k=2), rearrange(labels, "b k -> (b k)"))
    return rearrange(pictures, "(b k) c h w -> b k c h w", k=2)


@torch.no_grad()
def segmentation_iou(model: nn.Module, pairs: Pairs, device: torch.device, threshold: float = INK) -> float:
    """Pixels of each decoded digit above `threshold` against those of its source digit: intersection over union, mean over digits.

    The two true classes are decoded, so it tells how well pixels are assigned, whatever the classification.
    """
    was_training = model.training
    model.eval()
    shares = []
    for batch in pairs_in_order(pairs, 500, device):
        decoded = reconstruct_both(model, model(batch.images).poses, batch.labels) > threshold
        ink = batch.sources > threshold
        shares.append(iou(decoded, ink)[ink.flatten(2).any(-1)])  # a digit so thin that none of it counts cannot be found
    model.train(was_training)
    return torch.cat(shares).mean().item()


def iou(one: Tensor, other: Tensor) -> Float[Tensor, "*b"]:
    """Intersection over union of masks [*b c h w]; 0 where both are empty."""
    common, either = (one & other).sum((-3, -2, -1)), (one | other).sum((-3, -2, -1))
    return common.double() / either.clamp(min=1)
