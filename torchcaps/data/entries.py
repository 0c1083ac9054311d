"""What the registry knows of a data set, and how the entry of each kind of set is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from torchcaps.data.encoders import ENCODERS, Encoder
from torchcaps.data.sets import affine, digits, generated, mnist, pairs, smallnorb, smallnorb_views, sst
from torchcaps.data.sets.image_folder import OwnImages
from torchcaps.data.sets.sst import Sentences
from torchcaps.data.sources import formats
from torchcaps.data.sources.files import FileSet
from torchcaps.data.sources.formats import Form


@dataclass(frozen=True, kw_only=True)
class DataInfo:
    name: str
    shape: tuple[int, int, int]  # c h w; of sentences: tokens of the longest, layers, numbers of an embedding
    n_classes: int
    n_train: int
    n_test: int
    about: str
    files: int = 0  # how many have to be at hand; 0 for what is built in
    n_labels: int = 1  # classes in one picture
    n_validation: int = 0  # of a part of its own to choose by, where the set has one
    kind: str = "images"  # or "sentences"


class DataSet(NamedTuple):
    """`read(split, root, seed)` gives images and labels; `needs` is a module that it imports."""

    info: DataInfo
    read: Callable[[str, str | Path | None, int], tuple[Tensor, Tensor]]
    files: FileSet | None = None
    needs: str | None = None
    forms: tuple[Form, ...] = ()  # instead of files, where there are several ways to have the set
    encoder: Encoder | None = None  # of sentences: what embeds them, whose files have to be there too


def idx_set(files: FileSet, about: str) -> DataSet:
    facts = DataInfo(name=files.name, shape=(1, 28, 28), n_classes=10, n_train=60_000, n_test=10_000, about=about, files=len(files.sha256))
    return DataSet(facts, lambda split, root, seed: mnist.read_split(files, split, root), files)


def forms_set(
    ways: tuple[Form, ...], facts: DataInfo, change: Callable[[formats.Pictures], formats.Pictures] = lambda pictures: pictures
) -> DataSet:
    facts = replace(facts, files=len(ways[0].files.sha256))
    return DataSet(facts, lambda split, root, seed: change(formats.read_split(ways, split, root)), forms=ways)


def mnist_on_40(name: str, n_train: int, n_test: int, about: str, read: Callable[..., tuple[Tensor, Tensor]]) -> DataSet:
    """What is made of MNIST's own files, on 40x40."""
    shape, n_files = (1, affine.FRAME, affine.FRAME), len(mnist.MNIST.sha256)
    facts = DataInfo(name=name, shape=shape, n_classes=10, n_train=n_train, n_test=n_test, about=about, files=n_files)
    return DataSet(facts, lambda split, root, seed: read(split, root), mnist.MNIST)


def multimnist(shift: int) -> DataSet:
    side = 28 + 2 * pairs.MARGIN
    facts = DataInfo(
        name=f"multimnist-{shift}",
        shape=(1, side, side),
        n_classes=10,
        n_train=60_000,
        n_test=10_000 * pairs.N_EACH,
        about=f"two overlapping MNIST digits, each moved by up to {shift} pixels; training pairs are drawn anew in every epoch",
        files=len(mnist.MNIST.sha256),
        n_labels=2,
    )
    return DataSet(facts, lambda split, root, seed: pairs.read_multimnist(split, root, shift), mnist.MNIST)


def generated_pairs() -> DataSet:
    n_train, n_test, n_classes = generated.N_TRAIN, 2 * generated.N_TEST, generated.N_CLASSES
    about = "two overlapping pictures of generated-16, for tests and smoke runs"
    shape = (1, 16 + 2 * pairs.MARGIN, 16 + 2 * pairs.MARGIN)
    facts = DataInfo(name="generated-pairs", shape=shape, n_classes=n_classes, n_train=n_train, n_test=n_test, about=about, n_labels=2)
    return DataSet(facts, lambda split, root, seed: pairs.read_generated(split, seed))


def digits_pairs() -> DataSet:
    side = digits.SIZE + 2 * pairs.MARGIN
    facts = DataInfo(
        name="digits-pairs",
        shape=(1, side, side),
        n_classes=10,
        n_train=digits.N_TRAIN,
        n_test=digits.N_TEST * pairs.N_EACH,
        about="two overlapping digits of scikit-learn, each moved by up to 4 pixels; training pairs are drawn anew in every epoch",
        n_labels=2,
    )
    return DataSet(facts, lambda split, root, seed: pairs.read_digits(split, seed), needs="sklearn")


def digits_set(name: str, about: str, read: Callable[..., tuple[Tensor, Tensor]]) -> DataSet:
    shape = (1, digits.SIZE, digits.SIZE)
    facts = DataInfo(name=name, shape=shape, n_classes=10, n_train=digits.N_TRAIN, n_test=digits.N_TEST, about=about)
    return DataSet(facts, read, needs="sklearn")


