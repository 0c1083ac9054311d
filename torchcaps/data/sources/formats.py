"""A set that can be had in several formats: the official files, a package of a registry, a copy stored as images.

Each format is a whole way to have the set, with its own table of files; the first one that is at hand is read. Slow
formats are decoded once and kept in the cache under the hash of its source: another source has another
name, so it is never mistaken. The file holds the hash of its images and labels, which is checked whenever it is read.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int64, UInt8
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from torchcaps.data.sources import files
from torchcaps.data.sources.files import DataError, FileSet, cache_folder
from torchcaps.runtime.files import write_whole


class Labelled(NamedTuple):
    """Images as bytes and the class of each.

    Example:

        images, labels = load("digits", "train")
        images.dtype, list(images.shape), len(labels)  # (torch.uint8, [1437, 1, 16, 16], 1437)
    """

    images: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]


@dataclass(frozen=True)
class Format:
    """One way to have a set; `decode(split, contents)` makes images of the files that `parts` names for the split."""

    about: str  # "the official files"; "a lossy JPEG copy"
    files: FileSet
    parts: Mapping[str, tuple[str, ...]]
    decode: Callable[[str, Sequence[bytes]], Labelled]
    keep: bool = False  # store the decoded images in the cache, where decoding is slow
    version: int = 1  # raise it when `decode` changes: what is in the cache is then made anew


def read_split(formats: Sequence[Format], split: str, root: str | Path | None = None) -> Labelled:
    """Read "train" or "test" in the first format whose files are in the user's folder or the cache."""
    tried = []
    for fmt in formats:
        contents = []
        for name in fmt.parts[split]:
            try:
                contents.append(files.find(fmt.files, name, root).content)
            except DataError as error:
                tried += [f"{fmt.about}, {name}: {line}" for line in str(error).splitlines()]
        if len(contents) == len(fmt.parts[split]):
            return _kept(fmt, split, contents) if fmt.keep else _checked(fmt, split, contents)
    name = formats[0].files.name
    places = "".join(f"\n  {line}" for line in tried)
    by_hand = f"put the files of one format by hand into {cache_folder() / name}"
    raise DataError(
        f"could not read {name} {split} in any format:{places}\nrun `torchcaps data get {name}`, or {by_hand}"
    )


def get(formats: Sequence[Format], root: str | Path | None, progress: Callable[[str], object]) -> list[Path]:
    """Return where the files of the first format at hand lie; else fetch the first format that a mirror still gives."""
    at_hand = _at_hand(formats, root)
    wrong = []
    for fmt in [at_hand] if at_hand else formats:
        if not at_hand and not fmt.files.mirrors:
            continue  # nobody gives it
        progress(f"{fmt.files.name}: as {fmt.about}")
        try:
            return files.get(fmt.files, root, progress)
        except DataError as error:
            wrong.append(str(error))
    raise DataError("\n".join(wrong))


def status(formats: Sequence[Format], root: str | Path | None) -> str:
    """Say what `files.status` says, and which format is at hand: a lossy copy must not pass for the original."""
    if fmt := _at_hand(formats, root):
        return f"{files.status(fmt.files, root)}, {fmt.about}"
    return files.status(formats[0].files, root)


def _at_hand(formats: Sequence[Format], root: str | Path | None) -> Format | None:
    for fmt in formats:
        if files.status(fmt.files, root).startswith("complete"):
            return fmt
    return None


def _kept(fmt: Format, split: str, contents: Sequence[bytes]) -> Labelled:
    """Return what was decoded before, else decode and keep it. The file's name holds the hash of its source."""
    path = cache_folder() / fmt.files.name / f"{split}-{_source_hash(fmt, contents)[:16]}.safetensors"
    try:
        with safe_open(path, framework="pt") as kept:
            found = Labelled(kept.get_tensor("images"), kept.get_tensor("labels"))
            if (kept.metadata() or {}).get("sha256") == _content_hash(found):
                return found
    except (OSError, SafetensorError):
        pass
    # not there yet, or damaged: the source is at hand, so make it anew
    data = _checked(fmt, split, contents)
    try:
        tensors = {"images": data.images.contiguous(), "labels": data.labels}
        write_whole(path, save(tensors, metadata={"sha256": _content_hash(data)}))
    except OSError as error:
        warnings.warn(
            f"{fmt.files.name} {split} is decoded again next time, since {path} cannot be written ({error})",
            stacklevel=4,
        )
    return data


def _content_hash(data: Labelled) -> str:
    """Hash shapes, types, pixels and labels."""
    digest = hashlib.sha256()
    for part in data:
        digest.update(f"{part.dtype} {list(part.shape)}".encode())
        digest.update(part.contiguous().numpy().data)
    return digest.hexdigest()


def _source_hash(fmt: Format, contents: Sequence[bytes]) -> str:
    parts = [hashlib.sha256(content).hexdigest() for content in contents]
    return hashlib.sha256(" ".join([str(fmt.version), *parts]).encode()).hexdigest()


def _checked(fmt: Format, split: str, contents: Sequence[bytes]) -> Labelled:
    """Decode, and see that there is one label per image: anything else would shift all that follows."""
    data = fmt.decode(split, contents)
    if len(data.images) != len(data.labels) or data.images.dtype != torch.uint8:
        found = f"{len(data.images):,} images of {data.images.dtype} and {len(data.labels):,} labels"
        raise DataError(f"{fmt.files.name} {split}, {fmt.about}: {found}; replace the files")
    return data
