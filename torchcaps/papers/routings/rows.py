"""Every routing on one stem with one training (docs/which-routing.md): smallNORB, MNIST with affine test digits,
Fashion-MNIST, CIFAR-10, and the bundled digits, which a CPU trains.

Rows of a set differ in the routing, in the loss that fits it and in the learning rate; baselines have no capsules.
Two more rows on smallNORB are trained as the EM network of Heinsen 2019.
"""

from torchcaps.data.augment import Augmentation, Crop, Flip, Light, Shift, Standardise
from torchcaps.data.augment.warp import Warp
from torchcaps.layers.routings import EM, ROUTINGS, Dynamic, MatrixEM, Routing, SelfRouting
from torchcaps.papers.heinsen2019 import rows as heinsen2019
from torchcaps.results.claims import Variant, Variants, variants
from torchcaps.train.recipe import Run, Stage
from torchcaps.train.schedules import Cosine
from torchcaps.train.tasks.by_routing import task_for
from torchcaps.train.tasks.logits import ClassifyLogits
from torchcaps.train.vary import vary

LEFT_OUT = {
    "ladder": "keeps the most active inputs: no transforms to share over places, and ladders do not stack",
    "leaky": "dynamic routing with one logit more",
}
# matrix routings have transforms of 4x4; with one row they have 16x16, as many parameters as the others
FULL: dict[str, Routing] = {"em-full": EM(rows=1), "matrix-em-full": MatrixEM(rows=1)}
# what the authors' code has beyond the paper's formula
AS_RELEASED: dict[str, Routing] = {"self-routing-norm": SelfRouting(bias=True, batch_norm=True)}
# batch norm before routings whose papers have none; learning rates were chosen on digits alone
NORMALISED: dict[str, Routing] = {
    "uniform-norm": Dynamic(couplings="uniform", n_iters=1, batch_norm=True),
    "dynamic-norm": Dynamic(batch_norm=True),
}
COMPARED: dict[str, str | Routing] = (
    {name: name for name in ROUTINGS if name not in LEFT_OUT} | FULL | AS_RELEASED | NORMALISED
)
SMALL = {"channels": 32, "n_types": 8, "n_parts": 16}  # sizes for 16x16 images
_LARGE_BASELINES = {
    "pooled": {"model": "pooled-net", "model_args": {}, "task": ClassifyLogits()},
    "cnn": {"model": "baseline", "model_args": {"preset": "smallnorb"}, "task": ClassifyLogits()},
}
_PHOTO_BASELINES = _LARGE_BASELINES | {
    "cnn": {"model": "baseline", "model_args": {"preset": "photos"}, "task": ClassifyLogits()}
}
_SMALL_BASELINES = {
    "pooled": {"model": "pooled-net", "model_args": {"channels": 32}, "task": ClassifyLogits()},
    "cnn": {"model": "baseline", "model_args": {"preset": "judge"}, "task": ClassifyLogits()},
}
BASELINES = {
    "smallnorb": _LARGE_BASELINES,
    "like": _LARGE_BASELINES,
    "fashion": _PHOTO_BASELINES,
    "cifar": _PHOTO_BASELINES,
    "digits": _SMALL_BASELINES,
}
WITHOUT_CAPSULES = tuple(_LARGE_BASELINES)  # names of the baselines, which have no capsules
ABOUT = {
    "em-full": "em, 16x16 transforms",
    "matrix-em-full": "matrix-em, 16x16 transforms",
    "self-routing-norm": "self-routing, batch norm",
    "uniform-norm": "uniform, batch norm",
    "dynamic-norm": "dynamic, batch norm",
    "pooled": "no capsules: mean pooling",
    "cnn": "no capsules: CNN",
}
# sets that are compared without these rows
WITHOUT: dict[str, tuple[str, ...]] = {
    "smallnorb": (*NORMALISED,),
    "like": (*NORMALISED,),
    "fashion": (*FULL, *NORMALISED),
    "cifar": (*FULL, *NORMALISED),
}
# Chosen from 1e-3 and 3e-3 on held-out images, smallNORB in float32, affine digits on warped training digits
# (results/routings/tuning.csv): the higher one for these rows.
LOW, HIGH = 1e-3, 3e-3
HIGHER: dict[str, tuple[str, ...]] = {
    "smallnorb": ("max-min", "matrix-em", "self-attention", "self-routing", "self-routing-norm", "em-full", "pooled"),
    "like": (
        "dynamic",
        "max-min",
        "uniform",
        "random",
        "matrix-em",
        "lazy",
        "self-routing",
        "inverted",
        "pooled",
        "cnn",
    ),
    "fashion": (*COMPARED, *WITHOUT_CAPSULES),
    "cifar": (*COMPARED, *WITHOUT_CAPSULES),
    "digits": (*COMPARED, *WITHOUT_CAPSULES),
}
SETS = {
    "smallnorb": "smallNORB",
    "like": "affine digits, trained on MNIST",
    "fashion": "Fashion-MNIST",
    "cifar": "CIFAR-10",
    "digits": "1,797 digits of 8x8, tested on other writers",
}
# by set: routings, then baselines
NAMES = {
    which: tuple(name for name in (*COMPARED, *WITHOUT_CAPSULES) if name not in WITHOUT.get(which, ()))
    for which in SETS
}
METRICS = dict.fromkeys(SETS, "test.error_percent") | {"like": "affnist-like.error_percent"}
CONTROL = "uniform"  # capsules without routing, which the others are compared with