def generated_set(name: str, size: int, n_channels: int = 1) -> DataSet:
    about = "bars and half rings made from the seed, for tests and smoke runs"
    n_train, n_test = generated.counts(size)
    facts = DataInfo(name=name, shape=(n_channels, size, size), n_classes=generated.N_CLASSES, n_train=n_train, n_test=n_test, about=about)
    return DataSet(facts, lambda split, root, seed: generated.read_split(split, seed, size, n_channels))


def norb_toys(
    name: str, size: int, change: Callable[[formats.Pictures], formats.Pictures] = lambda pictures: pictures, folds: bool = False
) -> DataSet:
    """Other toys in the test part, as in the official one, but none of its toys. In `folds` the seed says which toys are kept aside."""
    which = "its toys split again, another one of five kept aside for every seed" if folds else "its toys split again"
    about = f"the training part of the same, {which}: to choose by"
    facts = DataInfo(name=name, shape=(2, size, size), n_classes=5, n_train=19_440, n_test=4_860, about=about)

    def read(split: str, root: str | Path | None, seed: int) -> formats.Pictures:
        pictures = change(formats.read_split(smallnorb.FORMS, "train", root))
        held = smallnorb.TOYS[seed % len(smallnorb.TOYS)] if folds else smallnorb.HELD_TOY
        return smallnorb.by_toys(split, pictures, smallnorb.instances("train", root), held)

    return DataSet(replace(facts, files=len(smallnorb.FORMS[0].files.sha256)), read, forms=smallnorb.FORMS)


def norb_views(vary: str, size: int, familiar: bool) -> DataSet:
    """Toys of the official test part; in the test part of the set, views that were not trained on, or the familiar ones."""
    name = f"smallnorb{'-48' * (size == 48)}-viewpoint-{vary}{'-familiar' * familiar}"
    shown, n_test = (
        ("familiar views in another light", smallnorb_views.N_FAMILIAR) if familiar else ("other views", smallnorb_views.N_NOVEL)
    )
    about = f"toys of the official test part from some sides ({vary}) to train on; the same toys, {shown}, to test on"
    facts = DataInfo(name=name, shape=(2, size, size), n_classes=5, n_train=smallnorb_views.N_TRAIN, n_test=n_test, about=about)

    def read(split: str, root: str | Path | None, seed: int) -> formats.Pictures:
        factors = smallnorb.factors("test", root)  # first: the pictures take longer, and without it they are of no use
        pictures = formats.read_split(smallnorb.FORMS, "test", root)
        part = "train" if split == "train" else "familiar" if familiar else "novel"
        chosen = smallnorb_views.by_viewpoint(pictures, factors, vary, part)
        return smallnorb.halved(chosen) if size == 48 else chosen

    return DataSet(replace(facts, files=len(smallnorb.FORMS[0].files.sha256)), read, forms=smallnorb.FORMS)


def sst_set(n_labels: int, encoder: str, part: str = "") -> DataSet:
    """`part`: "" all phrases to train on; "roots" whole sentences alone; "dev" the validation part in place of the test part."""
    name, model = f"sst{n_labels}-{encoder}" + f"-{part}" * bool(part), ENCODERS[encoder]
    n_roots, validated = sst.N_ROOTS[n_labels], part != "dev"
    n_train = n_roots["train"] if part == "roots" else sst.N_PHRASES[n_labels]
    shown = {"": "all phrases to train on", "roots": "whole sentences alone", "dev": "the validation part to test on: to choose by"}[part]
    facts = DataInfo(
        name=name,
        shape=(model.longest, model.n_layers, model.width),
        n_classes=n_labels,
        n_train=n_train,
        n_test=n_roots["test" if validated else "validation"],
        n_validation=n_roots["validation"] if validated else 0,
        about=f"sentences of film reviews in the layers of {model.name}; {shown}",
        files=len(sst.SST.sha256),
        kind="sentences",
    )

    def read(split: str, root: str | Path | None, seed: int) -> Sentences:
        split = "validation" if split == "test" and part == "dev" else split
        return sst.read_sst(split, root, n_labels, model, phrases=part != "roots")

    return DataSet(facts, read, sst.SST, "transformers", encoder=model)


def generated_sentences() -> DataSet:
    encoder, n = sst.GeneratedEncoder, sst.N_GENERATED
    facts = DataInfo(
        name="generated-sentences",
        shape=(encoder.longest, encoder.n_layers, encoder.width),
        n_classes=len(sst.WORDS),
        n_train=n["train"],
        n_test=n["test"],
        n_validation=n["validation"],
        about="sentences of a few words that are worth something, for tests and smoke runs",
        kind="sentences",
    )
    return DataSet(facts, lambda split, root, seed: sst.read_generated(split, seed))


def own_set(own: OwnImages) -> DataSet:
    about = f"{len(own.classes)} classes: {', '.join(own.classes)}"
    n_classes, n_train, n_test = len(own.classes), own.n_train, own.n_test
    facts = DataInfo(name=str(own), shape=own.shape, n_classes=n_classes, n_train=n_train, n_test=n_test, about=about)
    return DataSet(facts, own.read, needs="PIL")
