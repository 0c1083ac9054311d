"""Labelled sentences and their encoder: the Stanford Sentiment Treebank, and a small set made from a seed."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from torchcaps.data.sources import files
from torchcaps.data.sources.encoders import ENCODERS, Encoder, check_not_empty, check_not_too_long
from torchcaps.data.sources.files import Address, DataError, FileSet
from torchcaps.data.sources.trees import Phrase, negative_or_positive, read_trees, roots, unique_phrases
from torchcaps.data.specs import DataInfo, DataSet, DataSpec

FILES = {"train": "train.txt", "validation": "dev.txt", "test": "test.txt"}
N_TREES = {"train": 8_544, "validation": 1_101, "test": 2_210}
# unique phrases of the training trees and root sentences, with five labels and with two
N_PHRASES = {5: 159_274, 2: 77_616}
SENTIMENTS = {5: ("very negative", "negative", "neutral", "positive", "very positive"), 2: ("negative", "positive")}
N_ROOTS = {5: N_TREES, 2: {"train": 6_920, "validation": 872, "test": 1_821}}


class Sentences(NamedTuple):
    """Labelled sentences, and the encoder that embeds them when embeddings are wanted."""

    labels: Int64[Tensor, " n"]
    texts: tuple[str, ...]
    encoder: Encoder | GeneratedEncoder


@dataclass(frozen=True)
class Archive:
    """Official address of a zip file that holds the files; `sha256` is that of the zip."""

    url: str
    sha256: str
    folder: str

    def __str__(self) -> str:
        return self.url

    def fetch(self, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield (file, bytes) for those of `wanted` that it holds."""
        ((_, raw),) = Address(self.url).fetch(["the archive"])
        content = files.verified(raw, self.sha256)
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                held = {
                    name: archive.read(f"{self.folder}/{name}")
                    for name in wanted
                    if f"{self.folder}/{name}" in archive.namelist()
                }
        except zipfile.BadZipFile as error:
            raise DataError(f"the archive cannot be read: {error}") from error
        yield from held.items()


# the hash of the zip was published, those of the files in it were not: they are checked by their counts
SST = FileSet(
    "sst",
    dict.fromkeys(FILES.values(), ""),
    (
        Archive(
            "https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip",
            "5c613a4f673fc74097d523a2c83f38e0cc462984d847b82c7aaf36b01cbbbfcc",
            "trees",
        ),
    ),
)


def read_sst(split: str, root: str | Path | None, n_labels: int, encoder: Encoder, *, phrases: bool) -> Sentences:
    """Read whole sentences; with `phrases`, for training, every unique phrase of the trees.

    With two labels instead of five, neutral phrases are left out. A phrase with several labels keeps the first.
    """
    name = FILES[split]
    (content,) = files.read(SST, [name], root)
    try:
        trees = read_trees(content.decode(), name)
    except UnicodeDecodeError as error:
        raise DataError(f"{name} of sst is not text in UTF-8 ({error}); fetch it again") from error
    if len(trees) != N_TREES[split]:
        raise DataError(f"{name} of sst has {len(trees):,} trees, {N_TREES[split]:,} are wanted; fetch it again")
    found = unique_phrases(trees) if phrases and split == "train" else roots(trees)
    return labelled(negative_or_positive(found) if n_labels == 2 else found, replace(encoder, root=root))


def labelled(phrases: Sequence[Phrase], encoder: Encoder | GeneratedEncoder) -> Sentences:
    return Sentences(
        torch.tensor([phrase.label for phrase in phrases]), tuple(phrase.text for phrase in phrases), encoder
    )


N_GENERATED = {"train": 512, "validation": 64, "test": 128}
WORDS = {
    -2: ("awful", "dull"),
    -1: ("bad", "slow"),
    0: ("the", "film", "is", "a", "scene"),
    1: ("good", "warm"),
    2: ("great", "lovely"),
}


def read_generated(split: str, seed: int) -> Sentences:
    """Make sentences of one to eight words; the label is the sum of what they are worth, cut off at -2 and 2."""
    rng = torch.Generator().manual_seed(3 * seed + list(N_GENERATED).index(split))
    values = [value for value, words in WORDS.items() for _ in words]
    words = [word for several in WORDS.values() for word in several]
    made = []
    for _ in range(N_GENERATED[split]):
        picks = torch.randint(len(words), (int(torch.randint(1, 9, (), generator=rng)),), generator=rng).tolist()
        total = sum(values[pick] for pick in picks)
        made.append(Phrase(" ".join(words[pick] for pick in picks), max(-2, min(2, total)) + 2))
    return labelled(made, GeneratedEncoder())


