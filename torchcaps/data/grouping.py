"""Groups of test examples that vary together: images of one digit or one toy are not independent draws."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from torchcaps.data.catalogue import DATASETS, spec
from torchcaps.data.loading import info
from torchcaps.data.sets import affnist, smallnorb
from torchcaps.data.sets.image_folder import OwnImages
from torchcaps.data.sets.pairs import Pairs, PairSource
from torchcaps.data.sets.sst import Sentences
from torchcaps.data.sources.formats import Labelled
from torchcaps.data.specs import VIEWPOINTS, DataSpec
from torchcaps.data.subsets import N_DIGITS, N_WARPED, picked


class Groups(NamedTuple):
    """Groups of the examples of a part.

    Example:

        groups("digits", "test", load("digits", "test")).what  # images
    """

    what: str  # "digits", "toys", "images" or "sentences"
    index: Int64[Tensor, "n k"]  # group of each example; two for a pair


def groups(
    data: str | DataSpec | OwnImages,
    part: str,
    examples: Labelled | PairSource | Pairs | Sentences,
    root: str | Path | None = None,
) -> Groups:
    """Group the examples of a part by what they show; where nothing is known, each is a group of its own.

    `data` is what a run trains on. `part` is named as in its result file: "test", "validation_warped", another data
    set, or a portion of one.
    """
    if isinstance(examples, Pairs):
        return Groups("digits", examples.picks)
    each = torch.arange(len(examples.labels))
    if part == "validation_warped":
        return Groups("digits", (each % (len(each) // N_WARPED))[:, None])
    shown = _set_of(data, part)
    what = info(shown).groups
    if what == "digits":
        index = affnist.read_all(root).original if shown.source == "affnist" else picked(part, len(each)) % N_DIGITS
    elif what == "toys":
        index = examples.labels * 10 + _toys(shown, part, root, len(each))
    else:
        index = each
    return Groups(what, index[:, None])


def _set_of(data: str | DataSpec | OwnImages, part: str) -> DataSpec | OwnImages:
    """Find the data set that a part belongs to."""
    name = part.partition("/")[0]
    if name in DATASETS:
        return DATASETS[name]
    return data if isinstance(data, OwnImages) else spec(data)


def _toys(shown: DataSpec, part: str, root: str | Path | None, n: int) -> Int64[Tensor, " n"]:
    """Number the toy within its category that each image of the test part of a smallNORB set shows."""
    whole = part in ("test", str(shown), f"{shown}/test")
    if whole and shown.split in ("toys", "folds"):
        return torch.zeros(n, dtype=torch.long)  # one toy of each category is held out
    if whole and shown.split in VIEWPOINTS:
        found = smallnorb.factors("test", root)
        return found.instance[smallnorb.part_of(found, shown.split, smallnorb.viewpoint_part(shown, "test"))]
    toys = smallnorb.instances("test", root)
    if not whole or len(toys) != n:
        raise ValueError(
            f"{part} of {shown}: which toys its {n:,} images show is not known; compare on the whole test part"
        )
    return toys
