"""What is trained: all that the loop knows of a problem.

A task is a frozen dataclass of plain settings, stored with every result. The loop calls, in this order:
`init` once at the start of a stage, then per step `losses` (compiled on CUDA, so no side effects on Python objects) and
`backward`, which must leave gradients in `.grad`; now and then `probe`, where a stage asks for it; `evaluate`, `extras` and `study`
at the end. A stage trains what `parameters` names and leaves the rest of the model as earlier stages made it.
A rule without backpropagation sets `backpropagates` to False and defines `updates` instead of `losses`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from torchcaps.data import Labelled
from torchcaps.data.batches.images import Batch


class Evaluation(NamedTuple):
    """Numbers, and the predictions they were computed from."""

    metrics: dict[str, float]
    predictions: UInt8[Tensor, "n *k"]
    scores: Float[Tensor, "n j"] | None = None  # what the classes were told apart by, where it is one class a picture


@dataclass(frozen=True, kw_only=True)
class Task:
    """The defaults: every parameter is trained by the gradient of `loss`."""

    backpropagates: ClassVar[bool] = True

    def quick(self) -> "Task":
        """The same for a run of seconds: less of what takes long at the end."""
        return self

    def init(self, model: nn.Module, batch: Batch) -> None:
        """Prepare the model for this stage from one batch, if it needs to be. Of several processes the first one's weights then hold."""

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """What this stage trains, by name."""
        return dict(model.named_parameters())

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Scalars on the device; `loss` is the one to minimise, the others are logged."""
        raise TypeError(f"{type(self).__name__} must define losses(model, batch)")

    def updates(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Losses as above, and by name what the optimiser shall take for the gradient of each parameter: minus where it should go.

        In one compiled program, in float32, and outside autograd.
        """
        raise TypeError(f"{type(self).__name__} must define updates(model, batch)")

    def backward(self, model: nn.Module, batch: Batch, losses: dict[str, Tensor]) -> None:
        """Leave the gradients of what is trained in `.grad`."""
        losses["loss"].backward()

    def probe(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> dict[str, float]:
        """Numbers about the model for the journal, on the same few images every time; see `Stage.probe_every`."""
        raise TypeError(f"{type(self).__name__} must define probe(model, images), or its stage has probe_every=0")

    def score(self, predictions: Tensor, labels: Tensor) -> dict[str, float]:
        """The metrics, from stored predictions alone: what `torchcaps verify` recomputes."""
        raise TypeError(f"{type(self).__name__} must define score(predictions, labels)")

    def image_losses(self, model: nn.Module, scores: Float[Tensor, "n j"], labels: Int64[Tensor, "n"]) -> Float[Tensor, "n"]:
        """The loss of every image, or sentence, from the scores that `evaluate` returns; see `Stage.watch`."""
        raise TypeError(f"{type(self).__name__} must define image_losses(model, scores, labels), or its stage has watch=None")

    def extras(self, model: nn.Module, data: Labelled, device: torch.device) -> dict[str, Any]:
        """Plain numbers about a finished model that predictions do not tell; stored beside the metrics."""
        return {}

    def study(self, model: nn.Module, train: Labelled, test: Labelled, device: torch.device, seed: int) -> dict[str, Any]:
        """As `extras`, where it takes the training images too: other models are trained to judge this one."""
        return {}

    def evaluate(self, model: nn.Module, data: Labelled, device: torch.device) -> Evaluation:
        raise TypeError(f"{type(self).__name__} must define evaluate(model, data, device)")
