"""Small stand-ins for the archives of images, with the structure of the real ones."""

import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from torchcaps.data.sources.files import FileSet
from torchcaps.data.sources.formats import Format


def encoded(pixels: np.ndarray, kind: str) -> bytes:
    """[h w] or [h w 3] as a JPEG, WebP or PNG; lossless where the kind can be."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(
        buffer, kind, **({"quality": 95} if kind == "JPEG" else {"lossless": True} if kind == "WEBP" else {})
    )
    return buffer.getvalue()


def tar(members: dict[str, bytes], compression: str = "xz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{compression}") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def put(folder: Path, fmt: Format, contents: dict[str, bytes]) -> Format:
    """Write the files and return the format with their hashes; where the real table has none, the stand-in has none."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    sha256 = {
        name: hashlib.sha256(content).hexdigest() if fmt.files.sha256[name] else ""
        for name, content in contents.items()
    }
    return replace(fmt, files=FileSet(fmt.files.name, sha256))