class GeneratedEncoder:
    """Stand-in for a transformer in smoke runs: a random vector for each word, mixed with its neighbours in layers.

    It has what a `TransformerEncoder` has, and is what an `Encoder` loads, at once.
    """

    name, n_layers, width, longest, limit, pad = "generated", 3, 8, 10, 32, 0

    def __init__(self) -> None:
        rng = torch.Generator().manual_seed(7)
        words = sorted(word for several in WORDS.values() for word in several)
        self.numbers = {word: number for number, word in enumerate(["[end]", *words])}
        self.table = torch.randn(len(self.numbers), self.width, generator=rng)
        self.weights_sha256 = hashlib.sha256(self.table.numpy().tobytes()).hexdigest()
        self.device = torch.device("cpu")
        self.kept: OrderedDict[Any, Any] = OrderedDict()

    def __repr__(self) -> str:
        return "GeneratedEncoder()"

    def load(self, device: torch.device) -> GeneratedEncoder:
        self.device, self.table = device, self.table.to(device)
        return self

    def tokenise(self, texts: Sequence[str]) -> list[list[int]]:
        check_not_empty(texts)
        unknown = sorted({word for text in texts for word in text.split()} - set(self.numbers))
        if unknown:
            raise ValueError(
                f"the generated encoder knows {', '.join(self.numbers)}; it does not know {', '.join(unknown)}"
            )
        tokens = [[*(self.numbers[word] for word in text.split()), self.numbers["[end]"]] for text in texts]
        return check_not_too_long(tokens, texts, self.name, self.limit)

    def words(self, ids: Sequence[int]) -> list[str]:
        return [list(self.numbers)[number] for number in ids]

    def hidden(self, ids: Int64[Tensor, "b n"], present: Bool[Tensor, "b n"]) -> Float[Tensor, "b n l m"]:
        states = [self.table[ids]]
        for _ in range(self.n_layers - 1):
            before = pad(states[-1][:, :-1], (0, 0, 1, 0))  # looks back alone, so padding changes nothing
            states.append((states[-1] + 0.5 * before).tanh())
        return torch.stack(states, dim=2)


def specs_with(encoder: str) -> tuple[DataSpec, ...]:
    """List the sets whose sentences this encoder embeds."""
    splits = "standard", "roots", "dev"
    return tuple(DataSpec(source="sst", n_classes=n, encoder=encoder, split=split) for n in (5, 2) for split in splits)


SPECS = tuple(spec for encoder in ENCODERS for spec in specs_with(encoder))


def build(spec: DataSpec) -> DataSet:
    encoder, n_roots = ENCODERS[spec.encoder], N_ROOTS[spec.n_classes]
    trained, tested = {
        "standard": ("all phrases to train on", "test"),
        "roots": ("whole sentences alone", "test"),
        "dev": ("the validation part as test part, for model selection", "validation"),
    }[spec.split]
    info = DataInfo(
        name=str(spec),
        shape=(encoder.longest, encoder.n_layers, encoder.width),
        n_classes=spec.n_classes,
        n_train=n_roots["train"] if spec.split == "roots" else N_PHRASES[spec.n_classes],
        n_test=n_roots[tested],
        n_validation=n_roots["validation"] if tested == "test" else 0,
        about=f"sentences of film reviews in the layers of {encoder.name}; {trained}",
        files=len(SST.sha256),
        kind="sentences",
        groups="sentences",
        class_names=SENTIMENTS[spec.n_classes],
    )

    def read(split: str, root: str | Path | None, seed: int) -> Sentences:
        part = tested if split == "test" else split
        return read_sst(part, root, spec.n_classes, encoder, phrases=spec.split != "roots")

    return DataSet(info, read, SST, "transformers", encoder=encoder)


def build_generated(spec: DataSpec) -> DataSet:
    info = DataInfo(
        name=str(spec),
        shape=(GeneratedEncoder.longest, GeneratedEncoder.n_layers, GeneratedEncoder.width),
        n_classes=len(WORDS),
        n_train=N_GENERATED["train"],
        n_test=N_GENERATED["test"],
        n_validation=N_GENERATED["validation"],
        about="sentences of a few words with known worth, for tests and smoke runs",
        kind="sentences",
        groups="sentences",
    )
    return DataSet(info, lambda split, root, seed: read_generated(split, seed))
