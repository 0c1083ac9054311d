"""Classes told apart by logits: for networks without capsules."""

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from torchcaps.data import Labelled
from torchcaps.data.batches import Batch, in_order
from torchcaps.metrics import error_percent
from torchcaps.tasks import Evaluation, Task


@dataclass(frozen=True, kw_only=True)
class ClassifyLogits(Task):
    """Cross entropy of a softmax over the classes."""

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        logits = model(batch.images)
        wrong = 100 * (logits.argmax(-1) != batch.labels).float().mean()
        return {"loss": cross_entropy(logits.float(), batch.labels), "error_percent": wrong}

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: Labelled, device: torch.device) -> Evaluation:
        was_training = model.training
        model.eval()
        batches = in_order(data, 500, device, getattr(model, "augment", ()))
        said = torch.cat([model(batch.images).argmax(-1) for batch in batches]).cpu()
        model.train(was_training)
        return Evaluation(self.score(said, data.labels), said.to(torch.uint8))

    def score(self, predictions: Int64[Tensor, "n"], labels: Int64[Tensor, "n"]) -> dict[str, float]:
        return {"error_percent": error_percent(predictions, labels)}
