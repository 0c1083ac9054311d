"""An Algorithm for Routing Capsules in All Domains (Heinsen 2019)."""

from torchcaps.papers.heinsen2019 import rows, sentences
from torchcaps.papers.heinsen2019.figures import figures

ROWS = (rows, sentences)

__all__ = ["ROWS", "figures"]
