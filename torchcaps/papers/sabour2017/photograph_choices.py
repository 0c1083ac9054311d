"""What the settings of section 7 were chosen by: runs on training pictures alone, some of them kept aside. No test set is seen."""

from dataclasses import replace

from torchcaps.data.augment import Augmentation, Crop, Light, Standardise
from torchcaps.data.augment.mixup import Mixup
from torchcaps.papers.changes import VARIED, with_model
from torchcaps.papers.sabour2017 import photographs
from torchcaps.train.recipe import Run


def _toys(**changes) -> Run:
    """One toy of each category of the official training part kept aside: the test part has other toys too."""
    return replace(photographs.smallnorb(), data="smallnorb-48-toys", **changes)


def choose_smallnorb() -> Run:
    """smallNORB, the augmentation that the row uses, on toys kept aside."""
    return _toys()


def choose_smallnorb_plain() -> Run:
    """Crops alone, no change of light."""
    return _toys(augment=(Crop(32), Standardise()))


def choose_smallnorb_faint() -> Run:
    """Half the change of light."""
    return _toys(augment=(Light(32, 0.4), Crop(32), Standardise()))


def choose_smallnorb_decoder() -> Run:
    """With the decoder, whose sigmoid reaches what of a standardised picture lies in 0..1."""
    run = photographs.smallnorb()
    return _toys(model_args=run.model_args | {"reconstruction": True})


def choose_smallnorb_paper() -> Run:
    """The text's preset."""
    run = photographs.smallnorb()
    return _toys(model_args=run.model_args | {"preset": "paper"})


def choose_smallnorb_short() -> Run:
    """A quarter of the epochs."""
    return _toys(stages=(replace(photographs.smallnorb().stages[0], epochs=50),))


def _folds(*augment: Augmentation, data: str = "smallnorb-48-folds", **model_args) -> Run:
    """For every seed another toy of each category kept aside, and half the row's epochs: five seeds judge by all 25 toys.

    Toy 9 alone is a poor judge: its car is a racing car, taken for an airplane whatever the settings (LOG.md).
    """
    run = photographs.smallnorb()
    stage = replace(run.stages[0], epochs=100, ema=0.999)
    augment = (*augment, Crop(32), Standardise())
    return replace(run, data=data, model_args=run.model_args | model_args, augment=augment, stages=(stage,))


def choose_smallnorb_folds() -> Run:
    """smallNORB as the row trains it, on all folds."""
    return _folds(Light())


def choose_smallnorb_folds_paper() -> Run:
    """smallNORB on all folds, the text's preset."""
    return _folds(Light(), preset="paper")


def choose_smallnorb_folds_torch_init() -> Run:
    """smallNORB on all folds, the first weights of the text's preset."""
    return _folds(Light(), preset="official-torch-init")


def choose_smallnorb_folds_types() -> Run:
    """smallNORB on all folds, one transform per type and class, shared over places."""
    return _folds(Light(), sharing="places")


def choose_smallnorb_folds_paper_types() -> Run:
    """smallNORB on all folds, one transform per type and class, the text's preset."""
    return _folds(Light(), preset="paper", sharing="places")


def choose_smallnorb_folds_thinned() -> Run:
    """Every second pixel, as in the authors' code, instead of means of four."""
    return _folds(Light(), data="smallnorb-48-thinned-folds")


def choose_smallnorb_folds_authors() -> Run:
    """Every second pixel, light that does not saturate, a decoder: all as in the authors' code."""
    return _folds(Light(saturates=False), data="smallnorb-48-thinned-folds", reconstruction=True)


def choose_smallnorb_folds_strong() -> Run:
    """More light: up to 100 grey levels, a contrast of 0.1 to 1.9."""
    return _folds(Light(100, 0.9))


def choose_smallnorb_folds_varied() -> Run:
    """Every second pair as in a mirror, the eyes exchanged; all a little turned, slanted and stretched: toys that could be there."""
    return _folds(*VARIED, Light())


def choose_smallnorb_folds_mixup() -> Run:
    """Blends of two pictures, as Heinsen 2019 trains on this set."""
    run = _folds(Light())
    return replace(run, augment=(*run.augment, Mixup(0.2)))


def choose_smallnorb_folds_types_uniform() -> Run:
    """A transform per type and class, equal couplings: on affine digits the best."""
    return _folds(Light(), sharing="places", couplings="uniform")


def choose_smallnorb_folds_small() -> Run:
    """The small network that section 7 has for SVHN."""
    return _folds(Light(), channels=64, n_types=16, d_primary=6, d_class=8)


def choose_smallnorb_folds_types_mixup() -> Run:
    """A transform per type and class, and blends of two pictures."""
    run = choose_smallnorb_folds_types()
    return replace(run, augment=(*run.augment, Mixup(0.2)))


def choose_smallnorb_folds_uniform() -> Run:
    """Equal couplings, in training and in the test: on the first fold fewer passes were better in the test."""
    return _folds(Light(), couplings="uniform")


def choose_smallnorb_folds_types_uniform_mixup() -> Run:
    """A transform per type and class, equal couplings, and blends of two pictures."""
    run = choose_smallnorb_folds_types_uniform()
    return replace(run, augment=(*run.augment, Mixup(0.2)))


def choose_svhn() -> Run:
    """SVHN as the row trains it, on held-out training images."""
    return replace(photographs.svhn(), hold_out=5000)


def _short_cifar(light: Light, rate: float = 1e-3) -> Run:
    """A fifth of the row's steps, on 5,000 held-out training images."""
    run = photographs.cifar10()
    stage = replace(run.stages[0], steps=12_000, rate=rate)
    augment = tuple(light if isinstance(part, Light) else part for part in run.augment)
    return replace(run, hold_out=5000, keep_scores=False, augment=augment, stages=(stage,))


def choose_cifar10() -> Run:
    """CIFAR-10 as the row trains it, but short."""
    return _short_cifar(Light(saturates=False))


def choose_cifar10_light() -> Run:
    """Light that saturates, as a camera's does."""
    return _short_cifar(Light())


def choose_cifar10_fast() -> Run:
    """Twice the rate."""
    return _short_cifar(Light(saturates=False), 2e-3)


def choose_cifar10_paper() -> Run:
    """CIFAR-10 as the row trains it, but short, the text's preset."""
    return with_model(choose_cifar10(), preset="paper")
