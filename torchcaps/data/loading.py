"""Operations on data sets: `load` reads, `get` fetches, and nothing else touches the network."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from torchcaps.data.catalogue import find
from torchcaps.data.sets import sst
from torchcaps.data.sets.image_folder import OwnImages
from torchcaps.data.sets.pairs import Pairs, PairSource
from torchcaps.data.sets.sst import Sentences
from torchcaps.data.sources import encoder_weights, files, formats
from torchcaps.data.sources.encoders import Encoder
from torchcaps.data.sources.formats import Labelled
from torchcaps.data.specs import DataInfo, DataSpec


def info(data: str | DataSpec | OwnImages) -> DataInfo:
    """Give the shape, classes and sizes of a data set; its files are not needed."""
    return find(data).info


def class_names(data: str | DataSpec | OwnImages) -> tuple[str, ...]:
    """Name each class, in the order of the labels; a class without a name is called by its number."""
    about = info(data)
    return about.class_names or tuple(map(str, range(about.n_classes)))


def encoder_of(data: str | DataSpec, root: str | Path | None = None) -> Encoder | sst.GeneratedEncoder:
    """Give the encoder that embeds the sentences of this set; the sentences themselves are not needed."""
    found = find(data)
    if found.info.kind != "sentences":
        raise ValueError(f"{data} holds {found.info.kind}, and only sentences are embedded")
    return replace(found.encoder, root=root) if found.encoder else sst.GeneratedEncoder()


def load(
    data: str | DataSpec | OwnImages, split: str, root: str | Path | None = None, seed: int = 0
) -> Labelled | PairSource | Pairs | Sentences:
    """Read the "train" or "test" part from `root`, TORCHCAPS_DATA or the cache; never from the network.

    "validation" too, where the set has such a part of its own.

    `seed` draws the test part of `digits` and of own images, and the images of the generated sets; it says which toys
    are held out in the folds of smallNORB. Sets with an official split ignore it.
    """
    found = find(data)
    if split not in ("train", "test") and not (split == "validation" and found.info.n_validation):
        raise ValueError(
            f"split must be 'train' or 'test', got {split!r}; for a validation part use hold_out(load(...), n, seed)"
        )
    part = found.read(split, root, seed)
    return part if isinstance(part, PairSource | Pairs | Sentences) else Labelled(*part)


def get(data: str | DataSpec, root: str | Path | None = None, progress: Callable[[str], object] = print) -> list[Path]:
    """Fetch the files that neither `root` (else TORCHCAPS_DATA) nor the cache holds; return where each one lies."""
    found = find(data)
    if found.formats:
        return formats.get(found.formats, root, progress)
    if found.files is None:
        progress(f"{data}: {status(data)}, nothing to fetch")
        return []
    fetched = files.get(found.files, root, progress)
    return [*fetched, *encoder_weights.get(found.encoder, root, progress)] if found.encoder else fetched


def status(data: str | DataSpec | OwnImages, root: str | Path | None = None) -> str:
    """Say whether a set is at hand: 'built in', 'complete in <folder>', 'missing: 4 files', or what to install."""
    found = find(data)
    if found.needs and importlib.util.find_spec(found.needs) is None:
        extra = "sentences" if found.encoder else "experiments"
        return f"needs {found.needs}: pip install 'torchcaps[{extra}]'"
    if found.formats:
        return formats.status(found.formats, root)
    if found.encoder:
        return encoder_weights.status(found.encoder, root, files.status(found.files, root))
    return "built in" if found.files is None else files.status(found.files, root)


def fingerprint(data: Labelled | PairSource | Pairs | Sentences) -> str:
    """Hash shape, pixels, labels and the table of pairs; of sentences their words and the name of the encoder.

    With the same fingerprint two runs saw the same data in the same order.
    """
    digest = hashlib.sha256(repr(list(data[0].shape)).encode())
    for part in data:
        digest.update(part.cpu().contiguous().numpy().tobytes() if isinstance(part, Tensor) else repr(part).encode())
    return digest.hexdigest()
