"""Weights files of pretrained models: beside the registry, in the user's folder, in the cache, or fetched into it.

Small files come with the package. Large ones are in a checkout; an installed package fetches them when they are first
loaded, from the address `Weights` of pyproject.toml.
"""

import hashlib
import sys
from pathlib import Path

from torchcaps.data.sources import files
from torchcaps.data.sources.files import Address, DataError, FileSet
from torchcaps.pretrained.registry import FOLDER, Entry, entry
from torchcaps.runtime.files import write_whole
from torchcaps.runtime.project import address

SET = "weights"  # their folder in the cache, or in the folder that TORCHCAPS_DATA names


def file_of(name: str, folder: Path = FOLDER) -> Path:
    """Return the path of a model's weights after checking their hash. Fetch a large file that is nowhere."""
    wanted = entry(name, folder)
    path = folder / wanted.file
    if not wanted.ships and not path.exists():
        return _elsewhere(name, wanted)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"the weights of {name} cannot be read ({error.strerror}: {path}); install torchcaps again"
        ) from error
    if (found := hashlib.sha256(content).hexdigest()) != wanted.sha256:
        raise ValueError(
            f"the weights of {name} are not those that were released: "
            f"wanted {wanted.bytes:,} bytes of sha256 {wanted.sha256}, "
            f"{path} has {len(content):,} of {found}; install torchcaps again, or fetch that file anew"
        )
    return path


def at_hand(name: str, folder: Path = FOLDER) -> bool:
    """Tell whether a model loads without the network."""
    wanted = entry(name, folder)
    if wanted.ships or (folder / wanted.file).exists():
        return True
    try:
        files.find(_file_set(wanted), wanted.file)
    except DataError:
        return False
    return True


def card_of(name: str, folder: Path = FOLDER) -> str:
    """Read the model card, which comes with the package for every model."""
    return (folder / entry(name, folder).file).with_suffix(".md").read_text()


def _elsewhere(name: str, wanted: Entry) -> Path:
    """Find a large file in the user's folder or the cache, or fetch it into the cache."""
    known = _file_set(wanted)
    try:
        found = files.find(known, wanted.file)
    except DataError:
        try:
            files.get(known, progress=lambda line: print(line, file=sys.stderr, flush=True))
        except DataError as error:
            raise DataError(
                f"the weights of {name} ({wanted.bytes / 1e6:.0f} MB) do not come with the package"
                f"{'' if known.mirrors else ', and this version names no address for them'}; {error}\n"
                f"a checkout of torchcaps has {wanted.file} in torchcaps/pretrained/weights"
            ) from error
        found = files.find(known, wanted.file)
    plain = files.cache_folder() / SET / wanted.file
    for path in (found.path, plain):  # the first may be packed, whatever its name is
        if path.exists() and path.read_bytes() == found.content:
            return path
    return write_whole(plain, found.content)


def _file_set(wanted: Entry) -> FileSet:
    home = address("Weights")
    return FileSet(SET, {wanted.file: wanted.sha256}, (Address(f"{home}/{{file}}"),) if home else ())
