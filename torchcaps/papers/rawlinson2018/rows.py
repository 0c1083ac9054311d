"""The networks of "Sparse Unsupervised Capsules Generalize Better". Paper's page: docs/papers/rawlinson2018.md.

Nothing here sees a label but the two that Table 1 compares with. What a classifier makes of the networks stands in readings.py.
"""

from dataclasses import replace

from torchcaps.papers.changes import with_model
from torchcaps.papers.rawlinson2018.shared import ASKED, LIKE, MNIST, STAGE, WINS
from torchcaps.results.claims import reproduces
from torchcaps.train.recipe import Run
from torchcaps.train.tasks.classify import Classify
from torchcaps.train.tasks.logits import ClassifyLogits

_SUPPORT = ("extras.relative_support_8",)


def _supervised(run: Run) -> Run:
    return replace(run, model="supcaps", model_args={"preset": "official"}, stages=(replace(STAGE, task=Classify()),))


@reproduces(table="3.5", row="squared error on MNIST, sparse, 28x28", metric="test.squared_error", printed=7.75, beside=WINS)
def mnist_sparse() -> Run:
    """MNIST's pictures alone at 28x28, 16 latent capsules, 30,000 steps."""
    return MNIST


@reproduces(table="3.5", row="squared error on MNIST, dense, 28x28", metric="test.squared_error", beside=_SUPPORT)
def mnist_dense() -> Run:
    """The same, trained without the mask (section 2.1)."""
    return with_model(MNIST, preset="dense")


@reproduces(table="1", row="supervised capsules, MNIST, 28x28", metric="test.error_percent", printed=0.77, beside=_SUPPORT)
def mnist_supervised() -> Run:
    """What they are compared with: one capsule per class, labels, reconstruction as a regulariser; as many steps."""
    return _supervised(MNIST)


@reproduces(
    table="3.5", row="squared error on affnist-like (printed: affNIST), sparse", metric=f"{ASKED}.squared_error", printed=18.49,
    beside=("test.squared_error", *WINS),
)  # fmt: skip
def like_sparse() -> Run:
    """MNIST's digits placed on 40x40: the network of Table 1."""
    return LIKE


@reproduces(
    table="3.5", row="squared error on affnist-like, dense", metric=f"{ASKED}.squared_error", beside=("test.squared_error", *_SUPPORT)
)
def like_dense() -> Run:
    """The same, trained without the mask."""
    return with_model(LIKE, preset="dense")


@reproduces(
    table="1", row="supervised capsules, affnist-like (printed: affNIST)", metric=f"{ASKED}.error_percent", printed=21.0,
    beside=("test.error_percent", *_SUPPORT),
)  # fmt: skip
def like_supervised() -> Run:
    """Labels, one capsule per class, digits placed on 40x40; 30,000 steps whatever the test digits say."""
    return _supervised(LIKE)


@reproduces(
    table="1", row="ConvNet, affnist-like (printed: affNIST)", metric=f"{ASKED}.error_percent", printed=34.0,
    beside=("test.error_percent",),
)  # fmt: skip
def like_convnet() -> Run:
    """Labels, a convolutional network of the same size, digits placed on 40x40; 30,000 steps."""
    return replace(LIKE, model="baseline", model_args={"preset": "affnist"}, stages=(replace(STAGE, task=ClassifyLogits()),))
