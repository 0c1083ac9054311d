"""smallNORB (LeCun, Huang, Bottou 2004): stereo pairs of 50 toys, 96x96 grey, under 9 elevations, 18 azimuths and 6 lights.

The toys of the test part are other ones than those of the training part. The official files are binary; a copy holds the
same pairs, in the same order, as JPEG of quality 75, which is lossy: whoever uses it should say so.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Int64
from torch import Tensor

from torchcaps.data.sources.files import Address, DataError, FileSet, read
from torchcaps.data.sources.formats import Form, Pictures
from torchcaps.data.sources.image_archives import decode_pictures, tar_members

SIZE = 96
TOYS = (4, 6, 7, 8, 9)  # of each category in the training part
HELD_TOY = 9
CATEGORIES = ("animal", "human", "airplane", "truck", "car")  # as the official files number them
PARTS = {"train": "smallnorb-5x46789x9x18x6x2x96x96-training", "test": "smallnorb-5x01235x9x18x6x2x96x96-testing"}
LARGEST_FACTORS = (9, 8, 34, 5)  # instance, elevation, azimuth, lighting
DTYPES = {0x1E3D4C55: np.dtype("u1"), 0x1E3D4C54: np.dtype("<i4")}


class Factors(NamedTuple):
    """What a pair shows besides its category."""

    instance: Int64[Tensor, " n"]  # 0..9, the toy within its category
    elevation: Int64[Tensor, " n"]  # 0..8: 30 to 70 degrees in steps of 5
    azimuth: Int64[Tensor, " n"]  # 0, 2 .. 34: tens of degrees
    lighting: Int64[Tensor, " n"]  # 0..5


def parse_matrix(content: bytes, name: str) -> np.ndarray:
    """The official format: int32 magic, number of axes, at least three sizes, then the values; all little-endian."""
    head = np.frombuffer(content[: len(content) // 4 * 4], dtype="<i4", count=min(len(content) // 4, 2)).tolist()
    if len(head) < 2 or head[0] not in DTYPES or not 0 < head[1] < 8:
        raise DataError(f"{name} is not a matrix of bytes or int32 as NORB stores it: it begins with {content[:8].hex(' ') or 'nothing'}")
    dtype, start = DTYPES[head[0]], 8 + 4 * max(head[1], 3)
    shape = np.frombuffer(content[8:start], dtype="<i4").tolist()[: head[1]]
    if len(shape) < head[1] or min(shape) < 1 or math.prod(shape) * dtype.itemsize != len(content) - start:
        raise DataError(f"{name} announces {shape} values of {dtype} and holds {len(content) - start:,} bytes of them; replace it")
    return np.frombuffer(content, dtype=dtype, offset=start).reshape(shape)


def _from_matrices(split: str, contents: Sequence[bytes]) -> Pictures:
    """The `dat` and `cat` file of one part."""
    name = f"{PARTS[split]}-dat.mat"
    try:
        dat = gzip.decompress(contents[0]) if contents[0].startswith(b"\x1f\x8b") else contents[0]
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name}.gz is damaged ({error}); replace it") from error
    pairs, labels = parse_matrix(dat, name), parse_matrix(contents[1], f"{PARTS[split]}-cat.mat")
    if pairs.shape[1:] != (2, SIZE, SIZE) or pairs.dtype != np.uint8:
        raise DataError(f"{name} holds {list(pairs.shape)} of {pairs.dtype}, expected [n, 2, {SIZE}, {SIZE}] bytes; replace it")
    return Pictures(torch.from_numpy(pairs.copy()), torch.from_numpy(labels.astype(np.int64)))


def _from_jpegs(split: str, contents: Sequence[bytes]) -> Pictures:
    """NNNNNN_<category>_<instance>_{lt,rt}.jpg: the left and the right picture become two channels, sorted by NNNNNN."""
    name = f"smallnorb-{split}.tar.xz"
    members = sorted(tar_members(contents[0], name))
    pattern = re.compile(rf"(\d{{6}})_({'|'.join(CATEGORIES)})_\d\d_(lt|rt)\.jpg")
    found = [pattern.fullmatch(member.name) for member in members]
    for at, (member, match) in enumerate(zip(members, found, strict=True)):
        if not match or int(match[1]) != at // 2 or match[3] != ("lt", "rt")[at % 2]:
            expected = f"{at // 2:06}_<category>_<instance>_{('lt', 'rt')[at % 2]}.jpg"
            raise DataError(f"{name} holds {member.name} where {expected} was expected; replace it")
    if len(members) % 2 or not members:
        raise DataError(f"{name} holds {len(members)} pictures, which is no number of pairs; replace it")
    labels = torch.tensor([CATEGORIES.index(match[2]) for match in found[::2]])
    pairs = rearrange(decode_pictures(members, (1, SIZE, SIZE), name), "(n eye) 1 h w -> n eye h w", eye=2)
    return Pictures(pairs, labels)


OFFICIAL = {
    f"{PARTS['train']}-dat.mat.gz": "5ffd6272a07d32695ee1082a26a41a93a37aab8c28da047f8c34ed348d214873",
    f"{PARTS['train']}-cat.mat": "591ed90c090cb6724593e8de28180bd602095ee8ec82bd1a5ca30b488cd1d06e",
    f"{PARTS['train']}-info.mat.gz": "de7eb932ebe7a4ee16217fead60660d0eb3d23632c2f4d1c51f88c501c17bf32",
    f"{PARTS['test']}-dat.mat.gz": "cf7104eed3e51174d2f65b66d1e5878b9da233b886f161b0d88f4510ba2c7474",
    f"{PARTS['test']}-cat.mat": "591ed90c090cb6724593e8de28180bd602095ee8ec82bd1a5ca30b488cd1d06e",  # the classes take turns in both
    f"{PARTS['test']}-info.mat": "318f817236b7c97af03cd90e07a9cbb4346e20ef83a1118a61eeb50e3b96db7e",
}
# the hash of the unpacked pictures was never published: a user's own are taken if every byte is accounted for
UNPACKED = {name.removesuffix(".gz"): "" if "-dat" in name else sha256 for name, sha256 in OFFICIAL.items() if "-info" not in name}
COPY = {
    "smallnorb-train.tar.xz": "c1f3083d21a03094c59250c28130060143eacef261ff9ff1b413e32f87463878",
    "smallnorb-test.tar.xz": "782a56dc5495f7bc1768f812605ec01541242c9f08aa15c9a07efe50993799c8",
}
FILES = FileSet("smallnorb", OFFICIAL, (Address("https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/{file}.gz"),))
FORMS = (
    Form("the official files", FILES, {s: (f"{start}-dat.mat.gz", f"{start}-cat.mat") for s, start in PARTS.items()}, _from_matrices),
    Form(
        "the official files, unpacked",
        FileSet("smallnorb", UNPACKED),
        {split: (f"{start}-dat.mat", f"{start}-cat.mat") for split, start in PARTS.items()},
        _from_matrices,
    ),
    Form(
        "a lossy JPEG copy",
        FileSet("smallnorb", COPY),
        {split: (f"smallnorb-{split}.tar.xz",) for split in PARTS},
        _from_jpegs,
        keep=True,
    ),
)


def factors(split: str, root: str | Path | None = None) -> Factors:
    """Instance, elevation, azimuth and lighting of every pair of "train" or "test", in the order of the pictures."""
    name = next(name for name in OFFICIAL if name.startswith(f"{PARTS[split]}-info"))
    content = _info(name, root)
    table = parse_matrix(gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content, name)
    if table.ndim != 2 or table.shape[1] != len(Factors._fields):
        raise DataError(f"{name} holds {list(table.shape)} numbers, expected four for each pair; replace it")
    if (table < 0).any() or (table > LARGEST_FACTORS).any():
        raise DataError(f"{name} holds numbers up to {table.max(0).tolist()}, expected 0 to {list(LARGEST_FACTORS)}; replace it")
    return Factors(*torch.from_numpy(table.astype(np.int64)).unbind(1))


def _info(name: str, root: str | Path | None) -> bytes:
    """The file as it is. Of a table that is known by the hash of its .gz, a user's own unpacked one is taken on trust too."""
    try:
        (content,) = read(FILES, [name], root)
    except DataError as error:
        plain = name.removesuffix(".gz")
        if plain == name:
            raise
        try:
            (content,) = read(FileSet(FILES.name, {plain: ""}), [plain], root)
        except DataError:
            raise error from None  # the official file is the one to ask for
    return content


