"""Dynamic Routing Between Capsules (Sabour, Frosst, Hinton 2017)."""

from torchcaps.papers.sabour2017 import affine, photographs, rows
from torchcaps.papers.sabour2017.figures import figures

ROWS = (rows, affine, photographs)

__all__ = ["ROWS", "figures"]
