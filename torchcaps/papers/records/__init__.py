"""Time to accuracy: seconds of training to an error below a bar. The page: docs/performance.md."""

from torchcaps.papers.records import rows

ROWS = (rows,)
