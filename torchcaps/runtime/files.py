"""Atomic file writes."""

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
