"""Atomic file writes."""

import hashlib
import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: bytes) -> Path:
    """Write a file atomically: to a temporary name, then move. Readers see the old file or the whole new one."""
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


def write_hashed(path: Path, content: bytes) -> Path:
    """Write a cache file: the hash of the content on the first line, then the content."""
    return write_whole(path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def read_hashed(path: Path) -> bytes | None:
    """Read the content of a cache file, or None if it is missing or damaged and has to be made again."""
    if not path.is_file():
        return None
    sha256, _, content = path.read_bytes().partition(b"\n")
    return content if hashlib.sha256(content).hexdigest().encode() == sha256 else None
