"""Sentences of noise, so that a training step can be timed without an encoder."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from torchcaps.data import DataInfo
from torchcaps.data.sets.sst import Sentences

N = 1_000  # sentences: a step reads no more than a batch of them
MEAN = 10.6  # tokens of a phrase of SST


class NoiseEncoder:
    """Drawn embeddings in the shape of an encoder's. A text is its own number of tokens."""

    name, pad, weights_sha256 = "noise", 0, ""

    def __init__(self, n_layers: int, width: int) -> None:
        self.n_layers, self.width = n_layers, width
        self.kept: OrderedDict[Any, Any] = OrderedDict()

    def __repr__(self) -> str:
        return f"NoiseEncoder({self.n_layers}, {self.width})"

    def load(self, device: torch.device) -> "NoiseEncoder":
        return self

    def tokenise(self, texts: Sequence[str]) -> list[list[int]]:
        return [[0] * int(text) for text in texts]

    def hidden(self, ids: Int64[Tensor, "b n"], present: Bool[Tensor, "b n"]) -> Float[Tensor, "b n l m"]:
        rng = torch.Generator().manual_seed(ids.numel())
        return torch.randn(*ids.shape, self.n_layers, self.width, generator=rng).to(ids.device)


def random_sentences(about: DataInfo, rng: torch.Generator) -> Sentences:
    """As long as phrases of SST, the longest among them."""
    longest, n_layers, width = about.shape
    lengths = (-MEAN * torch.rand(N, generator=rng).log()).long().clamp(3, longest)
    lengths[0] = longest
    labels = torch.randint(0, about.n_classes, (N,), generator=rng)
    return Sentences(labels, tuple(str(n) for n in lengths.tolist()), NoiseEncoder(n_layers, width))
