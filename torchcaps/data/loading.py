"""What can be done with a data set by its name: `load` reads, `get` fetches, and nothing else touches the network."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from jaxtyping import Int64, UInt8
from torch import Tensor

from torchcaps.data.encoders import Encoder
from torchcaps.data.entries import DataInfo
from torchcaps.data.registry import entry_of
from torchcaps.data.sets import digits, pairs, sst
from torchcaps.data.sets.image_folder import OwnImages
from torchcaps.data.sets.pairs import Pairs, PairSource
from torchcaps.data.sets.sst import Sentences
from torchcaps.data.sources import encoder_weights, files, formats


class Labelled(NamedTuple):
    images: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]


def info(name: str | OwnImages) -> DataInfo:
    return entry_of(name).info


def encoder_of(name: str, root: str | Path | None = None) -> Encoder | sst.GeneratedEncoder:
    """What embeds the sentences of that set, with or without its trees."""
    entry = entry_of(name)
    if entry.info.kind != "sentences":
        raise ValueError(f"{name} holds {entry.info.kind}, and only sentences are embedded")
    return replace(entry.encoder, root=root) if entry.encoder else sst.GeneratedEncoder()


def load(name: str | OwnImages, split: str, root: str | Path | None = None, seed: int = 0) -> Labelled | PairSource | Pairs | Sentences:
    """Read the "train" or "test" part from `root`, TORCHCAPS_DATA or the cache; never from the network.

    "validation" too, where the set has such a part of its own.

    `seed` draws the test part of `digits` and of own images, and the pictures of the generated sets, and says which toys are kept aside
    in the folds of smallNORB; sets with an official split ignore it.
    """
    entry = entry_of(name)
    if split not in ("train", "test") and not (split == "validation" and entry.info.n_validation):
        raise ValueError(f"split must be 'train' or 'test', got {split!r}; for a validation part use hold_out(load(...), n, seed)")
    found = entry.read(split, root, seed)
    return found if isinstance(found, PairSource | Pairs | Sentences) else Labelled(*found)


def get(name: str, root: str | Path | None = None, progress: Callable[[str], object] = print) -> list[Path]:
    """Fetch the files that neither `root` (else TORCHCAPS_DATA) nor the cache holds into the cache; return where each one lies."""
    entry = entry_of(name)
    if entry.forms:
        return formats.get(entry.forms, root, progress)
    if entry.files is None:
        progress(f"{name}: {status(name)}, nothing to fetch")
        return []
    fetched = files.get(entry.files, root, progress)
    return [*fetched, *encoder_weights.get(entry.encoder, root, progress)] if entry.encoder else fetched


def status(name: str, root: str | Path | None = None) -> str:
    """One line for a list of sets: 'built in', 'complete in <folder>', 'missing: 4 files', or what to install."""
    entry = entry_of(name)
    if entry.needs and importlib.util.find_spec(entry.needs) is None:
        return f"needs {entry.needs}: pip install 'torchcaps[{'sentences' if entry.encoder else 'experiments'}]'"
    if entry.forms:
        return formats.status(entry.forms, root)
    if entry.encoder:
        return encoder_weights.status(entry.encoder, root, files.status(entry.files, root))
    return "built in" if entry.files is None else files.status(entry.files, root)


def fingerprint(data: Labelled | PairSource | Pairs | Sentences) -> str:
    """sha256 of shape, pixels, labels, the makings of pairs; of sentences their words and the name of the encoder.

    With the same fingerprint two runs saw the same data in the same order.
    """
    digest = hashlib.sha256(repr(list(data[0].shape)).encode())
    for part in data:
        digest.update(part.cpu().contiguous().numpy().tobytes() if isinstance(part, Tensor) else repr(part).encode())
    return digest.hexdigest()


def hold_out(data: Labelled | PairSource, n: int, seed: int) -> tuple[Labelled | PairSource, Labelled | Pairs]:
    """(the rest, `n` held out), decided by `seed`; each class gives its share, and both parts keep the order of `data`.

    Of digits that are to be paired, `n` digits are held out and paired among themselves, once for all.
    """
    if not 0 < n < len(data.labels):
        raise ValueError(f"hold_out: n must leave something on both sides of {len(data.labels):,} pictures, got {n}")
    rest, held = digits.stratified_indices(data.labels, n, seed)
    if isinstance(data, PairSource):
        kept, aside = (PairSource(data.images[part], data.labels[part], data.shift) for part in (rest, held))
        return kept, pairs.fixed_pairs(aside, pairs.N_EACH)
    return Labelled(data.images[rest], data.labels[rest]), Labelled(data.images[held], data.labels[held])
