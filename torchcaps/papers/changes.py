"""Changes of a run that several papers share. A paper's own changes lie in its folder."""

from dataclasses import replace
from typing import Any

from torchcaps.data.augment import Anywhere, Augmentation, Flip
from torchcaps.data.augment.mixup import Mixup
from torchcaps.data.augment.warp import Warp
from torchcaps.train.recipe import Run, Stop
from torchcaps.train.schedules import Exponential

# so little that a toy of the category might look so
VARIED = Warp(turn=0.15, slant=0.1, stretch=0.15, edge=True), Flip(eyes=True)


def with_model(run: Run, **model_args: Any) -> Run:
    """Set arguments of the model."""
    return replace(run, model_args=run.model_args | model_args)


def with_stage(run: Run, **changes: Any) -> Run:
    """Set fields of the first stage."""
    first, *rest = run.stages
    return replace(run, stages=(replace(first, **changes), *rest))


def with_first(run: Run, *augment: Augmentation) -> Run:
    """Put augmentations first. `Standardise` acts on the finished crop wherever it stands, before mixup."""
    return replace(run, augment=augment + run.augment)


def with_mixup(run: Run, alpha: float) -> Run:
    """Set the alpha of mixup, whose shares are drawn from Beta(alpha, alpha)."""
    if not any(isinstance(step, Mixup) for step in run.augment):
        raise ValueError("with_mixup: this run mixes nothing; add Mixup to its augment instead")
    return replace(run, augment=tuple(Mixup(alpha) if isinstance(step, Mixup) else step for step in run.augment))


def anywhere(run: Run) -> Run:
    """Place training digits anywhere in the frame that keeps all of their ink."""
    return replace(run, augment=(Anywhere(),))


def stopped(run: Run, accuracy: float = 99.23) -> Run:
    """Stop as Sabour 2017 did for affine digits, which selects on test; with the authors' endless schedule."""
    return with_stage(run, epochs=60, schedule=Exponential(), stop=Stop(accuracy=accuracy, part="test"))


def stopped_on_held_out(run: Run) -> Run:
    """Stop on 5,000 held-out training digits, placed at random; the test sets are seen only at the end."""
    run = with_stage(stopped(run), stop=Stop(accuracy=99.23, part="validation_placed"))
    return replace(run, hold_out=5000, views=("placed",), tests=("mnist-40", "affnist-like"))
