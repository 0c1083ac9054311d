"""smallNORB with another training than the paper's: standardised pictures, pictures warped and mirrored, more mixup."""

from torchcaps.data.augment import Standardise
from torchcaps.papers.changes import VARIED, with_first, with_mixup
from torchcaps.papers.heinsen2019 import rows
from torchcaps.results.claims import reproduces
from torchcaps.train.recipe import Run

_ERROR = "test.error_percent"


@reproduces(table="2", row="EM routing, standardised pictures, two passes (not the paper's training)", metric=_ERROR, beside=rows.BESIDE)
def smallnorb_standardised_r2() -> Run:
    """Every picture standardised, both eyes together, as Hinton et al. 2018 have it, and two passes; not this paper's
    training. Chosen of three on folds of training toys; on the test toys no better than the row beyond chance (LOG.md).
    """
    return with_first(rows.smallnorb_r2(), Standardise())


@reproduces(table="2", row="CNN without capsules, standardised pictures, trained alike", metric=_ERROR)
def smallnorb_cnn_standardised() -> Run:
    """The network without capsules, with what the routing was given."""
    return with_first(rows.smallnorb_cnn(), Standardise())


@reproduces(table="2", row="EM routing, pictures warped and mirrored (not the paper's training)", metric=_ERROR, beside=rows.BESIDE)
def smallnorb_varied() -> Run:
    """Pictures mirrored, turned, slanted and stretched at random; not this paper's training. Two points worse than the row (LOG.md)."""
    return with_first(rows.smallnorb(), *VARIED)


@reproduces(
    table="2",
    row="EM routing, two passes, no coordinates, mixup of Beta(0.5, 0.5) (not the paper's), 271K parameters, 50 epochs",
    metric=_ERROR,
    printed=0.9,
    selected="best of 10",
    beside=rows.BESIDE,
)
def smallnorb_mixup_half() -> Run:
    """Two passes, no coordinates, shares of Beta(0.5, 0.5) instead of Beta(0.2, 0.2): step by step chosen on folds of training toys.
    1.35 % wrong, the goal of 1.4 by a hair (docs page); 7 minutes on an H200 with five others beside it.
    """
    return with_mixup(rows.smallnorb_no_coordinates_r2(), 0.5)


@reproduces(table="2", row="CNN without capsules, mixup of Beta(0.5, 0.5), trained alike, 272K parameters, 50 epochs", metric=_ERROR)
def smallnorb_cnn_mixup_half() -> Run:
    """The network without capsules, with as much mixup. 1.21 % wrong; 3 minutes on an H200 with five others beside it."""
    return with_mixup(rows.smallnorb_cnn(), 0.5)
