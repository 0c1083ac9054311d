"""smallNORB (LeCun, Huang, Bottou 2004): stereo pairs of 50 toys, 96x96 grey.

Every toy is seen under 9 elevations, 18 azimuths and 6 lights. The test part shows other toys than the training part.
The official files are binary; a copy holds the same pairs in the same order as JPEG of quality 75, which is lossy:
results on it should say so.

Viewpoint splits follow Hinton, Sabour and Frosst 2018 (section 5.1): azimuths of 300 to 40 degrees to train on and 60
to 280 to test on, or the three lowest elevations and the other six. They trained on the training toys and tested on
the others; here both sides show the toys of the official test part, since only its viewpoints were at hand. So such a
split is about viewpoints alone. One light in six of the familiar views is held out, another one for every toy,
elevation and azimuth in turn: a network that fails on those fails for another reason than the viewpoint.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Int16, Int64
from torch import Tensor

from torchcaps.data.sources import formats
from torchcaps.data.sources.files import Address, DataError, FileSet, read
from torchcaps.data.sources.formats import Format, Labelled
from torchcaps.data.sources.image_archives import decode_images, tar_members
from torchcaps.data.specs import VIEWPOINTS, DataInfo, DataSet, DataSpec

SIZE = 96
TOYS = (4, 6, 7, 8, 9)  # numbers of the toys in the training part, for each category
HELD_TOY = 9
CATEGORIES = ("animal", "human", "airplane", "truck", "car")  # as the official files number them
PARTS = {"train": "smallnorb-5x46789x9x18x6x2x96x96-training", "test": "smallnorb-5x01235x9x18x6x2x96x96-testing"}
FAMILIAR = {"azimuth": (30, 32, 34, 0, 2, 4), "elevation": (0, 1, 2)}  # as the official table numbers them
N_VIEWS = {"train": 6_750, "familiar": 1_350, "novel": 16_200}  # pairs, for azimuth and elevation alike
LARGEST_FACTORS = (9, 8, 34, 5)  # instance, elevation, azimuth, lighting
DTYPES = {0x1E3D4C55: np.dtype("u1"), 0x1E3D4C54: np.dtype("<i4")}


class Factors(NamedTuple):
    """Factors of a pair besides its category."""

    instance: Int64[Tensor, " n"]  # 0..9, the toy within its category
    elevation: Int64[Tensor, " n"]  # 0..8: 30 to 70 degrees in steps of 5
    azimuth: Int64[Tensor, " n"]  # 0, 2 .. 34: tens of degrees
    lighting: Int64[Tensor, " n"]  # 0..5


def parse_matrix(content: bytes, name: str) -> np.ndarray:
    """Parse the official format, little-endian: int32 magic, number of axes, at least three sizes, then the values."""
    head = np.frombuffer(content[: len(content) // 4 * 4], dtype="<i4", count=min(len(content) // 4, 2)).tolist()
    if len(head) < 2 or head[0] not in DTYPES or not 0 < head[1] < 8:
        raise DataError(
            f"{name} is not a matrix of bytes or int32 as NORB stores it: "
            f"it begins with {content[:8].hex(' ') or 'nothing'}"
        )
    dtype, start = DTYPES[head[0]], 8 + 4 * max(head[1], 3)
    shape = np.frombuffer(content[8:start], dtype="<i4").tolist()[: head[1]]
    if len(shape) < head[1] or min(shape) < 1 or math.prod(shape) * dtype.itemsize != len(content) - start:
        raise DataError(
            f"{name} announces {shape} values of {dtype} and holds {len(content) - start:,} bytes of them; replace it"
        )
    return np.frombuffer(content, dtype=dtype, offset=start).reshape(shape)


def _from_matrices(split: str, contents: Sequence[bytes]) -> Labelled:
    """Decode the `dat` and `cat` file of one part."""
    name = f"{PARTS[split]}-dat.mat"
    try:
        dat = gzip.decompress(contents[0]) if contents[0].startswith(b"\x1f\x8b") else contents[0]
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name}.gz is damaged ({error}); replace it") from error
    pairs, labels = parse_matrix(dat, name), parse_matrix(contents[1], f"{PARTS[split]}-cat.mat")
    if pairs.shape[1:] != (2, SIZE, SIZE) or pairs.dtype != np.uint8:
        raise DataError(
            f"{name} holds {list(pairs.shape)} of {pairs.dtype}, expected [n, 2, {SIZE}, {SIZE}] bytes; replace it"
        )
    return Labelled(torch.from_numpy(pairs.copy()), torch.from_numpy(labels.astype(np.int64)))


def _from_jpegs(split: str, contents: Sequence[bytes]) -> Labelled:
    """Decode NNNNNN_<category>_<instance>_{lt,rt}.jpg, sorted by NNNNNN; left and right become two channels."""
    name = f"smallnorb-{split}.tar.xz"
    members = sorted(tar_members(contents[0], name))
    pattern = re.compile(rf"(\d{{6}})_({'|'.join(CATEGORIES)})_\d\d_(lt|rt)\.jpg")
    found = [pattern.fullmatch(member.name) for member in members]
    for at, (member, match) in enumerate(zip(members, found, strict=True)):
        if not match or int(match[1]) != at // 2 or match[3] != ("lt", "rt")[at % 2]:
            expected = f"{at // 2:06}_<category>_<instance>_{('lt', 'rt')[at % 2]}.jpg"
            raise DataError(f"{name} holds {member.name} where {expected} was expected; replace it")
    if len(members) % 2 or not members:
        raise DataError(f"{name} holds {len(members)} images, which is no number of pairs; replace it")
    labels = torch.tensor([CATEGORIES.index(match[2]) for match in found[::2]])
    pairs = rearrange(decode_images(members, (1, SIZE, SIZE), name), "(n eye) 1 h w -> n eye h w", eye=2)
    return Labelled(pairs, labels)


OFFICIAL = {
    f"{PARTS['train']}-dat.mat.gz": "5ffd6272a07d32695ee1082a26a41a93a37aab8c28da047f8c34ed348d214873",
    f"{PARTS['train']}-cat.mat": "591ed90c090cb6724593e8de28180bd602095ee8ec82bd1a5ca30b488cd1d06e",
    f"{PARTS['train']}-info.mat.gz": "de7eb932ebe7a4ee16217fead60660d0eb3d23632c2f4d1c51f88c501c17bf32",
    f"{PARTS['test']}-dat.mat.gz": "cf7104eed3e51174d2f65b66d1e5878b9da233b886f161b0d88f4510ba2c7474",
    f"{PARTS['test']}-cat.mat": "591ed90c090cb6724593e8de28180bd602095ee8ec82bd1a5ca30b488cd1d06e",  # as above
    f"{PARTS['test']}-info.mat": "318f817236b7c97af03cd90e07a9cbb4346e20ef83a1118a61eeb50e3b96db7e",
}
# the hash of the unpacked images was never published: a user's own are taken if every byte is accounted for
UNPACKED = {
    name.removesuffix(".gz"): "" if "-dat" in name else sha256
    for name, sha256 in OFFICIAL.items()
    if "-info" not in name
}
COPY = {
    "smallnorb-train.tar.xz": "c1f3083d21a03094c59250c28130060143eacef261ff9ff1b413e32f87463878",
    "smallnorb-test.tar.xz": "782a56dc5495f7bc1768f812605ec01541242c9f08aa15c9a07efe50993799c8",
}
FILES = FileSet("smallnorb", OFFICIAL, (Address("https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/{file}.gz"),))
FORMATS = (
    Format(
        "the official files",
        FILES,
        {s: (f"{start}-dat.mat.gz", f"{start}-cat.mat") for s, start in PARTS.items()},
        _from_matrices,
    ),
    Format(
        "the official files, unpacked",
        FileSet("smallnorb", UNPACKED),
        {split: (f"{start}-dat.mat", f"{start}-cat.mat") for split, start in PARTS.items()},
        _from_matrices,
    ),
    Format(
        "a lossy JPEG copy",
        FileSet("smallnorb", COPY),
        {split: (f"smallnorb-{split}.tar.xz",) for split in PARTS},
        _from_jpegs,
        keep=True,
    ),
)


def factors(split: str, root: str | Path | None = None) -> Factors:
    """Read instance, elevation, azimuth and lighting of every pair of "train" or "test", in the order of the images."""
    name = next(name for name in OFFICIAL if name.startswith(f"{PARTS[split]}-info"))
    content = _info(name, root)
    table = parse_matrix(gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content, name)
    if table.ndim != 2 or table.shape[1] != len(Factors._fields):
        raise DataError(f"{name} holds {list(table.shape)} numbers, expected four for each pair; replace it")
    if (table < 0).any() or (table > LARGEST_FACTORS).any():
        raise DataError(
            f"{name} holds numbers up to {table.max(0).tolist()}, expected 0 to {list(LARGEST_FACTORS)}; replace it"
        )
    return Factors(*torch.from_numpy(table.astype(np.int64)).unbind(1))


def _info(name: str, root: str | Path | None) -> bytes:
    """Read the file as it is; a table known by the hash of its .gz is taken unpacked too, on trust."""
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
    """Read the toy, 0..9 within its category, of every pair, from the official table or the names in the copy."""
    try:
        return factors(split, root).instance
    except DataError as error:
        copy = FORMATS[-1]
        (name,) = copy.parts[split]
        try:
            (content,) = read(copy.files, [name], root)
        except DataError:
            raise error from None  # the official table is the one to ask for
        digest = hashlib.sha256(content).digest()
        if digest not in _toys_named:
            members = sorted(member.name for member in tar_members(content, name))
            _toys_named[digest] = torch.tensor([int(member.split("_")[2]) for member in members[::2]])
        return _toys_named[digest].clone()


# toys of the pairs of a copy, by its hash: unpacking takes seven seconds, and both parts of a fold want them
_toys_named: dict[bytes, Int64[Tensor, " n"]] = {}


def by_toys(split: str, data: Labelled, toys: Int64[Tensor, " n"], held: int = HELD_TOY) -> Labelled:
    """Split the official training part: one toy of each category to test on, the others to train on."""
    wanted = (toys == held) == (split == "test")
    return Labelled(data.images[wanted], data.labels[wanted])


def halved(data: Labelled) -> Labelled:
    """Make 48x48: each pixel is the mean of four, rounded. In whole numbers, so it is the same on every machine."""
    blocks = rearrange(data.images, "n c (h y) (w x) -> (y x) n c h w", y=2, x=2)
    total = blocks[0].to(torch.int16)
    for block in blocks[1:]:
        total += block
    return Labelled(((total + 2) // 4).to(torch.uint8), data.labels)


def two_thirds(data: Labelled) -> Labelled:
    """Make 64x64: each pixel is the mean over 1.5 x 1.5 pixels, rounded, in whole numbers as `halved`."""

    def along(axis: int, levels: Int16[Tensor, "n c h w"]) -> Int16[Tensor, "n c h2 w2"]:
        first, middle, last = levels.unflatten(axis, (-1, 3)).unbind(axis + 1)
        return torch.stack([2 * first + middle, middle + 2 * last], dim=axis + 1).flatten(axis, axis + 1)

    # a thousand at a time: the sums take eight times the memory of the bytes
    nines = (along(3, along(2, part.to(torch.int16))) for part in data.images.split(1000))
    return Labelled(torch.cat([((2 * sums + 9) // 18).to(torch.uint8) for sums in nines]), data.labels)


def thinned(data: Labelled) -> Labelled:
    """Make 48x48: every second pixel of every second row, which is what TensorFlow's resizing did for Sabour 2017.

    It interpolated at twice the number of each new pixel, counted from 0: exactly on a pixel, so nothing was averaged.
    """
    return Labelled(data.images[..., ::2, ::2].contiguous(), data.labels)


def part_of(factors: Factors, vary: str, part: str) -> Bool[Tensor, " n"]:
    """Mark the pairs of "train", "familiar" or "novel", where `vary` (azimuth or elevation) tells the views apart."""
    familiar = torch.isin(getattr(factors, vary), torch.tensor(FAMILIAR[vary]))
    held = (factors.instance + factors.elevation + factors.azimuth // 2) % 6 == factors.lighting
    return {"train": familiar & ~held, "familiar": familiar & held, "novel": ~familiar}[part]


def by_viewpoint(data: Labelled, factors: Factors, vary: str, part: str) -> Labelled:
    """Keep the pairs of one part of a viewpoint split."""
    wanted = part_of(factors, vary, part)
    return Labelled(data.images[wanted], data.labels[wanted])


SMALL, MIDDLE = SIZE // 2, SIZE * 2 // 3
SPECS = (
    DataSpec(source="smallnorb"),
    DataSpec(source="smallnorb", size=SMALL),
    DataSpec(source="smallnorb", size=SMALL, thinned=True),
    DataSpec(source="smallnorb", split="toys"),
    DataSpec(source="smallnorb", split="folds"),
    DataSpec(source="smallnorb", size=SMALL, split="toys"),
    DataSpec(source="smallnorb", size=SMALL, split="folds"),
    DataSpec(source="smallnorb", size=SMALL, thinned=True, split="folds"),
    DataSpec(source="smallnorb", size=MIDDLE),
    DataSpec(source="smallnorb", size=MIDDLE, split="folds"),
    *(
        DataSpec(source="smallnorb", size=size, split=vary, familiar=familiar)
        for vary in VIEWPOINTS
        for size in (None, SMALL)
        for familiar in (False, True)
    ),
)


def build(spec: DataSpec) -> DataSet:
    n_train, n_test, about = _facts(spec)
    side = spec.size or SIZE
    info = DataInfo(
        name=str(spec),
        shape=(2, side, side),
        n_classes=len(CATEGORIES),
        n_train=n_train,
        n_test=n_test,
        about=about,
        files=len(FORMATS[0].files.sha256),
        groups="toys",
        class_names=CATEGORIES,
    )

    def read_part(split: str, root: str | Path | None, seed: int) -> Labelled:
        if spec.split in VIEWPOINTS:
            found = factors("test", root)  # first: the images take longer, and without it they are of no use
            data = formats.read_split(FORMATS, "test", root)
            return _sized(spec, by_viewpoint(data, found, spec.split, viewpoint_part(spec, split)))
        if spec.split == "standard":
            return _sized(spec, formats.read_split(FORMATS, split, root))
        held = TOYS[seed % len(TOYS)] if spec.split == "folds" else HELD_TOY
        data = _sized(spec, formats.read_split(FORMATS, "train", root))
        return by_toys(split, data, instances("train", root), held)

    return DataSet(info, read_part, formats=FORMATS)


def viewpoint_part(spec: DataSpec, split: str) -> str:
    """Name the part of a viewpoint split, as `part_of` does, that "train" or "test" of this set is."""
    if split == "train":
        return "train"
    return "familiar" if spec.familiar else "novel"


def _sized(spec: DataSpec, data: Labelled) -> Labelled:
    if spec.thinned:
        return thinned(data)
    return {None: lambda same: same, SMALL: halved, MIDDLE: two_thirds}[spec.size](data)


def _facts(spec: DataSpec) -> tuple[int, int, str]:
    """Give the sizes of the training and the test part, and a line about the set."""
    small = {
        (None, False): "",
        (SMALL, False): ", at half the size",
        (SMALL, True): ", every second pixel",
        (MIDDLE, False): ", at two thirds of the size",
    }
    which = small[spec.size, spec.thinned]
    if spec.split == "standard":
        return 24_300, 24_300, f"toys, other ones in the test; stereo pairs{which}"
    if spec.split in VIEWPOINTS:
        shown = "familiar views in another light" if spec.familiar else "other views"
        about = f"toys of the official test part, some views ({spec.split}) to train on, {shown} to test on{which}"
        return N_VIEWS["train"], N_VIEWS[viewpoint_part(spec, "test")], about
    held = "another one for every seed" if spec.split == "folds" else "always the same one"
    return 19_440, 4_860, f"the training part, one toy of five held out, {held}, for model selection{which}"
