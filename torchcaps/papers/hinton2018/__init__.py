"""Matrix capsules with EM routing (Hinton, Sabour and Frosst 2018)."""

from torchcaps.papers.hinton2018 import rows

ROWS = (rows,)
