"""Specification of a data set, the facts that follow from it, and how its files become examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from torchcaps.data.sources.encoders import Encoder
from torchcaps.data.sources.files import FileSet
from torchcaps.data.sources.formats import Format

SPLITS = {
    "standard": "the official test part; where there is none, one drawn by the seed",
    "writers": "digits of other writers to test on",
    "toys": "the official training part, one toy of each category held out for model selection",
    "folds": "the same, with another toy held out for every seed",
    "azimuth": "toys of the official test part: some azimuths to train on, the others to test on",
    "elevation": "the same with elevations",
    "roots": "whole sentences alone to train on, without their phrases",
    "dev": "the validation part in place of the test part, for model selection",
}
VIEWPOINTS = ("azimuth", "elevation")


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """Specification of a data set; `str` of it is its name, as commands take it and result files store it.

    A field that is not given has its source's default; `spec(name)` leads from a name to the specification.

    Example:

        str(DataSpec(source="smallnorb", size=64)), spec("smallnorb-64").size  # ('smallnorb-64', 64)
    """

    source: str  # "mnist", "smallnorb", "sst", "generated": a file of sets/ reads it
    n_classes: int | None = None  # for a source with several numberings: 5 or 2 for sst
    encoder: str = ""  # short name of the transformer that embeds sentences
    size: int | None = None  # pixels along a side
    thinned: bool = False  # made smaller by leaving out pixels, not by averaging them
    channels: str = ""  # "rgb" or "stereo"
    examples: str = ""  # "pairs" of overlapping images, or "sentences"
    shift: int | None = None  # most pixels that each image of a pair moves by
    split: str = "standard"  # how the test part is chosen, one of SPLITS
    familiar: bool = False  # in a viewpoint split: test on the viewpoints trained on, in another light

    def __str__(self) -> str:
        words = (
            f"{self.source}{self.n_classes or ''}",
            self.encoder,
            f"{self.size or ''}",
            "thinned" if self.thinned else "",
            self.channels,
            self.examples,
            f"{self.shift or ''}",
            self._split_words(),
            "familiar" if self.familiar else "",
        )
        return "-".join(word for word in words if word)

    def _split_words(self) -> str:
        if self.split == "standard":
            return ""
        return f"viewpoint-{self.split}" if self.split in VIEWPOINTS else self.split

    @property
    def same_training(self) -> DataSpec:
        """Data set with the same training part and the usual test part: sst5-mpnet for sst5-mpnet-dev."""
        return replace(self, split="standard" if self.split == "dev" else self.split, familiar=False)


@dataclass(frozen=True, kw_only=True)
class DataInfo:
    """Facts about a data set that are known without its files.

    Example:

        info("mnist").shape, info("mnist").n_test  # ((1, 28, 28), 10000)
    """

    name: str
    shape: tuple[int, int, int]  # c h w; of sentences: tokens of the longest, layers, width of an embedding
    n_classes: int
    n_train: int
    n_test: int
    about: str
    files: int = 0  # number of files needed; 0 for what is built in
    n_labels: int = 1  # classes in one image
    n_validation: int = 0  # size of the official validation part, where the set has one
    kind: str = "images"  # or "sentences"
    groups: str = "images"  # things that the test examples show: examples of one digit or toy err together
    class_names: tuple[str, ...] = ()  # in the order of the labels; none: their numbers


class DataSet(NamedTuple):
    """Reader of a data set. `read(split, root, seed)` gives images and labels, pairs or sentences."""

    info: DataInfo
    read: Callable[[str, str | Path | None, int], tuple[Any, ...]]
    files: FileSet | None = None
    needs: str | None = None  # an optional module that reading imports
    formats: tuple[Format, ...] = ()  # instead of files, where the set can be had in several ways
    encoder: Encoder | None = None  # embeds the sentences: its files are needed too
