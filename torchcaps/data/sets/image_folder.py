"""A user's own images: a folder with one folder for each class, images of any size, grey or in colour.

One rule reads them. Upright as the camera held it; of several frames the first; on white where transparent; grey if
every image is, else colour; the whole image, its proportions kept, on a black square of `size` pixels. A part is held
out for the test, the same share of every class, drawn by the seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from torchcaps.data.sources.files import DataError
from torchcaps.data.sources.image_archives import image_module
from torchcaps.data.sources.user_images import look_at, read_image
from torchcaps.data.specs import DataInfo, DataSet

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
PARTS = {"train", "training", "test", "testing", "val", "valid", "validation"}
LEAST = 5  # images of a class: one to test on, four to train on
MOST_CLASSES = 256  # a stored prediction is one byte
TEST_SHARE = 0.2
SMALLEST, LARGEST_KEPT, DEFAULT_SIZE = 16, 64, 32  # sides: images of one square size between the first two keep it


class Unreadable(NamedTuple):
    file: str
    reason: str


class Listing(NamedTuple):
    """Files of a folder before any is opened."""

    classes: tuple[str, ...]
    files: tuple[Path, ...]
    labels: tuple[int, ...]
    ignored: int  # files that are no images by their ending


class FolderImages(NamedTuple):
    images: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]
    sha256: str  # hash of the files' names below the folder and of their bytes
    unreadable: tuple[Unreadable, ...]
    copies: int  # files whose bytes are those of another


@dataclass(frozen=True, kw_only=True)
class OwnImages:
    """Data set of a user's own images, as a run stores it: its checkpoint answers without the folder.

    Example:

        own = OwnImages(classes=("cat", "dog"), shape=(3, 32, 32), n_train=80, n_test=20)
        info(own).n_classes, class_names(own)  # (2, ('cat', 'dog'))
    """

    classes: tuple[str, ...]
    shape: tuple[int, int, int]  # c h w that every image is brought to
    n_train: int
    n_test: int
    skip_unreadable: bool = False
    sha256: str = ""  # hash of the training folder: another one splits differently, and would test training images

    def __str__(self) -> str:
        return "own images"

    def read(
        self, split: str, root: str | Path | None, seed: int
    ) -> tuple[UInt8[Tensor, "n c h w"], Int64[Tensor, " n"]]:
        """Read the part to train on or to test on, from the folder it was made of."""
        if root is None:
            raise DataError("this network was trained on images of your own; say where they lie with --data FOLDER")
        found = self.read_all(root)
        if found.sha256 != self.sha256:
            raise DataError(
                f"{root} does not hold the {self.n_train + self.n_test:,} images that this network was trained "
                f"with: it has {len(found.labels):,}, or other ones, and would be split anew, training images into the "
                "test; give the folder as it was, or test all of another with `torchcaps eval CHECKPOINT --on FOLDER`"
            )
        chosen = split_by_class(found.labels, seed)[split == "test"]
        return found.images[chosen], found.labels[chosen]

    def read_all(self, root: str | Path) -> FolderImages:
        """Read every image of a folder with the same classes, or some of them."""
        listing = list_folder(Path(root))
        if unknown := [name for name in listing.classes if name not in self.classes]:
            raise DataError(
                f"{root} has a class {unknown[0]!r} that this network was not taught; "
                f"it knows {', '.join(self.classes)}"
            )
        found = read_files(listing, Path(root), self.shape[1], self.shape[0], self.skip_unreadable)
        known = torch.tensor([self.classes.index(name) for name in listing.classes])
        return found._replace(labels=known[found.labels])


def list_folder(folder: Path) -> Listing:
    """List classes and files in the order of their names; what begins with a dot does not count."""
    if not folder.is_dir():
        raise DataError(
            f"{folder} is no folder; give one with a folder for each class, "
            f"as {folder}/cat/1.png and {folder}/dog/1.png"
        )
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if (
        len(classes) > 1
        and {path.name.lower() for path in classes} <= PARTS
        and any(_folders(path) for path in classes)
    ):
        names = ", ".join(path.name for path in classes)
        raise DataError(f"{names} in {folder} look like parts, not classes; give one of them, {classes[0]} say")
    inside = [
        sorted(path for path in one.rglob("*") if _is_there(path) and not path.name.startswith(".")) for one in classes
    ]
    images = [[path for path in paths if path.suffix.lower() in ENDINGS] for paths in inside]
    ignored = sum(map(len, inside)) - sum(map(len, images))
    if len(classes) < 2:
        names = f"one folder, {classes[0].name}" if classes else "no folders"
        raise DataError(
            f"a network tells classes apart, one folder for each, and {folder} has {names}; "
            "put the images into two at least"
        )
    if len(classes) > MOST_CLASSES:
        raise DataError(
            f"{folder} has {len(classes)} classes, and predictions are stored for {MOST_CLASSES} at most; use fewer"
        )
    files = tuple(path for paths in images for path in paths)
    labels = tuple(label for label, paths in enumerate(images) for _ in paths)
    return Listing(tuple(path.name for path in classes), files, labels, ignored)


def _folders(path: Path) -> list[Path]:
    return [inner for inner in path.iterdir() if inner.is_dir()]


def _is_there(path: Path) -> bool:
    """Tell whether there is a file, or a broken link, which its owner takes for one."""
    return path.is_file() or (path.is_symlink() and not path.exists())


def read_files(listing: Listing, folder: Path, size: int, channels: int, skip_unreadable: bool) -> FolderImages:
    """Read all files as [n c size size]; what cannot be read is refused by name, or left out and named."""
    seen = ((path, path.stat(follow_symlinks=path.exists())) for path in listing.files)
    stats = tuple((str(path), stat.st_mtime_ns, stat.st_size) for path, stat in seen)
    found = _read(stats, listing, folder, size, channels)
    if found.unreadable and not skip_unreadable:
        lines = "".join(f"\n  {bad.file}: {bad.reason}" for bad in found.unreadable[:10])
        more = f"\n  and {len(found.unreadable) - 10} more" if len(found.unreadable) > 10 else ""
        raise DataError(
            f"{len(found.unreadable)} of {len(listing.files):,} images cannot be read:{lines}{more}\n"
            "replace or remove them, or leave them out with --skip-unreadable"
        )
    return found


@lru_cache(maxsize=1)  # training and test part are read one after the other; a file that changed has another time
def _read(stats: tuple, listing: Listing, folder: Path, size: int, channels: int) -> FolderImages:
    image_module()  # without Pillow: one clear error here instead of one in every thread
    with ThreadPoolExecutor() as pool:  # Pillow lets go of the lock while it decodes
        read = list(
            pool.map(lambda path: _attempt(lambda: (read_image(path, size, channels), _sha256(path))), listing.files)
        )
    names = [path.relative_to(folder).as_posix() for path in listing.files]
    good = [n for n, one in enumerate(read) if not isinstance(one, str)]
    digest = hashlib.sha256("".join(f"{names[n]} {read[n][1]}\n" for n in good).encode())
    images = np.stack([read[n][0] for n in good]) if good else np.zeros((0, channels, size, size), np.uint8)
    labels = torch.tensor([listing.labels[n] for n in good], dtype=torch.long)
    bad = tuple(Unreadable(name, one) for name, one in zip(names, read, strict=True) if isinstance(one, str))
    copies = len(good) - len({read[n][1] for n in good})
    return FolderImages(torch.from_numpy(images), labels, digest.hexdigest(), bad, copies)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _attempt(read: Callable[[], Any]) -> Any:
    """Read, or say in words why that fails."""
    try:
        return read()
    except OSError as error:
        return error.strerror or str(error)
    except DataError as error:
        return str(error)


class Survey(NamedTuple):
    """Contents of a folder, shown before a training."""

    data: OwnImages
    sizes: tuple[tuple[int, int], tuple[int, int]]  # width and height, of the smallest image and of the largest
    n_ignored: int
    unreadable: tuple[Unreadable, ...]
    copies: int
    train: dict[str, int]  # images by class
    test: dict[str, int]


def survey(folder: Path, seed: int, size: int | None = None, skip_unreadable: bool = False) -> Survey:
    """Look at every image: choose size and channels by the rule, or refuse what no training could use."""
    if size is not None and size < SMALLEST:
        raise DataError(f"images of {size}x{size} are too small for two convolutions; give --size {SMALLEST} or more")
    listing = list_folder(folder)
    image_module()
    with ThreadPoolExecutor() as pool:
        looks = [
            look
            for look in pool.map(lambda path: _attempt(lambda: look_at(path)), listing.files)
            if not isinstance(look, str)
        ]
    one_size = {look.size for look in looks}
    if not looks and listing.files == ():
        raise DataError(f"the folders in {folder} hold no images; they end in {' '.join(ENDINGS)}")
    own = next(iter(one_size), (0, 0))
    kept = len(one_size) == 1 and own[0] == own[1] and SMALLEST <= own[0] <= LARGEST_KEPT
    side = size or (own[0] if kept else DEFAULT_SIZE)
    channels = 1 if all(look.grey for look in looks) else 3
    found = read_files(listing, folder, side, channels, skip_unreadable)
    whole = counts(found.labels, listing.classes)
    if few := [f"{name} has {n}" for name, n in whole.items() if n < LEAST]:
        raise DataError(
            f"too few images: {', '.join(few[:5])}; every class needs {LEAST} that can be read, four to train on and "
            "one to test on, and some fifty for a test that says anything: add images, or take the folder away"
        )
    parts = split_by_class(found.labels, seed)
    data = OwnImages(
        classes=listing.classes, shape=(channels, side, side), n_train=len(parts[0]), n_test=len(parts[1]),
        skip_unreadable=skip_unreadable, sha256=found.sha256,
    )  # fmt: skip
    by_area = sorted(one_size, key=lambda pair: pair[0] * pair[1])
    train, test = (counts(found.labels[part], listing.classes) for part in parts)
    return Survey(data, (by_area[0], by_area[-1]), listing.ignored, found.unreadable, found.copies, train, test)


def split_by_class(labels: Int64[Tensor, " n"], seed: int) -> tuple[Int64[Tensor, " r"], Int64[Tensor, " k"]]:
    """Draw indices to train on and to test on: a fifth of every class, rounded, and one at least."""
    rng, held = torch.Generator().manual_seed(seed), []
    for label in labels.unique():
        mine = torch.nonzero(labels == label).squeeze(1)
        held.append(mine[torch.randperm(len(mine), generator=rng)][: max(1, round(TEST_SHARE * len(mine)))])
    test = torch.cat([labels[:0], *held]).sort().values
    rest = torch.ones(len(labels), dtype=torch.bool)
    rest[test] = False
    return torch.nonzero(rest).squeeze(1), test


def counts(labels: Int64[Tensor, " n"], classes: Sequence[str]) -> dict[str, int]:
    return dict(zip(classes, torch.bincount(labels, minlength=len(classes)).tolist(), strict=True))


def build(own: OwnImages) -> DataSet:
    info = DataInfo(
        name=str(own),
        shape=own.shape,
        n_classes=len(own.classes),
        n_train=own.n_train,
        n_test=own.n_test,
        about=f"{len(own.classes)} classes: {', '.join(own.classes)}",
        class_names=own.classes,
    )
    return DataSet(info, own.read, needs="PIL")
