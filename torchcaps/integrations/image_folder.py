"""Training on a user's own images: settings for their size and number, and accuracy by class."""

from collections.abc import Callable
from math import ceil, sqrt
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from torchcaps.data import OwnImages
from torchcaps.data.augment import Augmentation, Flip, Light, Shift, Warp
from torchcaps.layers.routings import routing_named
from torchcaps.train.recipe import Run, Stage
from torchcaps.train.schedules import Cosine
from torchcaps.train.tasks import Task
from torchcaps.train.tasks.by_routing import task_for
from torchcaps.train.tasks.logits import ClassifyScores

BATCH = 32
LEAST_EPOCHS, LEAST_STEPS = 20, 800  # small sets get more epochs
MODELS = ("capsnet", "em-capsnet")
RECONSTRUCTION = 0.392  # weight per image, divided by its pixels and channels: 784 times MNIST's 0.0005


AUGMENTATIONS: dict[str, Callable[[int], Augmentation]] = {  # by name, for images of this side length
    "shift": lambda size: Shift(size // 16),
    "flip": lambda size: Flip(),
    "light": lambda size: Light(brightness=32, contrast=0.3),
    "warp": lambda size: Warp(),
}


def own_run(
    data: OwnImages,
    model: str = "capsnet",
    epochs: int | None = None,
    balance: bool = True,
    *,
    learning_rate: float | None = None,
    batch_size: int = BATCH,
    augment: str = "shift",
    routing: str | None = None,
) -> Run:
    """Build a run for own images, small enough for a CPU. `em-capsnet` also works with `torchcaps explain`.

    `routing`: name of a routing for the class capsules of `capsnet`, with the loss that fits it.
    `augment`: names of `AUGMENTATIONS` separated by commas, or none.
    """
    if model not in MODELS:
        raise ValueError(f"--model must be one of {', '.join(MODELS)} for images of your own; got {model!r}")
    if routing is not None:
        if model != "capsnet":
            raise ValueError(f"--routing swaps that of capsnet, got --model {model}; leave out one or the other")
        routing_named(routing)
    if batch_size < 1:
        raise ValueError(f"--batch-size must be 1 or more, got {batch_size}")
    batch = min(batch_size, data.n_train)
    epochs = max(LEAST_EPOCHS, ceil(LEAST_STEPS / (data.n_train // batch))) if epochs is None else epochs
    if epochs < 1:
        raise ValueError(f"--epochs must be 1 or more, got {epochs}")
    args, task, usual = _network(model, data.shape, routing)
    learning_rate = usual if learning_rate is None else learning_rate
    if not learning_rate > 0:
        raise ValueError(f"--learning-rate must be more than 0, got {learning_rate:g}; {usual:g} is the default here")
    stage = Stage(
        task=task,
        epochs=epochs,
        batch=batch,
        balanced=balance,
        learning_rate=learning_rate,
        schedule=Cosine(warmup=0.05),
    )
    augmentations = _augmentations(augment, data.shape[1])
    return Run(data=data, model=model, model_args=args, augment=augmentations, stages=(stage,))


def _network(model: str, shape: tuple[int, int, int], routing: str | None) -> tuple[dict[str, Any], Task, float]:
    """Choose a model's arguments, its task and its learning rate."""
    c, size, _ = shape
    if model == "em-capsnet":
        return {"channels": 16, "strides": _strides(size), "n_types": 8, "n_parts": 8}, ClassifyScores(), 5e-3
    kernel = 9 if size >= 28 else 5
    args = {
        "preset": "paper",
        "channels": 48,
        "kernel": kernel,
        "n_types": 8,
        "primary_kernel": kernel,
        "hidden": (256, 512),
    }
    if routing is not None:
        args["routing"] = routing
    return args, task_for(routing, RECONSTRUCTION / (c * size * size)), 3e-3


def _augmentations(names: str, size: int) -> tuple[Augmentation, ...]:
    wanted = [name.strip() for name in names.split(",")]
    if wanted == ["none"]:
        return ()
    if unknown := [name for name in wanted if name not in AUGMENTATIONS]:
        known = ", ".join(AUGMENTATIONS)
        raise ValueError(f"--augment takes {known}, several separated by commas, or none; got {unknown[0]!r}")
    return tuple(AUGMENTATIONS[name](size) for name in wanted)


def _strides(size: int) -> tuple[int, ...]:
    """Choose strides: one of 1, then strides of 2 until the side is 4 to 8 positions."""
    strides, size = [1], size - 2
    while size > 8:
        strides, size = [*strides, 2], (size - 3) // 2 + 1
    return tuple(strides)


class ClassNumbers(NamedTuple):
    """Number of images of a class, and how many were classified right.

    Example:

        found = by_class(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), ("crow", "gull"))
        found["gull"].percent  # 50.0
    """

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


def at_chance(numbers: dict[str, ClassNumbers], predictions: Int64[Tensor, " n"]) -> bool:
    """Check for a network that learnt nothing: it answers one class always, or is right as often as by guessing.

    A balanced accuracy of up to one standard error above 1 / classes counts as guessing.
    """
    there = [one.n for one in numbers.values() if one.n]
    share = 1 / len(numbers)
    standard_error = sqrt(sum(share * (1 - share) / n for n in there)) / len(there)
    one_answer = len(there) > 1 and len(predictions.unique()) == 1
    return one_answer or mean_over_classes(numbers) <= 100 * (share + standard_error)