def instances(split: str, root: str | Path | None = None) -> Int64[Tensor, " n"]:
    """The toy, 0..9 within its category, of every pair: by the official table, else by the names in the copy."""
    try:
        return factors(split, root).instance
    except DataError as error:
        copy = FORMS[-1]
        (name,) = copy.parts[split]
        try:
            (content,) = read(copy.files, [name], root)
        except DataError:
            raise error from None  # the official table is the one to ask for
        members = sorted(member.name for member in tar_members(content, name))
        return torch.tensor([int(member.split("_")[2]) for member in members[::2]])


def by_toys(split: str, pictures: Pictures, toys: Int64[Tensor, " n"], held: int = HELD_TOY) -> Pictures:
    """Of the official training part, one toy of each category to test on and the others to train on: to choose by, not to report."""
    wanted = (toys == held) == (split == "test")
    return Pictures(pictures.images[wanted], pictures.labels[wanted])


def halved(pictures: Pictures) -> Pictures:
    """48x48: each pixel is the mean of four, rounded. In whole numbers, so it is the same on every machine."""
    blocks = rearrange(pictures.images, "n c (h y) (w x) -> (y x) n c h w", y=2, x=2)
    total = blocks[0].to(torch.int16)
    for block in blocks[1:]:
        total += block
    return Pictures(((total + 2) // 4).to(torch.uint8), pictures.labels)


def thinned(pictures: Pictures) -> Pictures:
    """48x48: every second pixel of every second row, which is what TensorFlow's resizing made of 96x96 for Sabour 2017.

    It interpolated at twice the number of each new pixel, counted from 0, and that is a pixel; neighbours were not averaged.
    """
    return Pictures(pictures.images[..., ::2, ::2].contiguous(), pictures.labels)
