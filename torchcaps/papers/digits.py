"""Recipes of the demo and the playground: small networks on scikit-learn's handwritten digits, without download."""

from dataclasses import replace

from torchcaps.data.augment import Shift
from torchcaps.data.augment.warp import Warp
from torchcaps.results.claims import reproduces
from torchcaps.train.recipe import Run, Stage
from torchcaps.train.schedules import Cosine
from torchcaps.train.tasks.classify import Classify
from torchcaps.train.tasks.classify_pairs import ClassifyPairs
from torchcaps.train.tasks.ladder import ClassifyLadder
from torchcaps.train.tasks.logits import ClassifyLogits

_DIGITS = Run(
    data="digits",
    model="capsnet",
    model_args={
        "preset": "paper",
        "channels": 48,
        "kernel": 5,
        "n_types": 8,
        "primary_kernel": 5,
        "hidden": (128, 256),
    },
    augment=(Shift(1),),
    stages=(
        Stage(
            task=Classify(reconstruction_weight=0.005),
            epochs=20,
            batch=32,
            learning_rate=4e-3,
            schedule=Cosine(warmup=0.05),
        ),
    ),
)


@reproduces(table="demo", row="digits, a stratified fifth held out", metric="test.error_percent")
def stratified() -> Run:
    """Small CapsNet on 1,797 digits; a stratified random fifth is the test set."""
    return _DIGITS


@reproduces(table="demo", row="digits, other writers held out", metric="test.error_percent")
def writers() -> Run:
    """Small CapsNet tested on the last fifth of the digits, by other writers; this is harder."""
    return replace(_DIGITS, data="digits-writers")


def warped() -> Run:
    """The demo's network trained on slightly warped digits, so that it reads new handwriting in the playground."""
    return replace(_DIGITS, augment=(Warp(), Shift(1)), stages=(replace(_DIGITS.stages[0], epochs=25),))


def pairs() -> Run:
    """CapsNet for two overlapping digits, for the playground. Larger kernels keep the number of weights small."""
    args = _DIGITS.model_args | {"kernel": 7, "primary_kernel": 7}
    stage = replace(_DIGITS.stages[0], task=ClassifyPairs(reconstruction_weight=0.005), epochs=100, learning_rate=4e-3)
    return replace(_DIGITS, data="digits-pairs", model_args=args, augment=(), stages=(stage,))


def plain() -> Run:
    """Small convolutional network without capsules, the playground's baseline."""
    stage = replace(_DIGITS.stages[0], task=ClassifyLogits(), learning_rate=2e-3)
    return replace(_DIGITS, model="baseline", model_args={"preset": "small", "dropout": 0.2}, stages=(stage,))


def ladder() -> Run:
    """Small ladder capsule network on the same digits (papers/jeong2019); it trains on a CPU."""
    args = {"channels": 48, "kernel": 5, "n_types": 8, "primary_kernel": 5, "d_class": 8, "n_kept": 16}
    stage = replace(_DIGITS.stages[0], task=ClassifyLadder(), learning_rate=2e-3)
    return replace(_DIGITS, model="lcapsnet", model_args=args, stages=(stage,))
