"""Capsules with Inverted Dot-Product Attention Routing (Tsai, Srivastava, Goh, Salakhutdinov 2020)."""

from torchcaps.papers.tsai2020 import rows

ROWS = (rows,)
