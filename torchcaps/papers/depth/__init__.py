"""Deep capsule networks, an experiment of our own: accuracy against the number of routed layers."""

from torchcaps.papers.depth import rows
from torchcaps.papers.depth.figures import figures as figures

ROWS = (rows,)
