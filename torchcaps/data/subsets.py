"""Subsets of data sets: a held-out part, views of held-out images, and portions that probes are fitted and tested on.

Views are named in result files as `validation_<view>`, portions as `<set>/<which>`.

`affnist-like` has one transform of every MNIST test digit, then the next of every one. So its first 60,000 images and
the 10,000 behind them show the same digits under other transforms: the split of Rawlinson 2018, as far as the
released code tells. In `fit-digits` and `other-digits` no digit is on both sides; which ones are where is drawn once
for all, since MNIST's second half is harder than its first. Features are computed for whole pools, so portions of one
pool share them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor
from torch.nn.functional import pad

from torchcaps.data.augment.images import Crop
from torchcaps.data.loading import load
from torchcaps.data.sets import affine, affnist_like, digits, pairs
from torchcaps.data.sets.affnist_like import N_DIGITS
from torchcaps.data.sets.pairs import Pairs, PairSource
from torchcaps.data.sources.formats import Labelled

N_TRANSFORMS = 8  # transforms used for portions, out of 32 for each digit
N_FIT_DIGITS, N_OTHER_TRANSFORMS = 7_500, 4
PORTION_SEED = 42_2018
N_WARPED = 8  # transforms of every held-out digit
VIEW_SEED = 41_2017  # used by no test set and by no run
CROP_SEED = 45_2019
BORDER = 1 / 6  # of an image's side: 16 pixels of 96


def hold_out(data: Labelled | PairSource, n: int, seed: int) -> tuple[Labelled | PairSource, Labelled | Pairs]:
    """Split into (the rest, `n` held out) by the seed; each class gives its share, and both parts keep their order.

    From digits that are to be paired, `n` digits are held out and paired among themselves, once for all.
    """
    if not 0 < n < len(data.labels):
        raise ValueError(f"hold_out: n must leave something on both sides of {len(data.labels):,} images, got {n}")
    rest, held = digits.stratified_indices(data.labels, n, seed)
    if isinstance(data, PairSource):
        kept, aside = (PairSource(data.images[part], data.labels[part], data.shift) for part in (rest, held))
        return kept, pairs.fixed_pairs(aside, pairs.N_EACH)
    return Labelled(data.images[rest], data.labels[rest]), Labelled(data.images[held], data.labels[held])


def _centre(images: UInt8[Tensor, "n c h w"]) -> UInt8[Tensor, "n c 28 28"]:
    """Cut the digits of `mnist-40` out of the frame around them."""
    inner = images[..., affine.PADDING : -affine.PADDING, affine.PADDING : -affine.PADDING]
    outside = int(images.sum(dtype=torch.long)) - int(inner.sum(dtype=torch.long))
    if tuple(images.shape[-2:]) != (affine.FRAME, affine.FRAME) or outside:
        raise ValueError(
            f"this view is for the training digits of mnist-40, in the middle of 40x40; got {list(images.shape)}"
        )
    return inner


def _placed(held: Labelled) -> Labelled:
    """Move each digit to one place, as in the test part of `mnist-40`."""
    images = affine.placed(_centre(held.images), torch.Generator().manual_seed(VIEW_SEED))
    return Labelled(images, held.labels)


def _warped(held: Labelled) -> Labelled:
    """Put each digit under affine maps, by the rule of `affnist-like`."""
    device = "cuda" if torch.cuda.is_available() else "cpu"  # the bytes are the same, and a GPU is sooner done
    made = affine.warped(_centre(held.images).to(device), torch.Generator().manual_seed(VIEW_SEED), N_WARPED)
    return Labelled(made.images.cpu(), held.labels.repeat(N_WARPED))


VIEWS: dict[str, Callable[[Labelled], Labelled]] = {"placed": _placed, "warped": _warped}


def shown(held: Labelled, view: str) -> Labelled:
    """Show held-out training images as a test set would; the same every time, since a view has its own seed."""
    if view not in VIEWS:
        raise ValueError(f"no view {view!r} of held-out images; there are {', '.join(VIEWS)}")
    return VIEWS[view](held)


class Portion(NamedTuple):
    """Some images of a pool."""

    pool: str
    pick: Callable[[], Int64[Tensor, " n"]]  # indices into the pool


def _by_digit(fitted: bool) -> Int64[Tensor, " n"]:
    order = torch.randperm(N_DIGITS, generator=torch.Generator().manual_seed(PORTION_SEED))
    which, times = (order[:N_FIT_DIGITS], N_TRANSFORMS) if fitted else (order[N_FIT_DIGITS:], N_OTHER_TRANSFORMS)
    return (torch.arange(times)[:, None] * N_DIGITS + which.sort().values).flatten()


_LIKE = "affnist-like/first-80000"
PORTIONS = {
    "affnist-like/0-60000": Portion(_LIKE, lambda: torch.arange(60_000)),
    "affnist-like/60000-70000": Portion(_LIKE, lambda: torch.arange(60_000, 70_000)),
    "affnist-like/fit-digits": Portion(_LIKE, lambda: _by_digit(True)),
    "affnist-like/other-digits": Portion(_LIKE, lambda: _by_digit(False)),
}


def pool_of(name: str) -> str:
    """Name the pool that a portion is part of; every other name is a pool itself."""
    return PORTIONS[name].pool if name in PORTIONS else name


def picked(name: str, n: int) -> Int64[Tensor, " m"]:
    """Give the indices of a portion in its pool of `n` images, in its order."""
    return PORTIONS[name].pick() if name in PORTIONS else torch.arange(n)


def pool(name: str, root: str | Path | None = None, seed: int = 0) -> Labelled:
    """Read `<set>/train`, `<set>/test` or the first part of affnist-like.

    mnist-40 has its training digits in the centre and its test digits at one place each; `mnist-40/placed` and
    `mnist-40/middle` are the training digits at one place each, and the test digits in the centre. `<set>/cropped` are
    the test images at a random place each, by which Heinsen's code selects among runs: it is no held-out set.
    """
    which, _, part = name.partition("/")
    if name == _LIKE:
        return Labelled(*affnist_like.read_like("test", root, N_TRANSFORMS))
    if name == "mnist-40/placed":
        return shown(load("mnist-40", "train", root, seed), "placed")
    if name == "mnist-40/middle":
        images, labels = load("mnist", "test", root, seed)
        return Labelled(pad(images, [affine.PADDING] * 4), labels)
    if part == "cropped":
        return _cropped(load(which, "test", root, seed))
    if part not in ("train", "test"):
        known = ", ".join([*PORTIONS, "mnist-40/placed", "mnist-40/middle", "SET/cropped"])
        raise ValueError(f"no portion {name!r}; there are {known}, and SET/train and SET/test of every data set")
    return load(which, part, root, seed)


def _cropped(data: Labelled) -> Labelled:
    """Cut each image at a random place after repeating its edges, the same place every time."""
    size = data.images.shape[-1]
    if data.images.shape[-2] != size:
        raise ValueError(f"crops are square, and these images are {data.images.shape[-2]}x{size}")
    crop = Crop(size, border=round(size * BORDER))
    drawn = crop.draw(len(data.images), torch.Generator().manual_seed(CROP_SEED))
    parts = zip(data.images.split(1000), drawn.split(1000), strict=True)
    return Labelled(torch.cat([crop.apply(*part) for part in parts]), data.labels)


def portion(name: str, root: str | Path | None = None, seed: int = 0) -> Labelled:
    """Read the images and labels of a portion."""
    return cut(name, pool(pool_of(name), root, seed))


def cut(name: str, whole: Labelled) -> Labelled:
    """Cut a portion out of its pool."""
    if name not in PORTIONS:
        return whole
    which = picked(name, len(whole.labels))
    return Labelled(whole.images[which], whole.labels[which])
