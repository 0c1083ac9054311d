"""Viewpoints that were never trained on, for three networks under one training. TRAINED ON OFFICIAL TEST TOYS: not for table 2.

Not in the paper, which says of other papers that capsules generalise to new viewpoints and shows poses under changing ones. The
toys are the same in training and test, so only the viewpoint is new; data/viewpoints.py says which.
"""

from dataclasses import replace

from torchcaps.papers.heinsen2019 import rows
from torchcaps.results.claims import reproduces
from torchcaps.train.recipe import Run

_TOYS = "trained on official test toys"


def _views(run: Run, vary: str) -> Run:
    """Judged on views that are new, and beside them on familiar ones in another light."""
    name = f"{run.data}-viewpoint-{vary}"
    return replace(run, data=name, tests=(f"{name}-familiar",), stages=(replace(run.stages[0], watch=None),))


def _claim(vary: str, network: str, data: str = "smallnorb"):
    beside = (f"{data}-viewpoint-{vary}-familiar.error_percent",)
    return reproduces(table="viewpoints", row=f"new {vary}s, {network} ({_TOYS})", metric="test.error_percent", beside=beside)


@_claim("azimuth", "EM routing")
def azimuth() -> Run:
    """Azimuths of 60 to 280 degrees, trained on 300 to 40: EM routing."""
    return _views(rows.SMALLNORB, "azimuth")


@_claim("azimuth", "CapsNet at 48x48", "smallnorb-48")
def azimuth_capsnet() -> Run:
    """The same with Sabour's network."""
    return _views(rows.smallnorb_capsnet(), "azimuth")


@_claim("azimuth", "CNN without capsules")
def azimuth_cnn() -> Run:
    """The same with the network without capsules."""
    return _views(rows.smallnorb_cnn(), "azimuth")


@_claim("elevation", "EM routing")
def elevation() -> Run:
    """Elevations of 45 to 70 degrees, trained on 30 to 40: EM routing."""
    return _views(rows.SMALLNORB, "elevation")


@_claim("elevation", "CapsNet at 48x48", "smallnorb-48")
def elevation_capsnet() -> Run:
    """The same with Sabour's network."""
    return _views(rows.smallnorb_capsnet(), "elevation")


@_claim("elevation", "CNN without capsules")
def elevation_cnn() -> Run:
    """The same with the network without capsules."""
    return _views(rows.smallnorb_cnn(), "elevation")
