"""The 1,797 handwritten digits inside scikit-learn (part of UCI optdigits), 8x8 with 17 grey levels: no download."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Int64, UInt8
from torch import Tensor

from torchcaps.data.sets import pairs
from torchcaps.data.sources.files import DataError
from torchcaps.data.specs import DataInfo, DataSet, DataSpec

SIZE = 16  # 8x8 is too small for two convolutions without padding
N_TRAIN, N_TEST = 1437, 360  # a fifth for the test, rounded up


def stratified_indices(
    labels: Int64[Tensor, " n"], n_held: int, seed: int
) -> tuple[Int64[Tensor, " r"], Int64[Tensor, " k"]]:
    """Draw indices of (the rest, `n_held` held out), each ascending; every class gives its share, rounded up or down.

    Systematic sampling: the member of rank r in its shuffled class of size m stands at (r + u) / m, one u in [0, 1) for
    each class; the n_held lowest places are held out. The random u keep roundings from favouring low labels.
    """
    rng = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(labels), generator=rng)
    shuffled = shuffled[labels[shuffled].argsort(stable=True)]  # by class, in random order within it
    sizes = torch.bincount(labels)
    start = torch.rand(len(sizes), generator=rng, dtype=torch.float64)
    label = labels[shuffled]
    rank = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes)[label]
    order = shuffled[((rank + start[label]) / sizes[label]).argsort(stable=True)]
    return order[n_held:].sort().values, order[:n_held].sort().values


def read_split(split: str, seed: int) -> tuple[UInt8[Tensor, "n 1 h w"], Int64[Tensor, " n"]]:
    """Read a part; the test part is a stratified fifth, drawn by `seed`, with the same writers on both sides."""
    images, labels = _all_digits()
    chosen = stratified_indices(labels, N_TEST, seed)[split == "test"]
    return images[chosen], labels[chosen]


def read_split_by_writer(split: str) -> tuple[UInt8[Tensor, "n 1 h w"], Int64[Tensor, " n"]]:
    """Read a part; the test part is the last fifth, by other writers: the set lies in the order of its writers.

    The cut may fall on one writer, who is then on both sides.
    """
    images, labels = _all_digits()
    part = slice(N_TRAIN, None) if split == "test" else slice(N_TRAIN)
    return images[part], labels[part]


def _all_digits() -> tuple[UInt8[Tensor, "n 1 h w"], Int64[Tensor, " n"]]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            "the digits lie inside scikit-learn, which is not installed; run `pip install 'torchcaps[experiments]'`, "
            "or use the set 'generated'"
        ) from error
    digits = load_digits()
    grey = torch.from_numpy(digits.images).float() * (255 / 16)
    images = F.interpolate(rearrange(grey, "n h w -> n 1 h w"), size=(SIZE, SIZE), mode="bilinear", align_corners=False)
    return images.round().to(torch.uint8), torch.from_numpy(digits.target).long()


SPECS = (
    DataSpec(source="digits"),
    DataSpec(source="digits", split="writers"),
    DataSpec(source="digits", examples="pairs"),
)


def build(spec: DataSpec) -> DataSet:
    if spec.examples == "pairs":
        return _pairs(spec)
    test = "the last fifth, by other writers" if spec.split == "writers" else "a stratified fifth, drawn by the seed"
    info = DataInfo(
        name=str(spec),
        shape=(1, SIZE, SIZE),
        n_classes=10,
        n_train=N_TRAIN,
        n_test=N_TEST,
        about=f"scikit-learn's handwritten digits; {test}, is the test part",
    )

    def read(split: str, root: str | Path | None, seed: int) -> tuple[Tensor, Tensor]:
        return read_split_by_writer(split) if spec.split == "writers" else read_split(split, seed)

    return DataSet(info, read, needs="sklearn")


def _pairs(spec: DataSpec) -> DataSet:
    side = SIZE + 2 * pairs.MARGIN
    info = DataInfo(
        name=str(spec),
        shape=(1, side, side),
        n_classes=10,
        n_train=N_TRAIN,
        n_test=N_TEST * pairs.N_EACH,
        about=f"two overlapping digits of scikit-learn, each {pairs.about(pairs.SHIFT)}",
        n_labels=2,
        groups="digits",
    )
    return DataSet(info, lambda split, root, seed: pairs.paired(split, *read_split(split, seed)), needs="sklearn")
