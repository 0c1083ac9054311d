"""Labelled pictures by name: `load("mnist", "train")` reads, `get("mnist")` fetches, and nothing else touches the network."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from jaxtyping import Int64, UInt8
from torch import Tensor

from torchcaps.data import digits, files, generated, mnist
from torchcaps.data.files import DataError, FileSet

__all__ = ["DATASETS", "DataError", "DataInfo", "DataSet", "Labelled", "fingerprint", "get", "hold_out", "info", "load", "status"]


class Labelled(NamedTuple):
    images: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]


@dataclass(frozen=True, kw_only=True)
class DataInfo:
    name: str
    shape: tuple[int, int, int]  # c h w
    n_classes: int
    n_train: int
    n_test: int
    about: str
    files: int = 0  # how many have to be at hand; 0 for what is built in


class DataSet(NamedTuple):
    """`read(split, root, seed)` gives images and labels; `needs` is a module that it imports."""

    info: DataInfo
    read: Callable[[str, str | Path | None, int], tuple[Tensor, Tensor]]
    files: FileSet | None = None
    needs: str | None = None


def _idx_set(files: FileSet, about: str) -> DataSet:
    facts = DataInfo(name=files.name, shape=(1, 28, 28), n_classes=10, n_train=60_000, n_test=10_000, about=about, files=len(files.sha256))
    return DataSet(facts, lambda split, root, seed: mnist.read_split(files, split, root), files)


def _digits_set(name: str, about: str, read: Callable[..., tuple[Tensor, Tensor]]) -> DataSet:
    shape = (1, digits.SIZE, digits.SIZE)
    facts = DataInfo(name=name, shape=shape, n_classes=10, n_train=digits.N_TRAIN, n_test=digits.N_TEST, about=about)
    return DataSet(facts, read, needs="sklearn")


def _generated_set(name: str, size: int) -> DataSet:
    about = "bars and half rings made from the seed, for tests and smoke runs"
    n_train, n_test = generated.N_TRAIN, generated.N_TEST
    facts = DataInfo(name=name, shape=(1, size, size), n_classes=generated.N_CLASSES, n_train=n_train, n_test=n_test, about=about)
    return DataSet(facts, lambda split, root, seed: generated.read_split(split, seed, size))


DATASETS: dict[str, DataSet] = {
    "mnist": _idx_set(mnist.MNIST, "handwritten digits"),
    "fashion-mnist": _idx_set(mnist.FASHION_MNIST, "pieces of clothing"),
    "digits": _digits_set(
        "digits",
        "scikit-learn's handwritten digits; a stratified fifth, drawn by the seed, is the test part",
        lambda split, root, seed: digits.read_split(split, seed),
    ),
    "digits-writers": _digits_set(
        "digits-writers",
        "scikit-learn's handwritten digits; the last fifth, by other writers, is the test part",
        lambda split, root, seed: digits.read_split_by_writer(split),
    ),
    "generated": _generated_set("generated", 28),
    "generated-16": _generated_set("generated-16", 16),
}


def _entry(name: str) -> DataSet:
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(DATASETS)}"
        raise ValueError(f"no data set {name!r}; {hint}")
    return DATASETS[name]


def info(name: str) -> DataInfo:
    return _entry(name).info


def load(name: str, split: str, root: str | Path | None = None, seed: int = 0) -> Labelled:
    """Read the "train" or "test" part from `root`, TORCHCAPS_DATA or the cache; never from the network.

    `seed` draws the test part of `digits` and the pictures of the generated sets; sets with an official split ignore it.
    """
    entry = _entry(name)
    if split not in ("train", "test"):
        raise ValueError(f"split must be 'train' or 'test', got {split!r}; for a validation part use hold_out(load(...), n, seed)")
    return Labelled(*entry.read(split, root, seed))


def get(name: str, root: str | Path | None = None, progress: Callable[[str], object] = print) -> list[Path]:
    """Fetch the files that neither `root` (else TORCHCAPS_DATA) nor the cache holds into the cache; return where each one lies."""
    entry = _entry(name)
    if entry.files is None:
        progress(f"{name}: {status(name)}, nothing to fetch")
        return []
    return files.get(entry.files, root, progress)


def status(name: str, root: str | Path | None = None) -> str:
    """One line for a list of sets: 'built in', 'complete in <folder>', 'missing: 4 files', or what to install."""
    entry = _entry(name)
    if entry.files is not None:
        return files.status(entry.files, root)
    if entry.needs and importlib.util.find_spec(entry.needs) is None:
        return f"needs {entry.needs}: pip install 'torchcaps[experiments]'"
    return "built in"


def fingerprint(data: Labelled) -> str:
    """sha256 of shape, pixels and labels: two runs with the same fingerprint saw the same data in the same order."""
    digest = hashlib.sha256(repr(list(data.images.shape)).encode())
    for part in data:
        digest.update(part.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def hold_out(data: Labelled, n: int, seed: int) -> tuple[Labelled, Labelled]:
    """(the rest, `n` held out), decided by `seed`; each class gives its share, and both parts keep the order of `data`."""
    if not 0 < n < len(data.labels):
        raise ValueError(f"hold_out: n must leave something on both sides of {len(data.labels):,} pictures, got {n}")
    rest, held = digits.stratified_indices(data.labels, n, seed)
    return Labelled(data.images[rest], data.labels[rest]), Labelled(data.images[held], data.labels[held])
