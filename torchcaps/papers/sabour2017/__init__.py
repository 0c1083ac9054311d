"""Dynamic Routing Between Capsules (Sabour, Frosst, Hinton 2017)."""

from torchcaps.papers.sabour2017 import ablations, affine, rows
from torchcaps.papers.sabour2017.figures import figures as figures

ROWS = (rows, affine, ablations)
