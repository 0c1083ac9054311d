"""smallNORB with one thing of the paper's training changed: the settings that `choose-folds*` compare on training toys, at full length."""

from dataclasses import replace

from torchcaps.data.batches import Augmentation, Flip, Light, Standardise
from torchcaps.data.warp import Warp
from torchcaps.papers.heinsen2019 import rows
from torchcaps.recipe import Run, reproduces

_LIGHT = Light(32, 0.4)
_VARIED = Warp(turn=0.15, slant=0.1, stretch=0.15, edge=True), Flip(eyes=True)
_BESIDE = ("test_ema.error_percent", "test_unmixed.error_percent")


def _changed(*first: Augmentation, **stage) -> Run:
    run = rows.smallnorb()
    return replace(run, augment=first + run.augment, stages=(replace(run.stages[0], **stage),))


@reproduces(table="2", row="EM routing, light at random too (not the paper's training)", metric="test.error_percent", beside=_BESIDE)
def smallnorb_light() -> Run:
    """Brightness and contrast at random as well, as Hinton et al. 2018 have it for smallNORB; not this paper's training."""
    return _changed(_LIGHT)


@reproduces(table="2", row="EM routing, standardised pictures (not the paper's training)", metric="test.error_percent", beside=_BESIDE)
def smallnorb_standardised() -> Run:
    """Every picture standardised, both eyes together; not this paper's training."""
    return _changed(Standardise())


@reproduces(table="2", row="EM routing, varied toys (not the paper's training)", metric="test.error_percent", beside=_BESIDE)
def smallnorb_varied() -> Run:
    """Pictures mirrored, turned, slanted and stretched at random; not this paper's training."""
    return _changed(*_VARIED)


@reproduces(table="2", row="EM routing, light and varied toys (not the paper's training)", metric="test.error_percent", beside=_BESIDE)
def smallnorb_light_varied() -> Run:
    """Another light, and mirrored, turned, slanted and stretched at random; not this paper's training."""
    return _changed(_LIGHT, *_VARIED)


@reproduces(table="2", row="EM routing, twice the rate (not the paper's training)", metric="test.error_percent", beside=_BESIDE)
def smallnorb_fast() -> Run:
    """Twice the rate; not this paper's training."""
    return _changed(rate=1e-3)
