"""MNIST and smallNORB with self-attention routing. The paper's page: docs/papers/mazzia2021.md.

Adam's learning rate falls by 3 % an epoch, here smoothly, to a tenth. The weight of the reconstruction is the paper's
0.392 of the mean over 784 pixels, written for their sum. How much digits are turned and sheared is our choice.
"""

from torchcaps.data.augment import Crop, Light, Shift, Standardise, StandardiseFirst, Warp
from torchcaps.results.claims import Variant, reproduces, variants
from torchcaps.train.recipe import Run, Stage
from torchcaps.train.schedules import Cosine, Exponential
from torchcaps.train.tasks.classify import Classify

_CLAIM = {"table": "1", "metric": "test.error_percent", "selected": "best epoch by test"}
_MNIST, _SMALLNORB = {"printed": 0.26} | _CLAIM, {"printed": 2.54} | _CLAIM
# batches eight times as large, a learning rate chosen on held-out digits or toys (tuning.csv), averaged weights
_SHORT = {"batch": 128, "epochs": 60, "learning_rate": 2e-3, "schedule": Cosine(), "ema": 0.999}
_PLAIN = _SHORT | {"reconstruction": False}


def _stage(n_images: int, task: Classify) -> Stage:
    schedule = Exponential(decay=0.97, every=n_images // 16, floor=0.1)
    return Stage(task=task, epochs=150, batch=16, learning_rate=5e-4, schedule=schedule)


@reproduces(row="MNIST, Efficient-CapsNet, 161K parameters and decoder", **_MNIST)
def mnist() -> Run:
    """MNIST as in the paper: 150 epochs of batches of 16, rotation, shear and shift. Not run yet."""
    return Run(
        data="mnist",
        model="efficient-capsnet",
        model_args={"preset": "mnist", "reconstruction": True},
        augment=(Warp(turn=0.25, slant=0.2, stretch=0.0), Shift(2)),
        stages=(_stage(60_000, Classify(reconstruction_weight=0.392 / 784)),),
    )


@reproduces(row="smallNORB (a lossy copy), Efficient-CapsNet, 152K parameters, no decoder", **_SMALLNORB)
def smallnorb() -> Run:
    """smallNORB at 64x64, crops of 48x48, two cameras as channels, 150 epochs of batches of 16. Not run yet."""
    return Run(
        data="smallnorb-64",
        model="efficient-capsnet",
        model_args={"preset": "smallnorb", "reconstruction": False},
        augment=(Light(contrast=0.5), Crop(48), Standardise()),
        stages=(_stage(24_300, Classify()),),
    )


SHORT_MNIST = variants(
    mnist,
    {
        "mnist-short": Variant("MNIST, batches of 128, 60 epochs", _SHORT),
        "mnist-short-plain": Variant("MNIST, batches of 128, 60 epochs, no decoder", _PLAIN, printed=None),
    },
    **_MNIST,
)
# the authors change the light of standardised images by up to two standard deviations and half their contrast
_LIGHT = (StandardiseFirst(), Crop(48), Light(brightness=2 * 255, contrast=0.5, saturates=False))
_OFFICIAL = {"preset": "smallnorb-official", "augment": _LIGHT}
_LONGER = _SHORT | {"epochs": 200, "learning_rate": 1e-3}
SHORT_SMALLNORB = variants(
    smallnorb,
    {
        "smallnorb-short": Variant("smallNORB, batches of 128, 200 epochs", _LONGER),
        "smallnorb-short-official": Variant(
            "smallNORB, batches of 128, 200 epochs, stem and light as in the authors' code", _LONGER | _OFFICIAL
        ),
        "smallnorb-official": Variant("smallNORB, stem and light as in the authors' code", _OFFICIAL),
    },
    **_SMALLNORB,
)
