"""Deep capsule networks: accuracy against the number of routed layers. Docs: docs/deep-networks.md."""

from torchcaps.data.augment import Shift
from torchcaps.results.claims import Variant, reproduces, variants
from torchcaps.train.recipe import Run, Stage
from torchcaps.train.schedules import Cosine
from torchcaps.train.tasks.classify import Classify, ClassifyFrozen
from torchcaps.train.tasks.logits import ClassifyScores
from torchcaps.train.vary import vary

_ERROR = {"metric": "test.error_percent"}
_MNIST = {"table": "MNIST"} | _ERROR
_RATE = 2e-3  # chosen on held-out digits for one layer, and among the best for five: results/depth/tuning.csv


@reproduces(row="MNIST, 1 routed layer", **_MNIST)
def mnist_1() -> Run:
    """Ten epochs of MNIST."""
    stage = Stage(task=Classify(), epochs=10, batch=128, learning_rate=_RATE, schedule=Cosine(warmup=0.05), ema=0.999)
    return Run(data="mnist", model="deep-capsnet", model_args={"depth": 1}, augment=(Shift(2),), stages=(stage,))


MNIST = variants(
    mnist_1,
    {
        "mnist-2": Variant("MNIST, 2 routed layers", {"depth": 2}),
        "mnist-3": Variant("MNIST, 3 routed layers", {"depth": 3}),
        "mnist-4": Variant("MNIST, 4 routed layers", {"depth": 4}),
        "mnist-5": Variant("MNIST, 5 routed layers", {"depth": 5}),
        "mnist-5-frozen": Variant(
            "MNIST, 5 routed layers, frozen as they started", {"depth": 5, "task": ClassifyFrozen(frozen=("levels.",))}
        ),
        "mnist-3-em": Variant(
            "MNIST, 3 layers, EM routing", {"depth": 3, "model_args.routing": "em", "task": ClassifyScores()}
        ),
    },
    **_MNIST,
)


@reproduces(row="50 classes, 1 routed layer", table="50 classes", **_ERROR)
def places_1() -> Run:
    """Ten epochs of digits at five places, fifty classes."""
    return vary(mnist_1(), {"data": "mnist-places"})


PLACES = variants(
    places_1,
    {
        "places-3": Variant("50 classes, 3 routed layers", {"depth": 3}),
        "places-5": Variant("50 classes, 5 routed layers", {"depth": 5}),
    },
    table="50 classes",
    **_ERROR,
)


@reproduces(row="64x64 RGB, a convolutional layer and 1 more", table="64x64", **_ERROR)
def colour_1() -> Run:
    """Ten epochs of 20,000 coloured digits of 64x64, with a convolutional capsule layer before the routed ones."""
    return vary(mnist_1(), {"data": "mnist-colour-64-rgb", "model_args": {"depth": 1, "stride": 2, "n_conv": 1}})


COLOUR = variants(
    colour_1,
    {
        "colour-3": Variant("64x64 RGB, a convolutional layer and 3 more", {"depth": 3}),
        "colour-5": Variant("64x64 RGB, a convolutional layer and 5 more", {"depth": 5}),
    },
    table="64x64",
    **_ERROR,
)