def _run(
    data: str,
    augment: tuple[Augmentation, ...],
    *,
    epochs: int,
    batch: int,
    model_args: dict[str, int] | None = None,
    tests: tuple[str, ...] = (),
    precision: str = "bfloat16",
) -> Run:
    """Return the run that the rows of a set vary: one network, one training."""
    stage = Stage(epochs=epochs, batch=batch, schedule=Cosine(warmup=0.05), precision=precision)
    args = model_args or {}
    return Run(data=data, model="routing-net", model_args=args, augment=augment, tests=tests, stages=(stage,))


def _smallnorb() -> Run:
    """smallNORB at 96x96, both cameras as channels."""
    return _run("smallnorb", (Light(contrast=0.5), Crop(96, border=16)), epochs=40, batch=64)


def _like() -> Run:
    """MNIST placed at random on 40x40, tested on affine digits too, as in sabour2017/like-r3-end."""
    # every place of a 28x28 image within the frame
    return _run("mnist-40", (Shift(6),), epochs=15, batch=128, tests=("affnist-like",))


def _fashion() -> Run:
    """Fashion-MNIST, shifted a little and flipped."""
    return _run("fashion-mnist", (Shift(2), Flip()), epochs=15, batch=128)


def _cifar() -> Run:
    """CIFAR-10, padded crops and flipped, as in tsai2020/cifar10."""
    return _run("cifar10", (Crop(32, border=4), Flip(), Standardise()), epochs=20, batch=128)


def _digits() -> Run:
    """Digits inside scikit-learn, at 16x16, a little warped; the playground shows these networks."""
    augment = (Warp(), Shift(1))
    # bfloat16 is for GPUs, and these rows are trained on CPUs
    return _run("digits-writers", augment, epochs=25, batch=32, model_args=SMALL, precision="float32")


def _rows(which: str) -> Variants:
    """Make the rows of a set: every routing compared, then the baselines."""
    bases = {"smallnorb": _smallnorb, "like": _like, "fashion": _fashion, "cifar": _cifar, "digits": _digits}
    compared = {name: given for name, given in COMPARED.items() if name in NAMES[which]}
    changes = {name: {"routing": given, "task": task_for(given)} for name, given in compared.items()} | BASELINES[which]
    rates = {name: {"learning_rate": HIGH if name in HIGHER[which] else LOW} for name in changes}
    made = {
        f"{which}-{name}": Variant(f"{SETS[which]}: {ABOUT.get(name, name)}", change | rates[name])
        for name, change in changes.items()
    }
    return variants(bases[which], made, table=SETS[which], metric=METRICS[which])


SMALLNORB = _rows("smallnorb")
LIKE = _rows("like")
FASHION = _rows("fashion")
CIFAR = _rows("cifar")
DIGITS = _rows("digits")


def _smallnorb_long() -> Run:
    """Train as heinsen2019/smallnorb-mixup-half, whose settings were chosen on held-out toys for the EM network."""
    last_step = {"watch": None, "ema": 0.0, "unmixed": 0}
    base = heinsen2019.LIKE_IT["smallnorb-mixup-half"]()
    return vary(base, {"model": "routing-net", "model_args": {}} | last_step)


LONG = variants(
    _smallnorb_long,
    {
        f"long-smallnorb-{name}": Variant(
            f"smallNORB, 50 epochs of batches of 20, mixup: {name}", {"routing": name, "task": task_for(name)}
        )
        for name in ("dynamic", CONTROL)
    },
    table="smallNORB, trained as the EM network",
    metric=METRICS["smallnorb"],
)
