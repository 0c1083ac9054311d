"""Sparse Unsupervised Capsules Generalize Better (Rawlinson, Ahmed, Kowadlo 2018)."""

from torchcaps.papers.rawlinson2018 import ablations, probes, rows
from torchcaps.papers.rawlinson2018.figures import figures as figures

ROWS = (rows, probes, ablations)
