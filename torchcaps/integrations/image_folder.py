"""Training on a user's own images: settings for their size and number, and accuracy by class."""

from math import ceil
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from torchcaps.data import OwnImages
from torchcaps.data.augment import Shift
from torchcaps.train.recipe import Run, Stage
from torchcaps.train.schedules import Cosine
from torchcaps.train.tasks import Task
from torchcaps.train.tasks.classify import Classify
from torchcaps.train.tasks.logits import ClassifyScores

BATCH = 32
LEAST_EPOCHS, LEAST_STEPS = 20, 800  # small sets get more epochs
MODELS = ("capsnet", "em-capsnet")
RECONSTRUCTION = 0.392  # weight per image, divided by its pixels and channels: 784 times MNIST's 0.0005


def own_run(data: OwnImages, model: str = "capsnet", epochs: int | None = None, balanced: bool = True) -> Run:
    """Build a run for own images, small enough for a CPU. `em-capsnet` also works with `torchcaps explain`."""
    if model not in MODELS:
        raise ValueError(f"--model must be one of {', '.join(MODELS)} for images of your own; got {model!r}")
    batch = min(BATCH, data.n_train)
    epochs = max(LEAST_EPOCHS, ceil(LEAST_STEPS / (data.n_train // batch))) if epochs is None else epochs
    if epochs < 1:
        raise ValueError(f"--epochs must be 1 or more, got {epochs}")
    c, size, _ = data.shape
    if model == "capsnet":
        kernel = 9 if size >= 28 else 5
        args = {
            "preset": "paper",
            "channels": 48,
            "kernel": kernel,
            "n_types": 8,
            "primary_kernel": kernel,
            "hidden": (256, 512),
        }
        task: Task = Classify(reconstruction_weight=RECONSTRUCTION / (c * size * size))
    else:
        args, task = {"channels": 16, "strides": _strides(size), "n_types": 8, "n_parts": 8}, ClassifyScores()
    learning_rate = 3e-3 if model == "capsnet" else 5e-3
    stage = Stage(
        task=task,
        epochs=epochs,
        batch=batch,
        balanced=balanced,
        learning_rate=learning_rate,
        schedule=Cosine(warmup=0.05),
    )
    return Run(data=data, model=model, model_args=args, augment=(Shift(size // 16),), stages=(stage,))


def _strides(size: int) -> tuple[int, ...]:
    """Choose strides: one of 1, then strides of 2 until the side is 4 to 8 positions."""
    strides, size = [1], size - 2
    while size > 8:
        strides, size = [*strides, 2], (size - 3) // 2 + 1
    return tuple(strides)


class ClassNumbers(NamedTuple):
    """Number of images of a class, and how many were classified right."""

    n: int
    right: int

    @property
    def percent(self) -> float:
        """Recall of the class, in percent."""
        return 100 * self.right / self.n if self.n else float("nan")


def by_class(
    predictions: Int64[Tensor, " n"], labels: Int64[Tensor, " n"], classes: tuple[str, ...]
) -> dict[str, ClassNumbers]:
    """Count the images of each class, and those classified right."""
    n = torch.bincount(labels, minlength=len(classes)).tolist()
    right = torch.bincount(labels[predictions == labels], minlength=len(classes)).tolist()
    return {name: ClassNumbers(*both) for name, both in zip(classes, zip(n, right, strict=True), strict=True)}


def mean_over_classes(numbers: dict[str, ClassNumbers]) -> float:
    """Compute the balanced accuracy in percent: the mean recall over classes."""
    there = [one.percent for one in numbers.values() if one.n]
    return sum(there) / len(there)
