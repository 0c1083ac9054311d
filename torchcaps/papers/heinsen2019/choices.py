"""What the text leaves open, other training than the paper's, and ablations, tried on training toys that are kept aside.

No run here sees a test set.
"""

from dataclasses import replace

from torchcaps.data.augment import Light, Standardise
from torchcaps.papers.changes import VARIED, with_first, with_mixup
from torchcaps.papers.heinsen2019 import rows
from torchcaps.train.optimizers import RAdam
from torchcaps.train.recipe import Run

_LIGHT = Light(32, 0.4)


def _toys(run: Run, **stage) -> Run:
    return replace(run, data=f"{run.data}-toys", stages=(replace(run.stages[0], watch=None, **stage),))


def choose_smallnorb() -> Run:
    """The row as it is: beta1 between 0.9 and 0.81, as in the author's code; beside it, batch norm's statistics of unmixed pictures."""
    return _toys(rows.SMALLNORB, unmixed=rows.UNMIXED)


def choose_smallnorb_float32() -> Run:
    """Convolutions not in bfloat16: as the author's, but for cuDNN's TF32."""
    return _toys(rows.SMALLNORB, unmixed=rows.UNMIXED, precision="float32")


def _folds(run: Run = rows.SMALLNORB, **stage) -> Run:
    """Fifteen epochs of the fifty, once for each of the five training toys: the seed says which one of every category is kept aside."""
    told = {"watch": None, "epochs": 15, "ema": 0.999, "unmixed": rows.UNMIXED}
    return replace(run, data="smallnorb-folds", stages=(replace(run.stages[0], **told | stage),))


def choose_folds() -> Run:
    """The row, shorter, on all folds; beside it the average of the weights, and batch norm's statistics of unmixed pictures."""
    return _folds()


def choose_folds_light() -> Run:
    """The same with brightness and contrast at random."""
    return with_first(_folds(), _LIGHT)


def choose_folds_standardised() -> Run:
    """The same with every picture standardised, both eyes together: no picture is brighter than another, nor has more contrast."""
    return with_first(_folds(), Standardise())


def choose_folds_varied() -> Run:
    """The same, mirrored (the eyes change places), turned, slanted and stretched at random: shapes that no training toy has."""
    return with_first(_folds(), *VARIED)


def choose_folds_light_varied() -> Run:
    """The same with both: another light and another shape."""
    return with_first(_folds(), _LIGHT, *VARIED)


def choose_folds_fast() -> Run:
    """The same with twice the rate."""
    return _folds(rate=1e-3)


def choose_folds_r1() -> Run:
    """The same with one routing pass: the text does not say how many."""
    return _folds(rows.smallnorb_r1())


def choose_folds_r2() -> Run:
    """The same with two routing passes."""
    return _folds(rows.smallnorb_r2())


def choose_folds_standardised_r2() -> Run:
    """Standardised pictures and two routing passes."""
    return with_first(choose_folds_r2(), Standardise())


def choose_folds_no_coordinates() -> Run:
    """The same without the two channels that say where a pixel stands."""
    return _folds(rows.smallnorb_no_coordinates())


def choose_folds_no_coordinates_r2() -> Run:
    """No coordinates, and two routing passes."""
    return _folds(rows.smallnorb_no_coordinates_r2())


def choose_folds_no_mixup() -> Run:
    """The same without mixup; there are no mixed pictures, and no other statistics either."""
    return _folds(rows.smallnorb_no_mixup(), unmixed=0)


def choose_folds_mixup_half() -> Run:
    """No coordinates, two routing passes, and more mixup: shares of Beta(0.5, 0.5) instead of Beta(0.2, 0.2)."""
    return with_mixup(choose_folds_no_coordinates_r2(), 0.5)


def choose_folds_mixup_one() -> Run:
    """The same with shares of Beta(1, 1): any share is as likely."""
    return with_mixup(choose_folds_no_coordinates_r2(), 1.0)


def choose_folds_cnn() -> Run:
    """The network without capsules on all folds."""
    return _folds(rows.smallnorb_cnn())


def choose_folds_cnn_standardised() -> Run:
    """The network without capsules on all folds, every picture standardised."""
    return with_first(choose_folds_cnn(), Standardise())


def choose_text() -> Run:
    """beta1 between 0.999 and 0.8991, as the text says."""
    return _toys(rows.SMALLNORB, optimizer=RAdam(beta1=0.999))


def choose_capsnet() -> Run:
    """Sabour's network under this training."""
    return _toys(rows.smallnorb_capsnet())


def choose_capsnet_fast() -> Run:
    """Sabour's network with twice the rate, which is that of its own paper."""
    return _toys(rows.smallnorb_capsnet(), rate=1e-3)


def choose_cnn() -> Run:
    """The network without capsules under this training."""
    return _toys(rows.smallnorb_cnn())


def choose_cnn_fast() -> Run:
    """The network without capsules with twice the rate."""
    return _toys(rows.smallnorb_cnn(), rate=1e-3)
