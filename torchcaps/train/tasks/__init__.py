"""What is trained: all that the loop knows of a problem.

A task is a frozen dataclass of plain settings, stored with every result. The loop calls `init` once at the start of a stage, then
per step `losses` (compiled on CUDA, so no side effects on Python objects) and `backward`, which must leave gradients in `.grad`;
at the end `evaluate`. A stage trains what `parameters` names and leaves the rest of the model as earlier stages made it.

A task may have further abilities, each a protocol below: it learns `WithoutGradients`, is `Probed` or `Watched` while it trains, or
tells more than predictions do at the end (`Extras`, `Study`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from torchcaps.analysis.routing import evaluating
from torchcaps.data import Labelled
from torchcaps.data.augment import Augmentation, Batch
from torchcaps.data.batches.images import in_order


class Evaluation(NamedTuple):
    """Metrics, the predictions they were computed from, and the answers those were taken from."""

    metrics: dict[str, float]
    predictions: UInt8[Tensor, "n *k"]
    answers: Tensor


@dataclass(frozen=True, kw_only=True)
class Task:
    """The defaults: every parameter is trained by the gradient of `loss`; the highest of the answers is the class."""

    n_at_once: ClassVar[int] = 500  # images, in evaluation

    def quick(self) -> "Task":
        """The same for a run of seconds: less of what takes long at the end."""
        return self

    def init(self, model: nn.Module, batch: Batch) -> None:
        """Prepare the model for this stage from one batch. With several processes, the first one's weights then hold."""

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Parameters that this stage trains, by name."""
        return dict(model.named_parameters())

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Scalars on the device; `loss` is minimised, the others are logged."""
        raise TypeError(f"{type(self).__name__} must define losses(model, batch)")

    def backward(self, model: nn.Module, batch: Batch, losses: dict[str, Tensor]) -> None:
        """Leave the gradients of what is trained in `.grad`."""
        losses["loss"].backward()

    def evaluate(self, model: nn.Module, data: Any, device: torch.device, augment: Sequence[Augmentation] = ()) -> Evaluation:
        """Answer every example of `data` once, in order, shown as `augment` shows it in evaluation."""
        data = self.examples(data)
        with evaluating(model):
            answers = torch.cat([self.answer(model, batch).cpu() for batch in self.batches(data, device, augment)])
        predictions = self.predictions(answers)
        return Evaluation(self.score(predictions.long(), data.labels), predictions.to(torch.uint8), answers)

    def examples(self, data: Any) -> Any:
        """The examples that are evaluated; tasks on pairs draw them from a source first."""
        return data

    def batches(self, data: Any, device: torch.device, augment: Sequence[Augmentation]) -> Iterator[Any]:
        """Every example once, in order."""
        return in_order(data, self.n_at_once, device, augment)

    def answer(self, model: nn.Module, batch: Any) -> Tensor:
        """What the model says of a batch, one row for each example: the scores of the classes, if nothing else is said."""
        raise TypeError(f"{type(self).__name__} must define answer(model, batch)")

    def predictions(self, answers: Tensor) -> Tensor:
        """What is stored of the answers, in bytes."""
        return answers.argmax(-1)

    def score(self, predictions: Tensor, labels: Tensor) -> dict[str, float]:
        """Compute the metrics from stored predictions alone: what `torchcaps verify` recomputes."""
        raise TypeError(f"{type(self).__name__} must define score(predictions, labels)")


@runtime_checkable
class WithoutGradients(Protocol):
    """A learning rule without backpropagation."""

    def updates(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Losses, and by name what the optimiser takes for each parameter's gradient: minus the direction to go.

        Compiled as one program, in float32, outside autograd.
        """


@runtime_checkable
class Probed(Protocol):
    """Can be asked for numbers about the model while it trains (`Stage.probe_every`)."""

    def probe(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> dict[str, float]:
        """Numbers for the metrics log, on the same few images every time."""


@runtime_checkable
class Watched(Protocol):
    """Has a loss for each example (`Stage.watch`)."""

    def image_losses(self, model: nn.Module, answers: Float[Tensor, "n j"], labels: Int64[Tensor, "n"]) -> Float[Tensor, "n"]:
        """The loss of every image, or sentence, from the answers that `evaluate` returns."""


@runtime_checkable
class Extras(Protocol):
    """Tells more about a finished model than predictions do."""

    def extras(self, model: nn.Module, data: Any, device: torch.device, augment: Sequence[Augmentation]) -> dict[str, Any]:
        """Plain numbers, stored beside the metrics."""


@runtime_checkable
class Study(Protocol):
    """The same where it takes the training images too: other models are trained to judge this one."""

    def study(
        self, model: nn.Module, train: Labelled, test: Labelled, device: torch.device, augment: Sequence[Augmentation], seed: int
    ) -> dict[str, Any]:
        """Plain numbers, stored beside the metrics."""
