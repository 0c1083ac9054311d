"""Table 1 of "Dynamic Routing Between Capsules", the MNIST rows. Paper's page: docs/papers/sabour2017.md."""

from dataclasses import replace

from torchcaps.data.batches import Shift
from torchcaps.recipe import Cosine, Exponential, Run, Stage, reproduces

_MNIST = Run(
    data="mnist",
    model="capsnet",
    model_args={"preset": "official", "n_iters": 3, "reconstruction": True},
    augment=(Shift(2),),
    stages=(Stage(epochs=60, batch=128, rate=1e-3, schedule=Cosine(), ema=0.999),),
)


def _with(**model_args) -> Run:
    return replace(_MNIST, model_args=_MNIST.model_args | model_args)


@reproduces(table="1", row="CapsNet, 1 iteration", metric="test.error_percent", printed=0.34, printed_sd=0.032)
def mnist_r1() -> Run:
    """MNIST, one routing pass, no reconstruction."""
    return _with(n_iters=1, reconstruction=False)


@reproduces(table="1", row="CapsNet, 1 iteration, reconstruction", metric="test.error_percent", printed=0.29, printed_sd=0.011)
def mnist_r1_recon() -> Run:
    """MNIST, one routing pass, with reconstruction."""
    return _with(n_iters=1)


@reproduces(table="1", row="CapsNet, 3 iterations", metric="test.error_percent", printed=0.35, printed_sd=0.036)
def mnist_r3() -> Run:
    """MNIST, three routing passes, no reconstruction."""
    return _with(reconstruction=False)


@reproduces(table="1", row="CapsNet, 3 iterations, reconstruction", metric="test.error_percent", printed=0.25, printed_sd=0.005)
def mnist_r3_recon() -> Run:
    """MNIST, three routing passes, with reconstruction."""
    return _MNIST


def _choose(rate: float, schedule: Cosine | Exponential) -> Run:
    """5,000 training images kept aside: schedules are chosen on them, never on the test set."""
    return replace(_MNIST, hold_out=5000, stages=(replace(_MNIST.stages[0], rate=rate, schedule=schedule),))


def choose_cosine() -> Run:
    """The schedule that the rows use, validated on held-out training images."""
    return _choose(1e-3, Cosine())


def choose_cosine_2() -> Run:
    """The same with twice the rate."""
    return _choose(2e-3, Cosine())


def choose_exponential() -> Run:
    """The authors' schedule, cut at the same number of epochs."""
    return _choose(1e-3, Exponential())
