"""Training products of expert capsules with mixing by dynamic routing (Hauser 2019)."""

from torchcaps.papers.hauser2019 import ablations, rows
from torchcaps.papers.hauser2019.figures import figures as figures

ROWS = (rows, ablations)
