"""Small labelled images made from a seed, for tests and smoke runs.

Classes 0 to 4 are bars, 5 to 9 half rings, in five directions each.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from einops import rearrange
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from torchcaps.data.sets import pairs, sst
from torchcaps.data.sets.pairs import Pairs, PairSource
from torchcaps.data.specs import DataInfo, DataSet, DataSpec

N_CLASSES = 10
N_TRAIN, N_TEST = 512, 256
LARGE = 96  # pixels from which on an eighth of them will do: networks of that size take a second a image on a CPU
LENGTH = 18.0  # length of a bar and diameter of a ring, in pixels of a 28x28 image
OFFSET = 2.0  # the centre moves by up to this along each axis
THICKNESS = (1.5, 3.5)
NOISE = 16.0  # standard deviation, in grey levels


def read_split(
    split: str, seed: int, size: int = 28, n_channels: int = 1
) -> tuple[UInt8[Tensor, "n c h w"], Int64[Tensor, " n"]]:
    """Make a part. Even generator seeds train, odd ones test: no two seeds share images across parts."""
    is_test = split == "test"
    rng = torch.Generator().manual_seed(2 * seed + is_test)
    grey, labels = generate(counts(size)[is_test], size, rng)
    return grey if n_channels == 1 else tinted(grey, n_channels, rng), labels


def counts(size: int) -> tuple[int, int]:
    """Give the number of images to train and to test on."""
    return (N_TRAIN // 8, N_TEST // 8) if size >= LARGE else (N_TRAIN, N_TEST)


def generate(n: int, size: int, rng: torch.Generator) -> tuple[UInt8[Tensor, "n 1 h w"], Int64[Tensor, " n"]]:
    """Draw `n` images of size x size, the classes as even as n allows, in random order."""
    labels = torch.randperm(n, generator=rng) % N_CLASSES
    offset = (torch.rand(n, 2, generator=rng) * 2 - 1) * OFFSET
    thickness = THICKNESS[0] + torch.rand(n, generator=rng) * (THICKNESS[1] - THICKNESS[0])
    noise = torch.randn(n, size, size, generator=rng) * NOISE

    scale = 28 / size  # draw in the pixels of a 28x28 image, whatever the size
    axis = (torch.arange(size) - (size - 1) / 2) * scale
    y = axis[:, None] - offset[:, 0, None, None]  # [n h 1]
    x = axis[None, :] - offset[:, 1, None, None]  # [n 1 w]
    distance = _distance_to_shape(y, x, labels)
    ink = ((thickness[:, None, None] / 2 - distance) / scale + 0.5).clamp(0, 1)  # an edge is one pixel wide
    images = (255 * ink + noise).round().clamp(0, 255).to(torch.uint8)
    return rearrange(images, "n h w -> n 1 h w"), labels


def tinted(grey: UInt8[Tensor, "n 1 h w"], n_channels: int, rng: torch.Generator) -> UInt8[Tensor, "n c h w"]:
    """Give each image a colour of its own, which says nothing about its class."""
    return (grey * (0.5 + torch.rand(len(grey), n_channels, 1, 1, generator=rng) / 2)).round().to(torch.uint8)


def _distance_to_shape(
    y: Float[Tensor, "n h 1"], x: Float[Tensor, "n 1 w"], labels: Int64[Tensor, " n"]
) -> Float[Tensor, "n h w"]:
    is_ring = labels >= N_CLASSES // 2
    direction = labels % (N_CLASSES // 2)
    # a bar looks the same after half a turn, a half ring only after a whole one
    angle = direction * torch.where(is_ring, 2 * math.pi, math.pi) / (N_CLASSES // 2)
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    along, across = cos * x + sin * y, cos * y - sin * x  # [n h w]
    bar = torch.hypot((along.abs() - LENGTH / 2).clamp(min=0), across)
    ring = (torch.hypot(along, across) - LENGTH / 2).abs()
    # below the cut the nearest point of the half ring is one of its two ends
    half_ring = torch.where(across >= 0, ring, torch.hypot(along.abs() - LENGTH / 2, across))
    return torch.where(is_ring[:, None, None], half_ring, bar)


SIZE, PAIR_SIZE = 28, 16  # for `generated`, and for each image of `generated-pairs`
CHANNELS = {"": 1, "stereo": 2, "rgb": 3}
SPECS = (
    DataSpec(source="generated"),
    DataSpec(source="generated", size=16),
    DataSpec(source="generated", size=40),
    DataSpec(source="generated", size=48),
    DataSpec(source="generated", size=96),
    DataSpec(source="generated", size=32, channels="rgb"),
    DataSpec(source="generated", size=48, channels="stereo"),
    DataSpec(source="generated", size=96, channels="stereo"),
    DataSpec(source="generated", examples="pairs"),
    DataSpec(source="generated", examples="sentences"),
)


def build(spec: DataSpec) -> DataSet:
    if spec.examples:
        return {"pairs": _pairs, "sentences": sst.build_generated}[spec.examples](spec)
    size, n_channels = spec.size or SIZE, CHANNELS[spec.channels]
    n_train, n_test = counts(size)
    info = DataInfo(
        name=str(spec),
        shape=(n_channels, size, size),
        n_classes=N_CLASSES,
        n_train=n_train,
        n_test=n_test,
        about="bars and half rings made from the seed, for tests and smoke runs",
    )
    return DataSet(info, lambda split, root, seed: read_split(split, seed, size, n_channels))


def _pairs(spec: DataSpec) -> DataSet:
    side, n_each = PAIR_SIZE + 2 * pairs.MARGIN, 2
    info = DataInfo(
        name=str(spec),
        shape=(1, side, side),
        n_classes=N_CLASSES,
        n_train=N_TRAIN,
        n_test=n_each * N_TEST,
        about="two overlapping images of generated-16, for tests and smoke runs",
        n_labels=2,
        groups="digits",
    )

    def read(split: str, root: str | Path | None, seed: int) -> PairSource | Pairs:
        return pairs.paired(split, *read_split(split, seed, PAIR_SIZE), n_each=n_each)

    return DataSet(info, read)
