"""Single images as users have them, opened by one rule: see sets/image_folder.py."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from einops import rearrange
from jaxtyping import UInt8

from torchcaps.data.sources.files import DataError
from torchcaps.data.sources.image_archives import image_module


class Look(NamedTuple):
    size: tuple[int, int]  # width and height, as Pillow has them
    grey: bool  # also of a colour file whose channels are the same everywhere


def open_image(path: Path):
    """Open an image with Pillow, in mode L or RGB, upright."""
    from PIL import ImageOps

    pil = image_module()
    try:
        with pil.open(path) as opened:
            if opened.mode.startswith("I"):  # 16 bits, which Pillow would cut off at 255
                deep = np.asarray(opened).astype(np.int64)
                return pil.fromarray((deep >> 8 if deep.max(initial=0) > 255 else deep).clip(0, 255).astype(np.uint8))
            upright = ImageOps.exif_transpose(opened)
            if upright.has_transparency_data:
                clear = upright.convert("RGBA")
                upright = pil.alpha_composite(pil.new("RGBA", clear.size, "white"), clear)
            return upright.convert("L" if upright.mode in ("1", "L") else "RGB")
    # a broken PNG is a SyntaxError to Pillow
    except (OSError, ValueError, SyntaxError, EOFError, pil.DecompressionBombError) as error:
        raise DataError(f"not an image that Pillow can read ({error})") from error


def look_at(path: Path) -> Look:
    image = open_image(path)
    pixels = np.asarray(image)
    return Look(image.size, image.mode == "L" or bool((pixels == pixels[..., :1]).all()))


def read_image(path: Path, size: int, channels: int) -> UInt8[np.ndarray, "c h w"]:
    """Read the whole image, its proportions kept, in the middle of a black square."""
    pil = image_module()
    image = open_image(path).convert("L" if channels == 1 else "RGB")
    share = size / max(image.size)
    inner = tuple(max(1, round(side * share)) for side in image.size)
    if inner != image.size:
        image = image.resize(inner, pil.Resampling.BILINEAR)  # Pillow's looks at every pixel that a new one covers
    square = pil.new(image.mode, (size, size))
    square.paste(image, ((size - inner[0]) // 2, (size - inner[1]) // 2))
    pixels = np.asarray(square)
    return pixels[None] if channels == 1 else rearrange(pixels, "h w c -> c h w")
