"""Time to accuracy: seconds of training to an error below a bar. The page: docs/time-to-accuracy.md."""

from torchcaps.papers.records import rows

ROWS = (rows,)
