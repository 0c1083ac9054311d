"""Sentence classification by the scores of class capsules or by logits (Heinsen 2019, section 5)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from torchcaps.analysis.metrics import error_percent
from torchcaps.data.augment import Augmentation
from torchcaps.data.augment.mixup import class_shares, main_labels
from torchcaps.data.batches.sentences import SentenceBatch, sentences_in_order
from torchcaps.data.sets.sst import Sentences
from torchcaps.layers import Capsules
from torchcaps.train.tasks import Task


@dataclass(frozen=True, kw_only=True)
class ClassifySentences(Task):
    """Cross entropy of a softmax over the classes, with soft targets under mixup."""

    n_at_once: ClassVar[int] = 100  # evaluation batch size, in sentences

    def logits(self, model: nn.Module, batch: SentenceBatch) -> Float[Tensor, "b k"]:
        """Compute the inputs of the softmax: scores of class capsules, or the logits of a model without capsules."""
        said = model(batch.embeddings, batch.present)
        return said.confidence if isinstance(said, Capsules) else said

    def losses(self, model: nn.Module, batch: SentenceBatch) -> dict[str, Tensor]:
        logits = self.logits(model, batch)
        wrong = 100 * (logits.argmax(-1) != main_labels(batch)).float().mean()
        return {"loss": cross_entropy(logits.float(), class_shares(batch, logits.shape[-1])), "error_percent": wrong}

    def batches(
        self, data: Sentences, device: torch.device, augment: Sequence[Augmentation]
    ) -> Iterator[SentenceBatch]:
        return sentences_in_order(data, self.n_at_once, device)

    def answer(self, model: nn.Module, batch: SentenceBatch) -> Float[Tensor, "b k"]:
        return self.logits(model, batch)

    def image_losses(
        self, model: nn.Module, answers: Float[Tensor, "n j"], labels: Int64[Tensor, "n"]
    ) -> Float[Tensor, "n"]:
        return cross_entropy(answers.float(), labels, reduction="none")

    def extras(
        self, model: nn.Module, data: Sentences, device: torch.device, augment: Sequence[Augmentation]
    ) -> dict[str, Any]:
        """Record the encoder weights behind the embeddings; the hash of the data covers only texts and labels."""
        encoder = data.encoder.load(device)
        return {
            "encoder": encoder.name,
            "encoder_weights_sha256": encoder.weights_sha256,
            "n_sentences": len(data.texts),
        }

    def score(self, predictions: Int64[Tensor, "n"], labels: Int64[Tensor, "n"]) -> dict[str, float]:
        wrong = error_percent(predictions, labels)
        return {"error_percent": wrong, "accuracy_percent": 100 - wrong}
