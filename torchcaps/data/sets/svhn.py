"""SVHN (Netzer et al. 2011), format 2: digits cut from photographs of house numbers, 32x32 in colour.

The official files are MATLAB's; a copy was cut anew from the same photographs and stored as WebP of quality 95: the
same digits in the same order, and nearly, not exactly, the same pixels.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import numpy as np
import torch
from einops import rearrange

from torchcaps.data.sources import formats
from torchcaps.data.sources.files import Address, DataError, FileSet
from torchcaps.data.sources.formats import Format, Labelled
from torchcaps.data.sources.image_archives import decode_images, tar_members
from torchcaps.data.specs import DataInfo, DataSet, DataSpec

SIZE = 32
SPLITS = ("train", "test")


def _from_mat(split: str, contents: Sequence[bytes]) -> Labelled:
    """Decode the official file: X is [h w c n], y is [n 1] and calls the digit zero 10."""
    name = f"{split}_32x32.mat"
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ImportError as error:
        raise DataError(
            f"{name} is read with SciPy, which is not installed; run `pip install 'torchcaps[experiments]'`"
        ) from error
    try:
        mat = loadmat(io.BytesIO(contents[0]), variable_names=["X", "y"])
        pixels, labels = mat["X"], mat["y"].ravel().astype(np.int64)
    except (MatReadError, KeyError, ValueError, TypeError, OSError, NotImplementedError) as error:
        raise DataError(f"{name} is not a MATLAB file with X and y ({error}); replace it") from error
    if (
        pixels.shape[:3] != (SIZE, SIZE, 3)
        or pixels.ndim != 4
        or (labels.size and not (labels.min() >= 1 and labels.max() <= 10))
    ):
        raise DataError(
            f"{name} holds X of {list(pixels.shape)} and labels up to {labels.max(initial=0)}, "
            "expected [32, 32, 3, n] and 1..10"
        )
    images = np.ascontiguousarray(rearrange(pixels, "h w c n -> n c h w"))
    return Labelled(torch.from_numpy(images), torch.from_numpy(labels % 10))


def _from_webps(split: str, contents: Sequence[bytes]) -> Labelled:
    """Decode NNNNNN_<label>.webp, sorted by NNNNNN."""
    name = f"svhn-{split}.tar.xz"
    members = sorted(tar_members(contents[0], name))
    found = [re.fullmatch(r"(\d{6})_(\d)\.webp", member.name) for member in members]
    for at, (member, match) in enumerate(zip(members, found, strict=True)):
        if not match or int(match[1]) != at:
            raise DataError(f"{name} holds {member.name} where {at:06}_<label>.webp was expected; replace it")
    labels = torch.tensor([int(match[2]) for match in found])
    return Labelled(decode_images(members, (3, SIZE, SIZE), name), labels)


OFFICIAL = FileSet(
    "svhn",
    {
        "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    },
    (Address("http://ufldl.stanford.edu/housenumbers/{file}"),),
)
COPY = FileSet(
    "svhn",
    {
        "svhn-train.tar.xz": "3dc62c585e203619329f38d8ff1a73adcfcdf0c9a0c31b64210f622c114eecce",
        "svhn-test.tar.xz": "293804779d5de8585172eb521ea8717e53bc24c66161f7d588b4b1369c52e0a4",
    },
)
FORMATS = (
    Format("the official files", OFFICIAL, {split: (f"{split}_32x32.mat",) for split in SPLITS}, _from_mat),
    Format(
        "a lossy WebP copy, cut anew",
        COPY,
        {split: (f"svhn-{split}.tar.xz",) for split in SPLITS},
        _from_webps,
        keep=True,
    ),
)


SPECS = (DataSpec(source="svhn"),)


def build(spec: DataSpec) -> DataSet:
    info = DataInfo(
        name=str(spec),
        shape=(3, SIZE, SIZE),
        n_classes=10,
        n_train=73_257,
        n_test=26_032,
        about="digits of house numbers, photographed",
        files=len(FORMATS[0].files.sha256),
    )
    return DataSet(info, lambda split, root, seed: formats.read_split(FORMATS, split, root), formats=FORMATS)
