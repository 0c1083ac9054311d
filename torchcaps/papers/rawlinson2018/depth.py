"""What the paper leaves open (section 4): several latent layers, and EM routing, on digits and on smallNORB."""

from dataclasses import replace

from torchcaps.data.augment import Crop
from torchcaps.papers.rawlinson2018.shared import MNIST, STAGE, WINS, claim, reading
from torchcaps.train.recipe import Run, reproduces

_LAYERS = tuple(f"extras.layer_{number}_activity_middle" for number in (1, 2, 3))


def _claim(row: str, table: str):
    return reproduces(table=table, row=row, metric="test.squared_error", beside=_LAYERS if table == "depth" else WINS)


def _stack(preset: str, routing: str) -> Run:
    """Three layers; EM routing has 8 types of 4x4 poses in place of 32 of 8 numbers: half as many numbers, and votes that fit."""
    sizes = {"n_types": 8, "d_primary": 16} if routing == "em" else {}
    stage = replace(STAGE, steps=10_000)
    args = {"preset": preset, "routing": routing, "n_layers": 3, **sizes}
    return replace(MNIST, model="stackedcaps", model_args=args, stages=(stage,))


@_claim("three latent layers, sparse, routing by agreement, 10,000 steps", table="depth")
def stack_sparse() -> Run:
    """Does activity become uniform with depth? `extras.layers` has support and activity by rank for every layer."""
    return _stack("sparse", "dynamic")


@_claim("three latent layers, dense, routing by agreement, 10,000 steps", table="depth")
def stack_dense() -> Run:
    """The same without masks."""
    return _stack("dense", "dynamic")


@_claim("three latent layers, sparse, EM routing, 10,000 steps", table="depth")
def stack_em_sparse() -> Run:
    """The same with EM routing."""
    return _stack("sparse", "em")


@_claim("three latent layers, dense, EM routing, 10,000 steps", table="depth")
def stack_em_dense() -> Run:
    """EM routing without masks."""
    return _stack("dense", "em")


def _norb(preset: str) -> Run:
    """smallNORB at half size, crops of 32x32 as others use them, one latent layer of 16 capsules."""
    args = {"preset": preset, "routing": "em", "n_layers": 1, "n_types": 8, "d_primary": 16}
    stage = replace(STAGE, steps=10_000)
    return replace(MNIST, data="smallnorb-48", model="stackedcaps", model_args=args, augment=(Crop(32),), stages=(stage,))


@_claim("smallNORB (a lossy copy), sparse, EM routing, 10,000 steps", table="EM")
def smallnorb_em_sparse() -> Run:
    """What section 4 hopes to do next: sparse capsules with EM routing on smallNORB."""
    return _norb("sparse")


@_claim("smallNORB (a lossy copy), dense, EM routing, 10,000 steps", table="EM")
def smallnorb_em_dense() -> Run:
    """The same without the mask."""
    return _norb("dense")


@claim("smallNORB, sparse, EM routing + SVM, pre-mask", "smallnorb-48/test", table="EM")
def smallnorb_em_sparse_svm() -> Run:
    """Machine fitted to the 24,300 training pictures, asked other toys."""
    return reading(_norb("sparse"), "smallnorb-em-sparse", "smallnorb-48/train", "smallnorb-48/test")


@claim("smallNORB, dense, EM routing + SVM", "smallnorb-48/test", table="EM")
def smallnorb_em_dense_svm() -> Run:
    """The same of dense capsules."""
    return reading(_norb("dense"), "smallnorb-em-dense", "smallnorb-48/train", "smallnorb-48/test")
