"""Classes told apart by logits: those of networks without capsules, or the scores of capsules that are routed by EM."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from torchcaps.analysis.metrics import error_percent, exact_match_error_percent, half_credit_error_percent
from torchcaps.data import Labelled
from torchcaps.data.augment.mixup import class_shares, main_labels
from torchcaps.data.batches.images import Batch, in_order
from torchcaps.data.batches.pairs import PairBatch, pairs_in_order
from torchcaps.data.sets.pairs import Pairs, PairSource, fixed_pairs, overlap
from torchcaps.train.tasks import Evaluation, Task


@dataclass(frozen=True, kw_only=True)
class ClassifyLogits(Task):
    """Cross entropy of a softmax over the classes."""

    n_at_once: ClassVar[int] = 500  # images, in evaluation

    def logits(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        """What the softmax is taken of."""
        return model(images)

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        logits = self.logits(model, batch.images)
        wrong = 100 * (logits.argmax(-1) != main_labels(batch)).float().mean()
        wanted = batch.labels if batch.shares is None else class_shares(batch, logits.shape[-1])
        return {"loss": cross_entropy(logits.float(), wanted), "error_percent": wrong}

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: Labelled, device: torch.device) -> Evaluation:
        was_training = model.training
        model.eval()
        batches = in_order(data, self.n_at_once, device, getattr(model, "augment", ()))
        scores = torch.cat([self.logits(model, batch.images) for batch in batches]).cpu()
        model.train(was_training)
        said = scores.argmax(-1)
        return Evaluation(self.score(said, data.labels), said.to(torch.uint8), scores)

    def image_losses(self, model: nn.Module, scores: Float[Tensor, "n j"], labels: Int64[Tensor, "n"]) -> Float[Tensor, "n"]:
        return cross_entropy(scores.float(), labels, reduction="none")

    def score(self, predictions: Int64[Tensor, "n"], labels: Int64[Tensor, "n"]) -> dict[str, float]:
        return {"error_percent": error_percent(predictions, labels)}


@dataclass(frozen=True, kw_only=True)
class ClassifyScores(ClassifyLogits):
    """Cross entropy of a softmax over the scores of the class capsules (Heinsen 2019, section 4.2)."""

    n_at_once: ClassVar[int] = 50  # without a kernel the votes of all of them lie in memory: 21 MB per image of 96x96

    def logits(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        return model(images).activity


@dataclass(frozen=True, kw_only=True)
class ClassifyPairLogits(Task):
    """Two classes in one picture: cross entropy of a sigmoid for every class; the two highest logits are the answer."""

    def losses(self, model: nn.Module, batch: PairBatch) -> dict[str, Tensor]:
        logits = model(batch.images)
        present = one_hot(batch.labels, model.n_classes).sum(-2).float()  # two ones: the classes differ
        found = present.gather(-1, logits.topk(2).indices).sum(-1)
        loss = binary_cross_entropy_with_logits(logits.float(), present, reduction="none").sum(-1).mean()
        return {"loss": loss, "error_percent": 100 * (found < 2).float().mean()}  # both must be right

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: Pairs | PairSource, device: torch.device) -> Evaluation:
        pairs = fixed_pairs(data, 1) if isinstance(data, PairSource) else data  # training digits: each the base once
        was_training = model.training
        model.eval()
        said = [model(batch.images).topk(2).indices.sort().values for batch in pairs_in_order(pairs, 500, device)]
        model.train(was_training)
        predictions = torch.cat(said).cpu()
        return Evaluation(self.score(predictions, pairs.labels), predictions.to(torch.uint8))

    def extras(self, model: nn.Module, data: Pairs | PairSource, device: torch.device) -> dict[str, Any]:
        """How much the digits' boxes overlap."""
        pairs = fixed_pairs(data, 1) if isinstance(data, PairSource) else data
        return {"box_overlap_percent": overlap(pairs)._asdict(), "n_pairs": len(pairs.picks)}

    def score(self, predictions: Int64[Tensor, "n 2"], labels: Int64[Tensor, "n 2"]) -> dict[str, float]:
        exact, half = exact_match_error_percent(predictions, labels), half_credit_error_percent(predictions, labels)
        return {"exact_match_error_percent": exact, "half_credit_error_percent": half}
