"""Labelled pictures by name: `load("mnist", "train")` reads, `get("mnist")` fetches, and nothing else touches the network."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from jaxtyping import Int64, UInt8
from torch import Tensor

from torchcaps.data import (
    affine,
    affnist,
    cifar10,
    digits,
    files,
    forms,
    generated,
    mnist,
    pairs,
    sentences,
    smallnorb,
    svhn,
    viewpoints,
    weights,
)
from torchcaps.data.encoders import ENCODERS, Encoder
from torchcaps.data.files import DataError, FileSet
from torchcaps.data.forms import Form
from torchcaps.data.own import OwnImages
from torchcaps.data.pairs import Pairs, PairSource
from torchcaps.data.sentences import Sentences

__all__ = [
    "DATASETS",
    "DataError",
    "DataInfo",
    "DataSet",
    "Labelled",
    "OwnImages",
    "encoder_of",
    "fingerprint",
    "get",
    "hold_out",
    "info",
    "load",
    "status",
]


class Labelled(NamedTuple):
    images: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]


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


def _idx_set(files: FileSet, about: str) -> DataSet:
    facts = DataInfo(name=files.name, shape=(1, 28, 28), n_classes=10, n_train=60_000, n_test=10_000, about=about, files=len(files.sha256))
    return DataSet(facts, lambda split, root, seed: mnist.read_split(files, split, root), files)


def _forms_set(
    ways: tuple[Form, ...], facts: DataInfo, change: Callable[[forms.Pictures], forms.Pictures] = lambda pictures: pictures
) -> DataSet:
    facts = replace(facts, files=len(ways[0].files.sha256))
    return DataSet(facts, lambda split, root, seed: change(forms.read_split(ways, split, root)), forms=ways)


def _mnist_on_40(name: str, n_train: int, n_test: int, about: str, read: Callable[..., tuple[Tensor, Tensor]]) -> DataSet:
    """What is made of MNIST's own files, on 40x40."""
    shape, n_files = (1, affine.FRAME, affine.FRAME), len(mnist.MNIST.sha256)
    facts = DataInfo(name=name, shape=shape, n_classes=10, n_train=n_train, n_test=n_test, about=about, files=n_files)
    return DataSet(facts, lambda split, root, seed: read(split, root), mnist.MNIST)


def _multimnist(shift: int) -> DataSet:
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


def _generated_pairs() -> DataSet:
    n_train, n_test, n_classes = generated.N_TRAIN, 2 * generated.N_TEST, generated.N_CLASSES
    about = "two overlapping pictures of generated-16, for tests and smoke runs"
    shape = (1, 16 + 2 * pairs.MARGIN, 16 + 2 * pairs.MARGIN)
    facts = DataInfo(name="generated-pairs", shape=shape, n_classes=n_classes, n_train=n_train, n_test=n_test, about=about, n_labels=2)
    return DataSet(facts, lambda split, root, seed: pairs.read_generated(split, seed))


def _digits_pairs() -> DataSet:
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


def _digits_set(name: str, about: str, read: Callable[..., tuple[Tensor, Tensor]]) -> DataSet:
    shape = (1, digits.SIZE, digits.SIZE)
    facts = DataInfo(name=name, shape=shape, n_classes=10, n_train=digits.N_TRAIN, n_test=digits.N_TEST, about=about)
    return DataSet(facts, read, needs="sklearn")


def _generated_set(name: str, size: int) -> DataSet:
    about = "bars and half rings made from the seed, for tests and smoke runs"
    n_train, n_test = generated.counts(size)
    facts = DataInfo(name=name, shape=(1, size, size), n_classes=generated.N_CLASSES, n_train=n_train, n_test=n_test, about=about)
    return DataSet(facts, lambda split, root, seed: generated.read_split(split, seed, size))


def _norb_toys(name: str, size: int, change: Callable[[forms.Pictures], forms.Pictures] = lambda pictures: pictures) -> DataSet:
    """Other toys in the test part, as in the official one, but none of its toys."""
    about = "the training part of the same, its toys split again: to choose by"
    facts = DataInfo(name=name, shape=(2, size, size), n_classes=5, n_train=19_440, n_test=4_860, about=about)

    def read(split: str, root: str | Path | None, seed: int) -> forms.Pictures:
        pictures = change(forms.read_split(smallnorb.FORMS, "train", root))
        return smallnorb.by_toys(split, pictures, smallnorb.instances("train", root))

    return DataSet(replace(facts, files=len(smallnorb.FORMS[0].files.sha256)), read, forms=smallnorb.FORMS)


