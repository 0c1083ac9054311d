"""Twenty steps of every model on generated images: seconds long, for tests and golden losses, not for numbers."""

from torchcaps.data.batches import Shift
from torchcaps.recipe import Run, Stage
from torchcaps.tasks.classify_pairs import ClassifyPairs
from torchcaps.tasks.logits import ClassifyLogits, ClassifyScores

_SMALL = {"channels": 16, "kernel": 5, "n_types": 4, "primary_kernel": 5, "hidden": (32, 64)}


def _smoke(**model_args) -> Run:
    return Run(
        data="generated-16",
        model="capsnet",
        model_args=_SMALL | model_args,
        augment=(Shift(2),),
        stages=(Stage(steps=20, batch=16, rate=3e-3, ema=0.9),),
    )


def capsnet() -> Run:
    """The authors' variant."""
    return _smoke()


def capsnet_paper() -> Run:
    """The paper's text to the letter."""
    return _smoke(preset="paper")


def capsnet_plain() -> Run:
    """No decoder, leaky couplings, one pass."""
    return _smoke(reconstruction=False, couplings="leaky", n_iters=1)


def capsnet_shared() -> Run:
    """One transform per class shared by all inputs, uniform couplings: the control without routing."""
    return _smoke(sharing="inputs", couplings="uniform")


def capsnet_pairs() -> Run:
    """Two overlapping pictures at once, each decoded."""
    stage = Stage(task=ClassifyPairs(), steps=20, batch=16, rate=3e-3, ema=0.9)
    return Run(data="generated-pairs", model="capsnet", model_args=_SMALL, stages=(stage,))


def baseline() -> Run:
    """A convolutional network without capsules."""
    stage = Stage(task=ClassifyLogits(), steps=20, batch=16, rate=3e-3, ema=0.9)
    return Run(data="generated-16", model="baseline", model_args={"preset": "small"}, augment=(Shift(2),), stages=(stage,))


def em_capsnet() -> Run:
    """EM routing twice: places to parts, parts to classes."""
    small = {"channels": 8, "strides": (1, 2), "n_types": 4, "n_parts": 6}
    stage = Stage(task=ClassifyScores(), steps=20, batch=16, rate=1e-2, ema=0.9)
    return Run(data="generated-16", model="em-capsnet", model_args=small, augment=(Shift(2),), stages=(stage,))
