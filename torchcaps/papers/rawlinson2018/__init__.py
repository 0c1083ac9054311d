"""Rawlinson, Ahmed, Kowadlo 2018, "Sparse Unsupervised Capsules Generalize Better"."""

from torchcaps.papers.rawlinson2018 import attacks, depth, ideas, readings, released, rows
from torchcaps.papers.rawlinson2018.figures import figures

ROWS = (rows, readings, released, ideas, depth, attacks)

__all__ = ["ROWS", "figures"]
