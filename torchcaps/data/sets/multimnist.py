"""MultiMNIST (Sabour 2017, section 6.1): two overlapping MNIST digits in one image."""

from __future__ import annotations

from pathlib import Path

from torchcaps.data.sets import mnist, pairs
from torchcaps.data.sets.pairs import Pairs, PairSource
from torchcaps.data.specs import DataInfo, DataSet, DataSpec

SIDE = mnist.SIZE + 2 * pairs.MARGIN


def read_multimnist(split: str, root: str | Path | None, shift: int, n_each: int = pairs.N_EACH) -> PairSource | Pairs:
    """Read training digits to pair on the fly, or 10,000 times `n_each` fixed pairs of test digits."""
    return pairs.paired(split, *mnist.read_split(mnist.MNIST, split, root), shift, n_each)


SPECS = (DataSpec(source="multimnist", shift=4), DataSpec(source="multimnist", shift=6))


def build(spec: DataSpec) -> DataSet:
    info = DataInfo(
        name=str(spec),
        shape=(1, SIDE, SIDE),
        n_classes=10,
        n_train=60_000,
        n_test=10_000 * pairs.N_EACH,
        about=f"two overlapping MNIST digits, each {pairs.about(spec.shift)}",
        files=len(mnist.MNIST.sha256),
        n_labels=2,
        groups="digits",
    )
    return DataSet(info, lambda split, root, seed: read_multimnist(split, root, spec.shift), mnist.MNIST)