def _norb_views(vary: str, size: int, familiar: bool) -> DataSet:
    """Toys of the official test part; in the test part of the set, views that were not trained on, or the familiar ones."""
    name = f"smallnorb{'-48' * (size == 48)}-viewpoint-{vary}{'-familiar' * familiar}"
    shown, n_test = ("familiar views in another light", viewpoints.N_FAMILIAR) if familiar else ("other views", viewpoints.N_NOVEL)
    about = f"toys of the official test part from some sides ({vary}) to train on; the same toys, {shown}, to test on"
    facts = DataInfo(name=name, shape=(2, size, size), n_classes=5, n_train=viewpoints.N_TRAIN, n_test=n_test, about=about)

    def read(split: str, root: str | Path | None, seed: int) -> forms.Pictures:
        factors = smallnorb.factors("test", root)  # first: the pictures take longer, and without it they are of no use
        pictures = forms.read_split(smallnorb.FORMS, "test", root)
        part = "train" if split == "train" else "familiar" if familiar else "novel"
        chosen = viewpoints.by_viewpoint(pictures, factors, vary, part)
        return smallnorb.halved(chosen) if size == 48 else chosen

    return DataSet(replace(facts, files=len(smallnorb.FORMS[0].files.sha256)), read, forms=smallnorb.FORMS)


def _by_name(sets: Iterable[DataSet]) -> dict[str, DataSet]:
    return {entry.info.name: entry for entry in sets}


def _sst_set(n_labels: int, encoder: str, part: str = "") -> DataSet:
    """`part`: "" all phrases to train on; "roots" whole sentences alone; "dev" the validation part in place of the test part."""
    name, model = f"sst{n_labels}-{encoder}" + f"-{part}" * bool(part), ENCODERS[encoder]
    n_roots, validated = sentences.N_ROOTS[n_labels], part != "dev"
    n_train = n_roots["train"] if part == "roots" else sentences.N_PHRASES[n_labels]
    shown = {"": "all phrases to train on", "roots": "whole sentences alone", "dev": "the validation part to test on: to choose by"}[part]
    facts = DataInfo(
        name=name,
        shape=(model.longest, model.n_layers, model.width),
        n_classes=n_labels,
        n_train=n_train,
        n_test=n_roots["test" if validated else "validation"],
        n_validation=n_roots["validation"] if validated else 0,
        about=f"sentences of film reviews in the layers of {model.name}; {shown}",
        files=len(sentences.SST.sha256),
        kind="sentences",
    )

    def read(split: str, root: str | Path | None, seed: int) -> Sentences:
        split = "validation" if split == "test" and part == "dev" else split
        return sentences.read_sst(split, root, n_labels, model, phrases=part != "roots")

    return DataSet(facts, read, sentences.SST, "transformers", encoder=model)


def _generated_sentences() -> DataSet:
    encoder, n = sentences.GeneratedEncoder, sentences.N_GENERATED
    facts = DataInfo(
        name="generated-sentences",
        shape=(encoder.longest, encoder.n_layers, encoder.width),
        n_classes=len(sentences.WORDS),
        n_train=n["train"],
        n_test=n["test"],
        n_validation=n["validation"],
        about="sentences of a few words that are worth something, for tests and smoke runs",
        kind="sentences",
    )
    return DataSet(facts, lambda split, root, seed: sentences.read_generated(split, seed))


