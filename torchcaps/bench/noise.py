"""Random sentences, so that a training step can be timed without an encoder."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from torchcaps.data import DataInfo
from torchcaps.data.sets.sst import Sentences

N = 1_000  # sentences; a step reads only a batch of them
MEAN = 10.6  # mean number of tokens of a phrase in SST


class NoiseEncoder:
    """Encoder that returns random embeddings. The text "12" stands for a sentence of 12 tokens."""

    name, pad, weights_sha256 = "noise", 0, ""

    def __init__(self, n_layers: int, width: int) -> None:
        self.n_layers, self.width = n_layers, width
        self.kept: OrderedDict[Any, Any] = OrderedDict()

    def __repr__(self) -> str:
        return f"NoiseEncoder({self.n_layers}, {self.width})"

    def load(self, device: torch.device) -> "NoiseEncoder":
        """Return itself: there are no weights to load."""
        return self

    def tokenise(self, texts: Sequence[str]) -> list[list[int]]:
        """Return as many zeros as each text says."""
        return [[0] * int(text) for text in texts]

    def hidden(self, ids: Int64[Tensor, "b n"], present: Bool[Tensor, "b n"]) -> Float[Tensor, "b n l m"]:
        """Draw random hidden states."""
        rng = torch.Generator().manual_seed(ids.numel())
        return torch.randn(*ids.shape, self.n_layers, self.width, generator=rng).to(ids.device)


def random_sentences(about: DataInfo, rng: torch.Generator) -> Sentences:
    """Draw labels and sentence lengths like those of SST phrases, including the longest."""
    longest, n_layers, width = about.shape
    lengths = (-MEAN * torch.rand(N, generator=rng).log()).long().clamp(3, longest)
    lengths[0] = longest
    labels = torch.randint(0, about.n_classes, (N,), generator=rng)
    return Sentences(labels, tuple(str(n) for n in lengths.tolist()), NoiseEncoder(n_layers, width))
