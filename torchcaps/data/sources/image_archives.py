"""Archives of small images (JPEG, WebP, PNG) turned into bytes of [n c h w]."""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange
from jaxtyping import UInt8
from torch import Tensor

from torchcaps.data.sources.files import DataError

CHUNK = 500  # images that a thread decodes in one go; one at a time, handing over costs as much as decoding


class Member(NamedTuple):
    name: str  # without folders
    content: bytes


def tar_members(archive: bytes, name: str) -> list[Member]:
    """Read the plain files of a tar archive, compressed in whatever way, in the order of the archive."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            return [
                Member(PurePosixPath(item.name).name, opened.extractfile(item).read())
                for item in opened
                if item.isfile()
            ]
    except (OSError, EOFError, tarfile.TarError, lzma.LZMAError) as error:
        raise DataError(f"{name} is not a whole tar archive ({error}); replace it") from error


def decode_images(members: Sequence[Member], shape: tuple[int, int, int], name: str) -> UInt8[Tensor, "n c h w"]:
    """Decode every image in turn, each of `shape` (c h w; one channel means grey, three mean RGB)."""
    image_module()  # without Pillow: one clear error here instead of one in every thread
    images = np.empty((len(members), *shape), dtype=np.uint8)

    def fill(start: int) -> None:
        for at in range(start, min(start + CHUNK, len(members))):
            images[at] = _decode(members[at], shape, name)

    with ThreadPoolExecutor() as pool:  # Pillow lets go of the lock while it decodes
        _raise_first(pool.map(fill, range(0, len(members), CHUNK)))
    return torch.from_numpy(images)


def _raise_first(results: Iterable[None]) -> None:
    for _ in results:
        pass


def _decode(member: Member, shape: tuple[int, int, int], name: str) -> UInt8[np.ndarray, "c h w"]:
    c, h, w = shape
    try:
        with image_module().open(io.BytesIO(member.content)) as image:
            pixels = np.asarray(image)
    except (OSError, ValueError, SyntaxError) as error:  # a broken PNG is a SyntaxError to Pillow
        raise DataError(f"{name}: {member.name} is not an image that Pillow can read ({error}); replace it") from error
    if pixels.shape != ((h, w) if c == 1 else (h, w, c)) or pixels.dtype != np.uint8:
        wanted = f"{h}x{w} in {'grey' if c == 1 else 'colour'}"
        raise DataError(
            f"{name}: {member.name} is {list(pixels.shape)} of {pixels.dtype}, expected {wanted}; replace it"
        )
    return rearrange(pixels, "h w -> 1 h w" if c == 1 else "h w c -> c h w")


def image_module():
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            "these images are read with Pillow, which is not installed; run `pip install 'torchcaps[experiments]'`"
        ) from error
    return Image