DATASETS: dict[str, DataSet] = {
    "mnist": _idx_set(mnist.MNIST, "handwritten digits"),
    "fashion-mnist": _idx_set(mnist.FASHION_MNIST, "pieces of clothing"),
    "mnist-40": _mnist_on_40(
        "mnist-40", 60_000, 10_000, "MNIST's digits on 40x40: in the middle to train, placed once for all to test", affine.read_placed
    ),
    "affnist-like": _mnist_on_40(
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
    "multimnist-4": _multimnist(4),
    "multimnist-6": _multimnist(6),
    "digits": _digits_set(
        "digits",
        "scikit-learn's handwritten digits; a stratified fifth, drawn by the seed, is the test part",
        lambda split, root, seed: digits.read_split(split, seed),
    ),
    "digits-writers": _digits_set(
        "digits-writers",
        "scikit-learn's handwritten digits; the last fifth, by other writers, is the test part",
        lambda split, root, seed: digits.read_split_by_writer(split),
    ),
    "digits-pairs": _digits_pairs(),
    "smallnorb": _forms_set(
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
    "smallnorb-48": _forms_set(
        smallnorb.FORMS,
        DataInfo(name="smallnorb-48", shape=(2, 48, 48), n_classes=5, n_train=24_300, n_test=24_300, about="the same at half the size"),
        smallnorb.halved,
    ),
    "smallnorb-toys": _norb_toys("smallnorb-toys", smallnorb.SIZE),
    "smallnorb-48-toys": _norb_toys("smallnorb-48-toys", smallnorb.SIZE // 2, smallnorb.halved),
    **_by_name(_norb_views(vary, size, old) for vary in viewpoints.FAMILIAR for size in (96, 48) for old in (False, True)),
    "svhn": _forms_set(
        svhn.FORMS,
        DataInfo(
            name="svhn", shape=(3, 32, 32), n_classes=10, n_train=73_257, n_test=26_032, about="digits of house numbers, photographed"
        ),
    ),
    "cifar10": _forms_set(
        cifar10.FORMS,
        DataInfo(
            name="cifar10", shape=(3, 32, 32), n_classes=10, n_train=50_000, n_test=10_000, about="photographs of ten kinds of things"
        ),
    ),
    "generated": _generated_set("generated", 28),
    "generated-16": _generated_set("generated-16", 16),
    "generated-40": _generated_set("generated-40", 40),
    "generated-48": _generated_set("generated-48", 48),
    "generated-96": _generated_set("generated-96", 96),
    "generated-pairs": _generated_pairs(),
    "generated-sentences": _generated_sentences(),
}
DATASETS |= {
    made.info.name: made
    for encoder in ENCODERS
    for made in (_sst_set(n_labels, encoder, part) for n_labels in (5, 2) for part in ("", "roots", "dev"))
}


def _own_set(own: OwnImages) -> DataSet:
    about = f"{len(own.classes)} classes: {', '.join(own.classes)}"
    n_classes, n_train, n_test = len(own.classes), own.n_train, own.n_test
    facts = DataInfo(name=str(own), shape=own.shape, n_classes=n_classes, n_train=n_train, n_test=n_test, about=about)
    return DataSet(facts, own.read, needs="PIL")


def _entry(name: str | OwnImages) -> DataSet:
    if isinstance(name, OwnImages):
        return _own_set(name)
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(DATASETS)}"
        raise ValueError(f"no data set {name!r}; {hint}")
    return DATASETS[name]


def info(name: str | OwnImages) -> DataInfo:
    return _entry(name).info


def encoder_of(name: str, root: str | Path | None = None) -> Encoder | sentences.GeneratedEncoder:
    """What embeds the sentences of that set, with or without its trees."""
    entry = _entry(name)
    if entry.info.kind != "sentences":
        raise ValueError(f"{name} holds {entry.info.kind}, and only sentences are embedded")
    return replace(entry.encoder, root=root) if entry.encoder else sentences.GeneratedEncoder()


def load(name: str | OwnImages, split: str, root: str | Path | None = None, seed: int = 0) -> Labelled | PairSource | Pairs | Sentences:
    """Read the "train" or "test" part from `root`, TORCHCAPS_DATA or the cache; never from the network.

    "validation" too, where the set has such a part of its own.

    `seed` draws the test part of `digits` and of own images, and the pictures of the generated sets; sets with an official split ignore it.
    """
    entry = _entry(name)
    if split not in ("train", "test") and not (split == "validation" and entry.info.n_validation):
        raise ValueError(f"split must be 'train' or 'test', got {split!r}; for a validation part use hold_out(load(...), n, seed)")
    found = entry.read(split, root, seed)
    return found if isinstance(found, PairSource | Pairs | Sentences) else Labelled(*found)


def get(name: str, root: str | Path | None = None, progress: Callable[[str], object] = print) -> list[Path]:
    """Fetch the files that neither `root` (else TORCHCAPS_DATA) nor the cache holds into the cache; return where each one lies."""
    entry = _entry(name)
    if entry.forms:
        return forms.get(entry.forms, root, progress)
    if entry.files is None:
        progress(f"{name}: {status(name)}, nothing to fetch")
        return []
    fetched = files.get(entry.files, root, progress)
    return [*fetched, *weights.get(entry.encoder, root, progress)] if entry.encoder else fetched


def status(name: str, root: str | Path | None = None) -> str:
    """One line for a list of sets: 'built in', 'complete in <folder>', 'missing: 4 files', or what to install."""
    entry = _entry(name)
    if entry.needs and importlib.util.find_spec(entry.needs) is None:
        return f"needs {entry.needs}: pip install 'torchcaps[{'sentences' if entry.encoder else 'experiments'}]'"
    if entry.forms:
        return forms.status(entry.forms, root)
    if entry.encoder:
        return weights.status(entry.encoder, root, files.status(entry.files, root))
    return "built in" if entry.files is None else files.status(entry.files, root)


def fingerprint(data: Labelled | PairSource | Pairs | Sentences) -> str:
    """sha256 of shape, pixels, labels, the makings of pairs; of sentences their words and the name of the encoder.

    With the same fingerprint two runs saw the same data in the same order.
    """
    digest = hashlib.sha256(repr(list(data[0].shape)).encode())
    for part in data:
        digest.update(part.cpu().contiguous().numpy().tobytes() if isinstance(part, Tensor) else repr(part).encode())
    return digest.hexdigest()


def hold_out(data: Labelled | PairSource, n: int, seed: int) -> tuple[Labelled | PairSource, Labelled | Pairs]:
    """(the rest, `n` held out), decided by `seed`; each class gives its share, and both parts keep the order of `data`.

    Of digits that are to be paired, `n` digits are held out and paired among themselves, once for all.
    """
    if not 0 < n < len(data.labels):
        raise ValueError(f"hold_out: n must leave something on both sides of {len(data.labels):,} pictures, got {n}")
    rest, held = digits.stratified_indices(data.labels, n, seed)
    if isinstance(data, PairSource):
        kept, aside = (PairSource(data.images[part], data.labels[part], data.shift) for part in (rest, held))
        return kept, pairs.fixed_pairs(aside, pairs.N_EACH)
    return Labelled(data.images[rest], data.labels[rest]), Labelled(data.images[held], data.labels[held])
