"""A set that can be had in several forms: the official files, a package of a registry, a copy stored as pictures.

Each form is a whole way to have the set, with its own table of files; the first one that is at hand is read. What takes long to
decode is decoded once and kept in the cache under the hash of its source: another source has another name, so it is never mistaken.
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


class Pictures(NamedTuple):
    images: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]


@dataclass(frozen=True)
class Form:
    """One way to have a set. `decode(split, contents)` makes pictures of the files that `parts` names for the split."""

    about: str  # "the official files"; "a lossy JPEG copy"
    files: FileSet
    parts: Mapping[str, tuple[str, ...]]
    decode: Callable[[str, Sequence[bytes]], Pictures]
    keep: bool = False  # whether decoding takes long enough to keep what came out
    version: int = 1  # of `decode`; another number leaves what is kept behind


def read_split(forms: Sequence[Form], split: str, root: str | Path | None = None) -> Pictures:
    """The pictures of "train" or "test" in the first form whose files are in the user's folder or the cache."""
    tried = []
    for form in forms:
        contents = []
        for name in form.parts[split]:
            try:
                contents.append(files.find(form.files, name, root).content)
            except DataError as error:
                tried += [f"{form.about}, {name}: {line}" for line in str(error).splitlines()]
        if len(contents) == len(form.parts[split]):
            return _kept(form, split, contents) if form.keep else _checked(form, split, contents)
    name = forms[0].files.name
    places = "".join(f"\n  {line}" for line in tried)
    by_hand = f"put the files of one form by hand into {cache_folder() / name}"
    raise DataError(f"could not read {name} {split} in any form:{places}\nrun `torchcaps data get {name}`, or {by_hand}")


def get(forms: Sequence[Form], root: str | Path | None, progress: Callable[[str], object]) -> list[Path]:
    """Where the files of the first form at hand lie; else fetch the first form that one of its homes still gives."""
    at_hand = _at_hand(forms, root)
    wrong = []
    for form in [at_hand] if at_hand else forms:
        if not at_hand and not form.files.homes:
            continue  # nobody gives it
        progress(f"{form.files.name}: as {form.about}")
        try:
            return files.get(form.files, root, progress)
        except DataError as error:
            wrong.append(str(error))
    raise DataError("\n".join(wrong))


def status(forms: Sequence[Form], root: str | Path | None) -> str:
    """As `files.status`, with the form that is at hand: a copy that lost something must not pass for the original."""
    if form := _at_hand(forms, root):
        return f"{files.status(form.files, root)}, {form.about}"
    return files.status(forms[0].files, root)


def _at_hand(forms: Sequence[Form], root: str | Path | None) -> Form | None:
    for form in forms:
        if files.status(form.files, root).startswith("complete"):
            return form
    return None


def _kept(form: Form, split: str, contents: Sequence[bytes]) -> Pictures:
    """What was decoded before, else decode and keep it. The hash of every byte of the source is in the file's name."""
    path = cache_folder() / form.files.name / f"{split}-{_source_hash(form, contents)[:16]}.safetensors"
    try:
        with safe_open(path, framework="pt") as kept:
            return Pictures(kept.get_tensor("images"), kept.get_tensor("labels"))
    except (OSError, SafetensorError):  # not there yet, or damaged: the source is at hand, so make it anew
        pictures = _checked(form, split, contents)
    try:
        write_whole(path, save({"images": pictures.images.contiguous(), "labels": pictures.labels}))
    except OSError as error:
        warnings.warn(f"{form.files.name} {split} is decoded again next time, since {path} cannot be written ({error})", stacklevel=4)
    return pictures


def _source_hash(form: Form, contents: Sequence[bytes]) -> str:
    parts = [hashlib.sha256(content).hexdigest() for content in contents]
    return hashlib.sha256(" ".join([str(form.version), *parts]).encode()).hexdigest()


def _checked(form: Form, split: str, contents: Sequence[bytes]) -> Pictures:
    """Decode, and see that there is one label per picture: anything else would shift all that follows."""
    pictures = form.decode(split, contents)
    if len(pictures.images) != len(pictures.labels) or pictures.images.dtype != torch.uint8:
        found = f"{len(pictures.images):,} pictures of {pictures.images.dtype} and {len(pictures.labels):,} labels"
        raise DataError(f"{form.files.name} {split}, {form.about}: {found}; replace the files")
    return pictures
