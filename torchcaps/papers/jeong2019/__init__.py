"""Ladder Capsule Network (Jeong, Lee, Kim 2019)."""

from torchcaps.papers.jeong2019 import affine, claims, rows
from torchcaps.papers.jeong2019.figures import figures

ROWS = (rows, affine, claims)

__all__ = ["ROWS", "figures"]
