"""Table 1 of "Dynamic Routing Between Capsules": MNIST and MultiMNIST. Paper's page: docs/papers/sabour2017.md."""

from dataclasses import replace

from torchcaps.data.augment import Shift
from torchcaps.papers.changes import with_model, with_stage
from torchcaps.train.recipe import Cosine, Run, Stage, reproduces
from torchcaps.train.tasks.classify_pairs import ClassifyPairs
from torchcaps.train.tasks.logits import ClassifyLogits, ClassifyPairLogits

_MNIST = Run(
    data="mnist",
    model="capsnet",
    model_args={"preset": "official", "n_iters": 3, "reconstruction": True},
    augment=(Shift(2),),
    stages=(Stage(epochs=60, batch=128, rate=1e-3, schedule=Cosine(), ema=0.999),),
)
_BEST = {"table": "1", "metric": "test.error_percent", "printed": 0.25, "printed_sd": 0.005, "selected": "mean of 3"}


def _with(**model_args) -> Run:
    return with_model(_MNIST, **model_args)


@reproduces(table="1", row="CapsNet, 1 iteration", metric="test.error_percent", printed=0.34, printed_sd=0.032, selected="mean of 3")
def mnist_r1() -> Run:
    """MNIST, one routing pass, no reconstruction."""
    return _with(n_iters=1, reconstruction=False)


@reproduces(
    table="1", row="CapsNet, 1 iteration, reconstruction", metric="test.error_percent", printed=0.29, printed_sd=0.011, selected="mean of 3"
)
def mnist_r1_recon() -> Run:
    """MNIST, one routing pass, with reconstruction."""
    return _with(n_iters=1)


@reproduces(table="1", row="CapsNet, 3 iterations", metric="test.error_percent", printed=0.35, printed_sd=0.036, selected="mean of 3")
def mnist_r3() -> Run:
    """MNIST, three routing passes, no reconstruction."""
    return _with(reconstruction=False)


@reproduces(row="CapsNet, 3 iterations, reconstruction", **_BEST)
def mnist_r3_recon() -> Run:
    """MNIST, three routing passes, with reconstruction."""
    return _MNIST


@reproduces(row="CapsNet, 3 iterations, reconstruction, 300 epochs", **_BEST)
def mnist_r3_recon_long() -> Run:
    """The same, five times as long; the authors trained 640 epochs."""
    return with_stage(_MNIST, epochs=300)


@reproduces(row="CapsNet, 3 iterations, reconstruction, batches of 64", **_BEST)
def mnist_r3_recon_64() -> Run:
    """The same with half the batch, so twice the steps."""
    return with_stage(_MNIST, batch=64)


@reproduces(row="CapsNet, 3 iterations, reconstruction, batches of 64, preset official-torch-init", **_BEST)
def mnist_r3_recon_64_torch_init() -> Run:
    """The same with the first weights of the preset `paper`: on held-out digits better by two images of 5,000, with two seeds."""
    return with_model(mnist_r3_recon_64(), preset="official-torch-init")


@reproduces(table="A", row="CapsNet, 2 iterations, reconstruction", metric="test.error_percent")
def mnist_r2_recon() -> Run:
    """MNIST, two routing passes: for the error against passes."""
    return _with(n_iters=2)


@reproduces(table="A", row="CapsNet, 4 iterations, reconstruction", metric="test.error_percent")
def mnist_r4_recon() -> Run:
    """MNIST, four routing passes: for the error against passes."""
    return _with(n_iters=4)


@reproduces(table="A", row="CapsNet, 5 iterations, reconstruction", metric="test.error_percent")
def mnist_r5_recon() -> Run:
    """MNIST, five routing passes; how far each pass moves the logits goes to the journal once per epoch, for figure A.1."""
    return with_stage(_with(n_iters=5), probe_every=468)


@reproduces(table="1", row="baseline CNN", metric="test.error_percent", printed=0.39, selected="selection not said")
def mnist_cnn() -> Run:
    """MNIST, the convolutional network of 35.4M parameters, trained as CapsNet is."""
    stage = replace(_MNIST.stages[0], task=ClassifyLogits())
    return replace(_MNIST, model="baseline", model_args={"preset": "mnist"}, stages=(stage,))


@reproduces(table="1", row="baseline CNN, half the rate", metric="test.error_percent", printed=0.39, selected="selection not said")
def mnist_cnn_half() -> Run:
    """The same with half the rate: on held-out digits better by three images of 5,000 with either of two seeds; the best of four rates."""
    return with_stage(mnist_cnn(), rate=5e-4)


def _pairs(shift: int, rate: float = 2e-3, **model_args) -> Run:  # the best of four rates on held-out pairs, three passes, shift 4
    stage = Stage(task=ClassifyPairs(), steps=300_000, batch=128, rate=rate, schedule=Cosine())
    return Run(data=f"multimnist-{shift}", model="capsnet", model_args=_MNIST.model_args | model_args, stages=(stage,))


def _pairs_cnn(shift: int) -> Run:
    run = _pairs(shift)
    stage = replace(run.stages[0], task=ClassifyPairLogits(), rate=3e-4)  # the best of three on held-out pairs
    return replace(run, model="baseline", model_args={"preset": "multimnist", "dropout": 0.0}, stages=(stage,))


_EXACT = "test.exact_match_error_percent"
_BESIDE = "test.half_credit_error_percent", "extras.segmentation_iou"
_PAIRS = {"table": "1", "metric": _EXACT, "selected": "selection not said", "beside": _BESIDE}


@reproduces(row="MultiMNIST, shift 4: CapsNet, 1 iteration, reconstruction, twice MNIST's rate", printed=7.5, **_PAIRS)
def multimnist_4_r1() -> Run:
    """Two overlapping digits, each moved by up to 4 pixels, one routing pass, twice MNIST's rate."""
    return _pairs(4, n_iters=1)


@reproduces(row="MultiMNIST, shift 4: CapsNet, 3 iterations, reconstruction", printed=5.2, **_PAIRS)
def multimnist_4_r3() -> Run:
    """Two overlapping digits, each moved by up to 4 pixels, three routing passes, MNIST's rate."""
    return _pairs(4, rate=1e-3)


@reproduces(row="MultiMNIST, shift 4: CapsNet, 3 iterations, reconstruction, twice MNIST's rate", printed=5.2, **_PAIRS)
def multimnist_4_r3_high() -> Run:
    """The same with twice the rate, which is better on held-out pairs."""
    return _pairs(4)


@reproduces(table="1", row="MultiMNIST, shift 6: CapsNet, 3 iterations, reconstruction, twice MNIST's rate", metric=_EXACT, beside=_BESIDE)
def multimnist_6_r3() -> Run:
    """Three passes, twice MNIST's rate, moves of up to 6 pixels, as the released generator makes them."""
    return _pairs(6)


@reproduces(
    table="1", row="MultiMNIST, shift 4: baseline CNN", metric=_EXACT, printed=8.1, selected="width by test accuracy", beside=_BESIDE[:1]
)
def multimnist_4_cnn() -> Run:
    """Two overlapping digits, the convolutional network of 24.6M parameters, without dropout as section 6 describes it."""
    return _pairs_cnn(4)


@reproduces(table="1", row="MultiMNIST, shift 6: baseline CNN", metric=_EXACT, beside=_BESIDE[:1])
def multimnist_6_cnn() -> Run:
    """The same with moves of up to 6 pixels."""
    return _pairs_cnn(6)
