"""Tasks: losses, trained parameters, predictions and metrics of a problem.

A task is a frozen dataclass of plain settings, stored with every result. The loop calls `init` at the start of a stage,
`losses` and `backward` in every step, and `evaluate` at the end. `losses` is compiled on CUDA, so it must not change
Python objects; `backward` must leave gradients in `.grad`. A stage trains only the parameters from `parameters`.

Optional abilities are protocols: `WithoutGradients` (a learning rule without backpropagation), `Scheduled` (a loss that
changes with the steps), `PerImage` (the loss of each training image), `Probed` and `Watched` (measurements during
training), `Extras` and `Study` (further measurements at the end).
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
    """Metrics of a part, the predictions they were computed from, and the raw model outputs (`answers`).

    Example:

        from torchcaps import CapsNet, data
        from torchcaps.train.tasks.classify import Classify
        model = CapsNet((1, 28, 28), 10, channels=8)
        found = Classify().evaluate(model, data.load("generated", "test"), torch.device("cpu"))
        list(found.metrics), list(found.predictions.shape)  # (['error_percent'], [256])
    """

    metrics: dict[str, float]
    predictions: UInt8[Tensor, "n *k"]
    answers: Tensor


@dataclass(frozen=True, kw_only=True)
class Task:
    """Base class: trains every parameter by the gradient of `loss` and predicts the class with the highest output.

    Example:

        class Regress(Task):
            def losses(self, model, batch):
                return {"loss": (model(batch.images) - batch.labels).square().mean()}

        model = nn.Linear(3, 1)
        list(Regress().parameters(model))  # ['weight', 'bias']
    """

    n_at_once: ClassVar[int] = 500  # evaluation batch size

    def quick(self) -> "Task":
        """Return the task for a smoke test, with less work at the end of the run."""
        return self

    def init(self, model: nn.Module, batch: Batch) -> None:
        """Prepare the model for this stage from one batch. Other processes then copy the weights of the first one."""

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Return the parameters that this stage trains, by name."""
        return dict(model.named_parameters())

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Compute scalars on the device; `loss` is minimised, the others are logged."""
        raise TypeError(f"{type(self).__name__} must define losses(model, batch)")

    def backward(self, model: nn.Module, batch: Batch, losses: dict[str, Tensor]) -> None:
        """Compute the gradients of the trained parameters and leave them in `.grad`."""
        losses["loss"].backward()

    def evaluate(
        self, model: nn.Module, data: Any, device: torch.device, augment: Sequence[Augmentation] = ()
    ) -> Evaluation:
        """Evaluate the model on every example of `data`, in order, with the evaluation transforms of `augment`."""
        data = self.examples(data)
        with evaluating(model):
            answers = torch.cat([self.answer(model, batch).cpu() for batch in self.batches(data, device, augment)])
        predictions = self.predictions(answers)
        return Evaluation(self.score(predictions.long(), data.labels), predictions.to(torch.uint8), answers)

    def examples(self, data: Any) -> Any:
        """Return the examples to evaluate; tasks on pairs first draw them from a source."""
        return data

    def batches(self, data: Any, device: torch.device, augment: Sequence[Augmentation]) -> Iterator[Any]:
        """Iterate over every example once, in order."""
        return in_order(data, self.n_at_once, device, augment)

    def answer(self, model: nn.Module, batch: Any) -> Tensor:
        """Compute the model output for a batch, one row per example; by default the scores of the classes."""
        raise TypeError(f"{type(self).__name__} must define answer(model, batch)")

    def predictions(self, answers: Tensor) -> Tensor:
        """Reduce model outputs to the predictions that are stored as bytes; by default the class with the top score."""
        return answers.argmax(-1)

    def score(self, predictions: Tensor, labels: Tensor) -> dict[str, float]:
        """Compute the metrics from stored predictions alone, as `torchcaps verify` does."""
        raise TypeError(f"{type(self).__name__} must define score(predictions, labels)")


@runtime_checkable
class WithoutGradients(Protocol):
    """Task with a learning rule without backpropagation.

    Example:

        from torchcaps.train.tasks.experts import LearnExperts
        isinstance(LearnExperts(), WithoutGradients), isinstance(Task(), WithoutGradients)  # (True, False)
    """

    def updates(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Compute the losses and, by parameter name, the negative update direction, which replaces the gradient.

        It is compiled as one program, in float32, outside autograd.
        """


@runtime_checkable
class Scheduled(Protocol):
    """Task whose loss changes in the course of a stage, such as a margin that rises.

    Example:

        from torchcaps.train.tasks.spread import ClassifySpread
        isinstance(ClassifySpread(), Scheduled), isinstance(Task(), Scheduled)  # (True, False)
    """

    def losses_at(self, model: nn.Module, batch: Batch, done: Int64[Tensor, ""], n_steps: int) -> dict[str, Tensor]:
        """Compute what `losses` does, after `done` of `n_steps` steps; `done` lies on the device."""


@runtime_checkable
class PerImage(Protocol):
    """Task with a loss for each image of a training batch (`Stage.hard`).

    Example:

        from torchcaps.train.tasks.classify import Classify
        isinstance(Classify(), PerImage), isinstance(Task(), PerImage)  # (True, False)
    """

    def losses_per_image(self, model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], Float[Tensor, "b"]]:
        """Compute what `losses` does, and the loss of each image by which hard images are chosen."""


@runtime_checkable
class Probed(Protocol):
    """Task that measures the model during training (`Stage.probe_every`).

    Example:

        from torchcaps.train.tasks.classify import Classify
        isinstance(Classify(), Probed), isinstance(Task(), Probed)  # (True, False)
    """

    def probe(self, model: nn.Module, images: Float[Tensor, "b c h w"]) -> dict[str, float]:
        """Measure the model on the same few images every time, for the metrics log."""


@runtime_checkable
class Watched(Protocol):
    """Task with a loss for each example (`Stage.watch`).

    Example:

        from torchcaps.train.tasks.classify import Classify
        isinstance(Classify(), Watched), isinstance(Task(), Watched)  # (True, False)
    """

    def image_losses(
        self, model: nn.Module, answers: Float[Tensor, "n j"], labels: Int64[Tensor, "n"]
    ) -> Float[Tensor, "n"]:
        """Compute the loss of every image or sentence from the outputs that `evaluate` returns."""


@runtime_checkable
class Extras(Protocol):
    """Task with further measurements of a finished model.

    Example:

        from torchcaps.train.tasks.spread import ClassifySpread
        isinstance(ClassifySpread(), Extras), isinstance(Task(), Extras)  # (True, False)
    """

    def extras(
        self, model: nn.Module, data: Any, device: torch.device, augment: Sequence[Augmentation]
    ) -> dict[str, Any]:
        """Measure the model on evaluation data; the numbers are stored beside the metrics."""


@runtime_checkable
class Study(Protocol):
    """Task with measurements that also need the training set, such as training a classifier to evaluate the model.

    Example:

        from torchcaps.train.tasks.experts import LearnDecoder
        isinstance(LearnDecoder(), Study), isinstance(Task(), Study)  # (True, False)
    """

    def study(
        self,
        model: nn.Module,
        train: Labelled,
        test: Labelled,
        device: torch.device,
        augment: Sequence[Augmentation],
        seed: int,
    ) -> dict[str, Any]:
        """Measure the model with the help of the training set; the numbers are stored beside the metrics."""
