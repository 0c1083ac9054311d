"""All data sets: which there are, and how to get from a name to a specification. A new source is a line in SETS."""

from __future__ import annotations

import difflib
import re

from torchcaps.data.sets import (
    affnist,
    affnist_like,
    cifar10,
    digits,
    generated,
    image_folder,
    mnist,
    mnist_variants,
    multimnist,
    smallnorb,
    sst,
    svhn,
)
from torchcaps.data.sets.image_folder import OwnImages
from torchcaps.data.sources.encoders import ENCODERS, Encoder
from torchcaps.data.specs import DataSet, DataSpec

# each has SPECS, the sets that it offers, and build(spec), which says how one is read
SETS = (mnist, mnist_variants, affnist_like, affnist, multimnist, digits, smallnorb, svhn, cifar10, generated, sst)
BUILDERS = {spec.source: module.build for module in SETS for spec in module.SPECS}
DATASETS: dict[str, DataSpec] = {str(spec): spec for module in SETS for spec in module.SPECS}


def spec(data: str | DataSpec) -> DataSpec:
    """Look up the specification of that name; a specification that no source offers is refused too."""
    name = str(data)
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "`torchcaps data ls` lists them"
        raise ValueError(f"no data set {name[:60]!r}; {hint}")
    return DATASETS[name]


def find(data: str | DataSpec | OwnImages) -> DataSet:
    """Look up how a data set is read."""
    if isinstance(data, OwnImages):
        return image_folder.build(data)
    found = spec(data)
    return BUILDERS[found.source](found)


def add_encoder(short: str, encoder: Encoder) -> None:
    """Offer the sentences of SST in the layers of any transformer, under a short name.

    From then on `sst5-SHORT`, `sst2-SHORT` and their `-roots` and `-dev` are data sets.
    """
    if not re.fullmatch(r"[a-z0-9.]+(-[a-z0-9.]+)*", short) or short.endswith(("roots", "dev")):
        raise ValueError(
            f"a short name is small letters, digits, dots and dashes, and ends in neither roots nor dev; got {short!r}"
        )
    known = ENCODERS.get(short, encoder)
    if (known.name, known.n_layers, known.width) != (encoder.name, encoder.n_layers, encoder.width):
        has = f"{known.name} with {known.n_layers} hidden states of {known.width}"
        raise ValueError(f"{short!r} is {has} already; give {encoder.name} another short name")
    ENCODERS[short] = encoder
    DATASETS.update({str(spec): spec for spec in sst.specs_with(short)})


def stand_in(data: str | DataSpec | OwnImages) -> DataSpec:
    """Choose the generated set that stands in for this one in a smoke run: as many channels, and no larger."""
    about = find(data).info
    if about.kind == "sentences":
        return DataSpec(source="generated", examples="sentences")
    if about.n_labels == 2:
        return DataSpec(source="generated", examples="pairs")
    shapes = {one: generated.build(one).info.shape for one in generated.SPECS if not one.examples}
    channels = about.shape[0] if any(c == about.shape[0] for c, _, _ in shapes.values()) else 1
    by_size = {size: one for one, (c, size, _) in shapes.items() if c == channels}
    fitting = [size for size in by_size if size <= about.shape[-1]]
    return by_size[max(fitting, default=min(by_size))]
