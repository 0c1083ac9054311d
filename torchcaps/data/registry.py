"""The data sets by name: a new one is a line here, made by a function of `entries`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from torchcaps.data.encoders import ENCODERS, Encoder
from torchcaps.data.entries import (
    DataInfo,
    DataSet,
    digits_pairs,
    digits_set,
    forms_set,
    generated_pairs,
    generated_sentences,
    generated_set,
    idx_set,
    mnist_on_40,
    multimnist,
    norb_toys,
    norb_views,
    own_set,
    sst_set,
)
from torchcaps.data.sets import affine, affnist, cifar10, digits, mnist, smallnorb, smallnorb_views, svhn
from torchcaps.data.sets.image_folder import OwnImages


def _by_name(sets: Iterable[DataSet]) -> dict[str, DataSet]:
    return {entry.info.name: entry for entry in sets}


def _sst_sets(encoder: str) -> dict[str, DataSet]:
    return _by_name(sst_set(n_labels, encoder, part) for n_labels in (5, 2) for part in ("", "roots", "dev"))


DATASETS: dict[str, DataSet] = {
    "mnist": idx_set(mnist.MNIST, "handwritten digits"),
    "fashion-mnist": idx_set(mnist.FASHION_MNIST, "pieces of clothing"),
    "mnist-40": mnist_on_40(
        "mnist-40", 60_000, 10_000, "MNIST's digits on 40x40: in the middle to train, placed once for all to test", affine.read_placed
    ),
    "affnist-like": mnist_on_40(
        "affnist-like",
        0,
        10_000 * affine.N_EACH,
        "MNIST's test digits under small affine maps by a rule fitted to affNIST, which it is not",
        affine.read_like,
    ),
    "affnist": DataSet(
        DataInfo(
            name="affnist",
            shape=(1, affnist.SIZE, affnist.SIZE),
            n_classes=10,
            n_train=0,
            n_test=320_000,
            about="MNIST's test digits under small affine maps, the official file",
            files=1,
        ),
        lambda split, root, seed: affnist.read_split(split, root),
        affnist.ONE,
        "scipy",
    ),
    "multimnist-4": multimnist(4),
    "multimnist-6": multimnist(6),
    "digits": digits_set(
        "digits",
        "scikit-learn's handwritten digits; a stratified fifth, drawn by the seed, is the test part",
        lambda split, root, seed: digits.read_split(split, seed),
    ),
    "digits-writers": digits_set(
        "digits-writers",
        "scikit-learn's handwritten digits; the last fifth, by other writers, is the test part",
        lambda split, root, seed: digits.read_split_by_writer(split),
    ),
    "digits-pairs": digits_pairs(),
    "smallnorb": forms_set(
        smallnorb.FORMS,
        DataInfo(
            name="smallnorb",
            shape=(2, 96, 96),
            n_classes=5,
            n_train=24_300,
            n_test=24_300,
            about="toys, other ones in the test; stereo pairs",
        ),
    ),
    "smallnorb-48": forms_set(
        smallnorb.FORMS,
        DataInfo(name="smallnorb-48", shape=(2, 48, 48), n_classes=5, n_train=24_300, n_test=24_300, about="the same at half the size"),
        smallnorb.halved,
    ),
    "smallnorb-48-thinned": forms_set(
        smallnorb.FORMS,
        DataInfo(
            name="smallnorb-48-thinned", shape=(2, 48, 48), n_classes=5, n_train=24_300, n_test=24_300, about="every second pixel of them"
        ),
        smallnorb.thinned,
    ),
    "smallnorb-toys": norb_toys("smallnorb-toys", smallnorb.SIZE),
    "smallnorb-folds": norb_toys("smallnorb-folds", smallnorb.SIZE, folds=True),
    "smallnorb-48-toys": norb_toys("smallnorb-48-toys", smallnorb.SIZE // 2, smallnorb.halved),
    "smallnorb-48-folds": norb_toys("smallnorb-48-folds", smallnorb.SIZE // 2, smallnorb.halved, folds=True),
    "smallnorb-48-thinned-folds": norb_toys("smallnorb-48-thinned-folds", smallnorb.SIZE // 2, smallnorb.thinned, folds=True),
    **_by_name(norb_views(vary, size, old) for vary in smallnorb_views.FAMILIAR for size in (96, 48) for old in (False, True)),
    "svhn": forms_set(
        svhn.FORMS,
        DataInfo(
            name="svhn", shape=(3, 32, 32), n_classes=10, n_train=73_257, n_test=26_032, about="digits of house numbers, photographed"
        ),
    ),
    "cifar10": forms_set(
        cifar10.FORMS,
        DataInfo(
            name="cifar10", shape=(3, 32, 32), n_classes=10, n_train=50_000, n_test=10_000, about="photographs of ten kinds of things"
        ),
    ),
    "generated": generated_set("generated", 28),
    "generated-16": generated_set("generated-16", 16),
    "generated-40": generated_set("generated-40", 40),
    "generated-48": generated_set("generated-48", 48),
    "generated-96": generated_set("generated-96", 96),
    "generated-32-rgb": generated_set("generated-32-rgb", 32, 3),
    "generated-48-stereo": generated_set("generated-48-stereo", 48, 2),
    "generated-96-stereo": generated_set("generated-96-stereo", 96, 2),
    "generated-pairs": generated_pairs(),
    "generated-sentences": generated_sentences(),
    **{name: made for short in ENCODERS for name, made in _sst_sets(short).items()},
}


def add_encoder(short: str, encoder: Encoder) -> None:
    """Sentences in the layers of any transformer: from then on `sst5-SHORT`, `sst2-SHORT` and their `-roots` and `-dev` are data sets."""
    if not re.fullmatch(r"[a-z0-9.]+(-[a-z0-9.]+)*", short) or short.endswith(("roots", "dev")):
        raise ValueError(f"a short name is small letters, digits, dots and dashes, and ends in neither roots nor dev; got {short!r}")
    known = ENCODERS.get(short, encoder)
    if (known.name, known.n_layers, known.width) != (encoder.name, encoder.n_layers, encoder.width):
        has = f"{known.name} with {known.n_layers} hidden states of {known.width}"
        raise ValueError(f"{short!r} is {has} already; give {encoder.name} another short name")
    ENCODERS[short] = encoder
    DATASETS.update(_sst_sets(short))


def entry_of(name: str | OwnImages) -> DataSet:
    if isinstance(name, OwnImages):
        return own_set(name)
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(DATASETS)}"
        raise ValueError(f"no data set {name!r}; {hint}")
    return DATASETS[name]
