"""`affnist-like`: MNIST test digits under small affine maps, by the rule of affine.py, fitted to affNIST."""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from torchcaps.data.sets import mnist
from torchcaps.data.sets.affine import FRAME, SEED, warped
from torchcaps.data.specs import DataInfo, DataSet, DataSpec

N_DIGITS = 10_000  # all digits of MNIST's test part
N_EACH = 32  # transforms of each digit


def read_like(
    split: str, root: str | Path | None = None, n_each: int = N_EACH
) -> tuple[UInt8[Tensor, "n 1 h w"], Int64[Tensor, " n"]]:
    """Make `n_each` transforms of every MNIST test digit, the same for every model and every seed."""
    if split == "train":
        raise ValueError(
            "affnist-like is a test set: models are trained on 'mnist-40' (digits placed at random, no other transform)"
            "; to make choices, warp held-out training digits with torchcaps.data.sets.affine.warped"
        )
    images, labels = mnist.read_split(mnist.MNIST, split, root)
    device = "cuda" if torch.cuda.is_available() else "cpu"  # the bytes are the same, and a GPU is sooner done
    made = warped(images.to(device), torch.Generator().manual_seed(SEED), n_each)
    return made.images.cpu(), labels.repeat(n_each)


SPECS = (DataSpec(source="affnist-like"),)


def build(spec: DataSpec) -> DataSet:
    info = DataInfo(
        name=str(spec),
        shape=(1, FRAME, FRAME),
        n_classes=10,
        n_train=0,
        n_test=N_DIGITS * N_EACH,
        about="MNIST test digits under small affine maps by a rule fitted to affNIST, which it is not",
        files=len(mnist.MNIST.sha256),
        groups="digits",
    )
    return DataSet(info, lambda split, root, seed: read_like(split, root), mnist.MNIST)
