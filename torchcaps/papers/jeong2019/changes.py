"""What is done to a run by rows and choices alike."""

from dataclasses import replace

from torchcaps.data.batches import Anywhere
from torchcaps.recipe import Run
from torchcaps.tasks.ladder import ClassifyLadder


def without_code_loss(run: Run) -> Run:
    """Epsilon = 0: nothing draws the kept capsules to 1 and the others to 0."""
    return replace(run, stages=(replace(run.stages[0], task=ClassifyLadder(code_weight=0.0)),))


def longer(run: Run) -> Run:
    """Twice the 30 epochs."""
    return replace(run, stages=(replace(run.stages[0], epochs=60),))


def anywhere(run: Run) -> Run:
    """Training digits at any place of the frame that keeps all of their ink."""
    return replace(run, augment=(Anywhere(),))


def with_args(run: Run, **model_args) -> Run:
    """Other arguments of the model."""
    return replace(run, model_args=run.model_args | model_args)
