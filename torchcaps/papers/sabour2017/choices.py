"""What the rows' settings were chosen by: runs on training pictures alone, some of them kept aside. No test set is seen."""

from dataclasses import replace

from torchcaps.data.batches import Crop, Light, Standardise
from torchcaps.papers.sabour2017 import affine, photographs, rows
from torchcaps.recipe import Cosine, Exponential, Run


def _choose(rate: float, schedule: Cosine | Exponential) -> Run:
    """5,000 training images kept aside: schedules are chosen on them, never on the test set."""
    run = rows.mnist_r3_recon()
    return replace(run, hold_out=5000, stages=(replace(run.stages[0], rate=rate, schedule=schedule),))


def choose_cosine() -> Run:
    """The schedule that the rows use, validated on held-out training images."""
    return _choose(1e-3, Cosine())


def choose_cosine_2() -> Run:
    """The same with twice the rate."""
    return _choose(2e-3, Cosine())


def choose_exponential() -> Run:
    """The authors' schedule, cut at the same number of epochs."""
    return _choose(1e-3, Exponential())


def _cnn(rate: float) -> Run:
    run = rows.mnist_cnn()
    return replace(run, hold_out=5000, stages=(replace(run.stages[0], rate=rate),))


def choose_cnn() -> Run:
    """The baseline with CapsNet's schedule."""
    return _cnn(1e-3)


def choose_cnn_low() -> Run:
    """The baseline with a third of the rate."""
    return _cnn(3e-4)


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


def choose_svhn() -> Run:
    """SVHN as the row trains it, on held-out training images."""
    return replace(photographs.svhn(), hold_out=5000)


def _warped(**model_args) -> Run:
    """Held-out training digits, placed and under affine maps: what any variant is chosen by."""
    run = affine.like_r3_end()
    return replace(run, hold_out=5000, views=("placed", "warped"), tests=(), model_args=run.model_args | model_args)


def choose_like_r3() -> Run:
    """Placed digits, three passes, judged on warped held-out training digits."""
    return _warped()


def choose_like_shared_uniform() -> Run:
    """One transform per class for all inputs, equal couplings."""
    return _warped(sharing="inputs", couplings="uniform")


def choose_like_types_r3() -> Run:
    """One transform per type of capsule and class, shared over places, three passes."""
    return _warped(sharing="places")


def choose_like_types_uniform() -> Run:
    """The same with equal couplings."""
    return _warped(sharing="places", couplings="uniform")
