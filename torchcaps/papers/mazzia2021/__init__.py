"""Efficient-CapsNet: Capsule Network with Self-Attention Routing (Mazzia, Salvetti, Chiaberge 2021)."""

from torchcaps.papers.mazzia2021 import rows

ROWS = (rows,)
