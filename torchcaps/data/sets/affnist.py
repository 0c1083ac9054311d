"""affNIST, the official test files (Tieleman 2013): 10,000 MNIST test digits under 32 affine maps each.

The files are MATLAB v5 inside a zip.

scipy, which comes with scikit-learn, reads the format and is imported only here, when a file is read.
"""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from torchcaps.data.sources.files import Address, DataError, FileSet, read
from torchcaps.data.specs import DataInfo, DataSet, DataSpec

SIZE = 40
MIRROR = Address("http://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/{file}")
# the same images twice, as one file and as 32; either will do. The hashes are those of the archives
ONE = FileSet(
    "affnist", {"test.mat.zip": "2cde38ec83ee2ebfd7b901f8be5a09efb17a1bda04771f9b4905751eb945c01a"}, (MIRROR,)
)
BATCHES = FileSet(
    "affnist", {"test_batches.zip": "83f829c01c021fa731e062e7671b0075a3e8de0a511fb6b5d403458528d0e0d1"}, (MIRROR,)
)


class AffNIST(NamedTuple):
    images: UInt8[Tensor, "n 1 h w"]
    labels: Int64[Tensor, " n"]
    original: Int64[Tensor, " n"]  # the file's original_id: which digit of MNIST
    factors: Float[Tensor, "n 6"]  # human_readable_transform: rotation, shear, two scales, two translations


def read_split(split: str, root: str | Path | None = None) -> tuple[UInt8[Tensor, "n 1 h w"], Int64[Tensor, " n"]]:
    """Read the test images and labels; there is no training part, models are trained on 'mnist-40'."""
    if split == "train":
        raise ValueError(
            "affnist is a test set: models are trained on 'mnist-40' (digits placed at random, no other transform)"
        )
    everything = read_all(root)
    return everything.images, everything.labels


def read_all(root: str | Path | None = None, one: FileSet = ONE, batches: FileSet = BATCHES) -> AffNIST:
    """Read images, labels and transforms from whichever archive is at hand."""
    (name,) = one.sha256
    try:
        (archive,) = read(one, [name], root)
    except DataError as missing:
        (name,) = batches.sha256
        try:
            (archive,) = read(batches, [name], root)
        except DataError:
            raise missing from None
    return parse_archive(archive, f"affnist/{name}")


def parse_archive(archive: bytes, name: str) -> AffNIST:
    """Parse every .mat file of the zip, in the order of the numbers in their names."""
    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        names = sorted(
            (n for n in members.namelist() if n.endswith(".mat")), key=lambda n: [int(k) for k in re.findall(r"\d+", n)]
        )
        if not names:
            raise DataError(f"{name} holds no .mat file; replace it")
        parts = [parse_mat(members.read(member), f"{name}/{member}") for member in names]
    return AffNIST(*(torch.cat(column) for column in zip(*parts, strict=True)))


def parse_mat(content: bytes, name: str) -> AffNIST:
    """Parse one MATLAB file: a struct affNISTdata whose `image` has one image a column, its pixels row by row."""
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ImportError as error:
        raise DataError(
            "affNIST's files are read by scipy, which is not installed; run `pip install 'torchcaps[experiments]'`"
        ) from error
    try:
        struct = loadmat(io.BytesIO(content), variable_names=["affNISTdata"])["affNISTdata"][0, 0]
        columns, labels, original, factors = (
            struct[k] for k in ("image", "label_int", "original_id", "human_readable_transform")
        )
    except (KeyError, ValueError, IndexError, TypeError, MatReadError) as error:
        raise DataError(f"{name} is not a file of affNIST ({error}); replace it") from error
    n = columns.shape[-1]
    if columns.shape[0] != SIZE**2 or labels.size != n or original.size != n or factors.shape != (6, n):
        shapes = [list(part.shape) for part in (columns, labels, original, factors)]
        raise DataError(
            f"{name}: expected [1600 n], [1 n], [1 n] and [6 n], got {', '.join(map(str, shapes))}; replace it"
        )
    images = torch.from_numpy(np.ascontiguousarray(columns.astype(np.uint8).T))
    labels, original = (torch.from_numpy(part.reshape(-1).astype(np.int64)) for part in (labels, original))
    return AffNIST(
        rearrange(images, "n (h w) -> n 1 h w", h=SIZE),
        labels,
        original,
        torch.from_numpy(factors.T.astype(np.float64)),
    )


SPECS = (DataSpec(source="affnist"),)


def build(spec: DataSpec) -> DataSet:
    info = DataInfo(
        name=str(spec),
        shape=(1, SIZE, SIZE),
        n_classes=10,
        n_train=0,
        n_test=320_000,
        about="MNIST test digits under small affine maps, the official file",
        files=1,
        groups="digits",
    )
    return DataSet(info, lambda split, root, seed: read_split(split, root), ONE, "scipy")
