"""Training: what a run is, the tasks, the step and the loop."""

from torchcaps.train.loop import Diverged, Interrupted, Options, Trained, train

__all__ = ["Diverged", "Interrupted", "Options", "Trained", "train"]
