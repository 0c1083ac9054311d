"""An Algorithm for Routing Capsules in All Domains (Heinsen 2019)."""

from torchcaps.papers.heinsen2019 import other_training, rows, sentences, viewpoints
from torchcaps.papers.heinsen2019.figures import figures

ROWS = (rows, other_training, viewpoints, sentences)

__all__ = ["ROWS", "figures"]
