"""One stem, one training, every routing: an experiment of our own. The page: docs/which-routing.md."""

from torchcaps.papers.routings import rows
from torchcaps.papers.routings.figures import figures as figures

ROWS = (rows,)
