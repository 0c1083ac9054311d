"""One change of a run at a time: what rows and choices of all papers are made by. A paper's own changes lie in its folder."""

from dataclasses import replace
from typing import Any

from torchcaps.data.augment import Anywhere, Augmentation, Flip
from torchcaps.data.augment.mixup import Mixup
from torchcaps.data.augment.warp import Warp
from torchcaps.train.recipe import Exponential, Run, Stop

VARIED = Warp(turn=0.15, slant=0.1, stretch=0.15, edge=True), Flip(eyes=True)  # so little that a toy of the category might look so


def with_model(run: Run, **model_args: Any) -> Run:
    """Other arguments of the model."""
    return replace(run, model_args=run.model_args | model_args)


def with_stage(run: Run, **changes: Any) -> Run:
    """Other settings of the first stage, which is the only one but where a paper says so."""
    first, *rest = run.stages
    return replace(run, stages=(replace(first, **changes), *rest))


def with_first(run: Run, *augment: Augmentation) -> Run:
    """More augmentations, ahead of the others. `Standardise` acts on the finished crop wherever it stands, and before mixup."""
    return replace(run, augment=augment + run.augment)


def with_mixup(run: Run, alpha: float) -> Run:
    """Shares drawn from Beta(alpha, alpha)."""
    if not any(isinstance(step, Mixup) for step in run.augment):
        raise ValueError("with_mixup: this run mixes nothing; add Mixup to its augment instead")
    return replace(run, augment=tuple(Mixup(alpha) if isinstance(step, Mixup) else step for step in run.augment))


def anywhere(run: Run) -> Run:
    """Training digits at any place of the frame that keeps all of their ink."""
    return replace(run, augment=(Anywhere(),))


def stopped(run: Run, accuracy: float = 99.23) -> Run:
    """As Sabour 2017 stopped for affine digits: selection on test. The authors' schedule, which does not know when it ends."""
    return with_stage(run, epochs=60, schedule=Exponential(), stop=Stop(accuracy=accuracy, part="test"))


def stopped_on_held_out(run: Run) -> Run:
    """The same on 5,000 training digits kept aside, placed; only then the test sets."""
    run = with_stage(stopped(run), stop=Stop(accuracy=99.23, part="validation_placed"))
    return replace(run, hold_out=5000, views=("placed",), tests=("mnist-40", "affnist-like"))


def judged_by_warped(run: Run) -> Run:
    """5,000 training digits kept aside, placed and under affine maps: what is chosen for affine digits is chosen by them alone."""
    return replace(run, hold_out=5000, views=("placed", "warped"), tests=())
