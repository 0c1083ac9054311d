"""Classification by logits: outputs of a network without capsules, or scores of EM-routed capsules."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, logsigmoid

from torchcaps.analysis.metrics import error_percent
from torchcaps.data.augment import Batch
from torchcaps.data.augment.mixup import class_shares, main_labels
from torchcaps.layers import Capsules
from torchcaps.train.tasks import Task
from torchcaps.train.tasks.fitting import check_output
from torchcaps.train.tasks.redraw import with_reconstruction


@dataclass(frozen=True, kw_only=True)
class ClassifyLogits(Task):
    """Cross entropy of a softmax over the classes."""

    def logits(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        """Compute the inputs of the softmax."""
        found = model(images)
        check_output(self, found, "logits")
        return found

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return self.cross_entropy(self.logits(model, batch.images), batch)

    def cross_entropy(self, logits: Float[Tensor, "b k"], batch: Batch) -> dict[str, Tensor]:
        """Compute the loss and the error of a batch."""
        wrong = 100 * (logits.argmax(-1) != main_labels(batch)).float().mean()
        wanted = batch.labels if batch.shares is None else class_shares(batch, logits.shape[-1])
        return {"loss": cross_entropy(logits.float(), wanted), "error_percent": wrong}

    def answer(self, model: nn.Module, batch: Batch) -> Float[Tensor, "b k"]:
        return self.logits(model, batch.images)

    def image_losses(
        self, model: nn.Module, answers: Float[Tensor, "n j"], labels: Int64[Tensor, "n"]
    ) -> Float[Tensor, "n"]:
        return cross_entropy(answers.float(), labels, reduction="none")

    def score(self, predictions: Int64[Tensor, "n"], labels: Int64[Tensor, "n"]) -> dict[str, float]:
        return {"error_percent": error_percent(predictions, labels)}


@dataclass(frozen=True, kw_only=True)
class ClassifyScores(ClassifyLogits):
    """Cross entropy of a softmax over the scores of the class capsules (Heinsen 2019, section 4.2)."""

    n_at_once: ClassVar[int] = 50  # small: without a kernel all votes are held in memory, 21 MB per image of 96x96

    reconstruction_weight: float = 0.0005  # as in Classify; for networks that have a decoder

    def logits(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        return self.class_logits(self._capsules(model, images))

    def class_logits(self, capsules: Capsules) -> Float[Tensor, "b k"]:
        """Compute the inputs of the softmax from the class capsules."""
        return capsules.score

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        capsules = self._capsules(model, batch.images)
        found = self.cross_entropy(self.class_logits(capsules), batch)
        return with_reconstruction(self, model, capsules, batch, found, "cross_entropy")

    def _capsules(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> Capsules:
        capsules = model(images)
        check_output(self, capsules, "scores")
        return capsules


@dataclass(frozen=True, kw_only=True)
class ClassifyLikelihood(ClassifyScores):
    """Negative log likelihood of class capsules whose activities sum to one (Hahn 2019).

    The logarithm of an activity is the logsigmoid of its score. Where the activities sum to one, a softmax of their
    logarithms is the activities themselves, so the cross entropy is the paper's loss.
    """

    def class_logits(self, capsules: Capsules) -> Float[Tensor, "b k"]:
        return logsigmoid(capsules.score.float())
