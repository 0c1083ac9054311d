"""Sets made from MNIST by a rule, the same for everybody: fifty classes, and large images in colour."""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from torchcaps.data.sets.mnist import MNIST, SIZE, read_split
from torchcaps.data.specs import DataInfo, DataSet, DataSpec

FRAME = 40  # places: side of an image
CORNERS = ((0, 0), (0, FRAME - SIZE), (FRAME - SIZE, 0), (FRAME - SIZE, FRAME - SIZE))
PLACES = (*CORNERS, ((FRAME - SIZE) // 2,) * 2)  # row and column of a digit's corner; the last is the centre
_WORDS = ("top left", "top right", "bottom left", "bottom right", "centre")
LARGE = 64  # colour: side of an image
N_COLOURED = 20_000  # training images in colour, 245 MB
CONTRAST = 100  # least difference of brightness between digit and background, of 255
SEEDS = {"train": 1, "test": 2}

Images = UInt8[Tensor, "n c h w"]
Labels = Int64[Tensor, " n"]


def read_places(split: str, root: str | Path | None = None) -> tuple[Images, Labels]:
    """Read `mnist-places`: digits at one of five places, drawn once for all. The class is 5 · digit + place."""
    digits, labels = read_split(MNIST, split, root)
    place = torch.randint(len(PLACES), labels.shape, generator=torch.Generator().manual_seed(SEEDS[split]))
    images = digits.new_zeros(len(digits), 1, FRAME, FRAME)
    for number, (row, column) in enumerate(PLACES):
        here = place == number
        images[here, :, row : row + SIZE, column : column + SIZE] = digits[here]
    return images, len(PLACES) * labels + place


def read_coloured(split: str, root: str | Path | None = None) -> tuple[Images, Labels]:
    """Read `mnist-colour-64-rgb`: digits of twice the size, anywhere on 64x64, in one colour on another."""
    digits, labels = read_split(MNIST, split, root)
    digits, labels = digits[:N_COLOURED], labels[:N_COLOURED]
    rng = torch.Generator().manual_seed(SEEDS[split])
    ink = digits.new_zeros(len(digits), LARGE, LARGE)
    large = digits.squeeze(1).repeat_interleave(2, 1).repeat_interleave(2, 2)
    corners = torch.randint(LARGE - 2 * SIZE + 1, (len(digits), 2), generator=rng).tolist()
    for image, digit, (row, column) in zip(ink, large, corners, strict=True):
        image[row : row + 2 * SIZE, column : column + 2 * SIZE] = digit
    dark = torch.randint(256 - CONTRAST, (len(digits), 3), generator=rng)
    light = dark + CONTRAST + (torch.rand(len(digits), 3, generator=rng) * (256 - CONTRAST - dark)).long()
    swap = torch.rand(len(digits), 1, generator=rng) < 0.5
    back, front = torch.where(swap, light, dark), torch.where(swap, dark, light)
    images = torch.empty(len(digits), 3, LARGE, LARGE, dtype=torch.uint8)
    for channel in range(3):  # one at a time, to hold few floats
        share, low, high = ink.float() / 255, back[:, channel, None, None], front[:, channel, None, None]
        images[:, channel] = (low + share * (high - low)).round().to(torch.uint8)
    return images, labels


SPECS = (DataSpec(source="mnist-places"), DataSpec(source="mnist-colour", size=LARGE, channels="rgb"))


def build(spec: DataSpec) -> DataSet:
    """Say how one of `SPECS` is read."""
    common = {"name": str(spec), "n_test": 10_000, "files": len(MNIST.sha256)}
    if spec.source == "mnist-places":
        about = "MNIST digits at one of five places; a class is a digit at a place"
        names = tuple(f"{digit} {where}" for digit in range(10) for where in _WORDS)
        info = DataInfo(shape=(1, FRAME, FRAME), n_classes=50, n_train=60_000, about=about, class_names=names, **common)
        return DataSet(info, lambda split, root, seed: read_places(split, root), MNIST)
    about = "large MNIST digits anywhere, in one colour on another"
    info = DataInfo(shape=(3, LARGE, LARGE), n_classes=10, n_train=N_COLOURED, about=about, **common)
    return DataSet(info, lambda split, root, seed: read_coloured(split, root), MNIST)
