"""Training: runs, tasks, the training step and the training loop."""

from torchcaps.train.loop import Diverged, Interrupted, Options, Trained, train

__all__ = ["Diverged", "Interrupted", "Options", "Trained", "train"]
