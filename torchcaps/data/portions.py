"""Parts of data sets that a classifier of frozen features is fitted or tested on, by name: `<set>/<which>`.

`affnist-like` has one transform of every MNIST test digit, then the next of every one. So its first 60,000 images and the 10,000 behind
them show the same digits under other transforms: the split of Rawlinson 2018, as far as the released code tells. In `fit-digits` and
`other-digits` no digit is on both sides; which ones are where is drawn once for all, since MNIST's second half is harder than its first.
Features are computed for whole pools, so that what several portions share is computed once.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.nn.functional import pad

from torchcaps.data import Labelled, load
from torchcaps.data.sets import affine
from torchcaps.data.views import shown

N_DIGITS, N_TRANSFORMS = 10_000, 8  # of MNIST's test part, and how many of the 32 transforms of each are used here
N_FIT_DIGITS, N_OTHER_TRANSFORMS = 7_500, 4
SEED = 42_2018


class Portion(NamedTuple):
    pool: str
    pick: Callable[[], Int64[Tensor, " n"]]  # which images of the pool


def _digits(fitted: bool) -> Int64[Tensor, " n"]:
    order = torch.randperm(N_DIGITS, generator=torch.Generator().manual_seed(SEED))
    which, times = (order[:N_FIT_DIGITS], N_TRANSFORMS) if fitted else (order[N_FIT_DIGITS:], N_OTHER_TRANSFORMS)
    return (torch.arange(times)[:, None] * N_DIGITS + which.sort().values).flatten()


_LIKE = "affnist-like/first-80000"
PORTIONS = {
    "affnist-like/0-60000": Portion(_LIKE, lambda: torch.arange(60_000)),
    "affnist-like/60000-70000": Portion(_LIKE, lambda: torch.arange(60_000, 70_000)),
    "affnist-like/fit-digits": Portion(_LIKE, lambda: _digits(True)),
    "affnist-like/other-digits": Portion(_LIKE, lambda: _digits(False)),
}


def pool_of(name: str) -> str:
    """The name of the pool that this portion is part of; every other name is a pool itself."""
    return PORTIONS[name].pool if name in PORTIONS else name


def picked(name: str, n: int) -> Int64[Tensor, " m"]:
    """Which of the pool's `n` images the portion has, in its order."""
    return PORTIONS[name].pick() if name in PORTIONS else torch.arange(n)


def pool(name: str, root: str | Path | None = None, seed: int = 0) -> Labelled:
    """`<set>/train`, `<set>/test` or the first part of affnist-like.

    Of mnist-40 the training digits are in the middle and the test digits at one place each; `mnist-40/placed` and `mnist-40/middle` are
    the training digits at one place each, and the test digits in the middle.
    """
    which, _, part = name.partition("/")
    if name == _LIKE:
        return Labelled(*affine.read_like("test", root, N_TRANSFORMS))
    if name == "mnist-40/placed":
        return shown(load("mnist-40", "train", root, seed), "placed")
    if name == "mnist-40/middle":
        images, labels = load("mnist", "test", root, seed)
        return Labelled(pad(images, [affine.PADDING] * 4), labels)
    if part not in ("train", "test"):
        known = ", ".join([*PORTIONS, "mnist-40/placed", "mnist-40/middle"])
        raise ValueError(f"no portion {name!r}; there are {known}, and SET/train and SET/test of every data set")
    return load(which, part, root, seed)


def portion(name: str, root: str | Path | None = None, seed: int = 0) -> Labelled:
    """The images and labels of a portion."""
    return cut(name, pool(pool_of(name), root, seed))


def cut(name: str, whole: Labelled) -> Labelled:
    """A portion of its pool."""
    if name not in PORTIONS:
        return whole
    which = picked(name, len(whole.labels))
    return Labelled(whole.images[which], whole.labels[which])
