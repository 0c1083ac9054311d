"""An Algorithm for Routing Capsules in All Domains (Heinsen 2019)."""

from torchcaps.papers.heinsen2019 import rows, sentences
from torchcaps.papers.heinsen2019.figures import figures as figures

ROWS = (rows, sentences)
