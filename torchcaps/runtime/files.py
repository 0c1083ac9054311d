"""Files: atomic writes, hashed cache files, and a lock for a folder."""

import fcntl
import hashlib
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ORPHANED = 3600.0  # seconds after which a temporary file belongs to nobody
COMPILED = "compiled"  # PyTorch's own folder in the cache, of many files


def write_whole(path: Path, content: bytes) -> Path:
    """Write a file atomically: to a temporary name, then move. Readers see the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_parts(path.parent, path.name, ORPHANED)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with naming(path), open(aside, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def remove_parts(folder: Path, name: str = "*", older_than: float = 0.0) -> None:
    """Remove temporary files of `write_whole` that a kill left behind, of one file or of the whole folder."""
    for path in folder.glob(f".{name}.????????.part"):
        try:
            if time.time() - path.stat().st_mtime >= older_than:
                path.unlink()
        except OSError:
            continue  # another process was faster, or it is not ours to remove


def clear_cache(cache: Path) -> None:
    """Remove the temporary files that a kill left anywhere below the cache, whose files are written once and no more.

    A younger one may belong to another process.
    """
    for folder, inner, _ in os.walk(cache):
        inner[:] = [name for name in inner if name != COMPILED]
        remove_parts(Path(folder), older_than=ORPHANED)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an error of the system, such as a full disk, which has none of its own."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process, or raise ValueError with whoever holds it.

    The system releases the lock of a process that ends, however it ends: the file that stays behind locks nothing.
    """
    path = folder / ".lock"
    with naming(path):
        file = open(path, "a+")  # noqa: SIM115, closed below: an error of the block must not name this file
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise ValueError(
                f"{folder} is in use by {holder}; wait until that has ended, or give another folder with --out"
            ) from error
        except OSError:
            pass  # a file system without locks
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def write_hashed(path: Path, content: bytes) -> Path:
    """Write a cache file: the hash of the content on the first line, then the content."""
    return write_whole(path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def read_hashed(path: Path) -> bytes | None:
    """Read the content of a cache file, or None if it is missing or damaged and has to be made again."""
    if not path.is_file():
        return None
    sha256, _, content = path.read_bytes().partition(b"\n")
    return content if hashlib.sha256(content).hexdigest().encode() == sha256 else None
