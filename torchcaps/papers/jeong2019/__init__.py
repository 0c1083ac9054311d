"""Ladder Capsule Network (Jeong, Lee, Kim 2019)."""

from torchcaps.papers.jeong2019 import ablations, rows
from torchcaps.papers.jeong2019.figures import figures as figures

ROWS = (rows, ablations)
