"""What settings are chosen by on MNIST: 5,000 training digits kept aside. No test set is seen."""

from dataclasses import replace

from torchcaps.papers.changes import with_model, with_stage
from torchcaps.papers.jeong2019 import rows
from torchcaps.train.recipe import Exponential, Run
from torchcaps.train.tasks.ladder import ClassifyLadder


def _mnist(run: Run | None = None, **stage) -> Run:
    return replace(with_stage(run or rows.mnist_shift_k70(), **stage), hold_out=5000)


def choose_mnist() -> Run:
    """MNIST, K = 70, shifted, as the row trains it."""
    return _mnist()


def choose_mnist_plain() -> Run:
    """The same without the shift."""
    return _mnist(rows.mnist_k70())


def choose_mnist_low() -> Run:
    """A third of the rate."""
    return _mnist(rate=3e-4)


def choose_mnist_fast() -> Run:
    """Twice the rate."""
    return _mnist(rate=2e-3)


def choose_mnist_long() -> Run:
    """Twice the epochs."""
    return _mnist(epochs=60)


def choose_mnist_exponential() -> Run:
    """The withdrawn file's schedule and batch: 1e-3 x 0.9 every 1000 steps of 50 images."""
    return _mnist(batch=50, schedule=Exponential(rate=0.9, every=1000))


def choose_mnist_shared() -> Run:
    """One net of a kind for all classes."""
    return _mnist(rows.mnist_shift_shared_k70())


def choose_mnist_linear() -> Run:
    """First weights of the nets as PyTorch's linear layers have them."""
    return _mnist(with_model(rows.mnist_shift_k70(), start="linear"))


def choose_mnist_strong_code() -> Run:
    """Ten times the weight on the difference of code and activity."""
    return _mnist(task=ClassifyLadder(code_weight=1e-3))
