"""Batches of embedded sentences; see images.py for why an epoch's random numbers are drawn on the host."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.data.augment import Augmentation, Mixup
from torchcaps.data.batches.embeddings import store_for
from torchcaps.data.batches.images import Batches
from torchcaps.data.sets.sst import Sentences


class SentenceBatch(NamedTuple):
    """Embedded sentences, padded to the longest, with their labels.

    Example:

        from torchcaps.data import load
        batch = next(sentences_in_order(load("generated-sentences", "test"), 4, torch.device("cpu")))
        batch.embeddings.shape[:2] == batch.present.shape, len(batch.labels)  # (True, 4)
    """

    embeddings: Float[Tensor, "b n l m"]  # n tokens in l layers; zeros where there is none
    present: Float[Tensor, "b n"]  # 1 for a token, 0 for padding; in between where a token was mixed with padding
    labels: Int64[Tensor, "b"]
    others: Int64[Tensor, "b"] | None = None  # where sentences were mixed: the class of what was mixed in
    shares: Float[Tensor, "b"] | None = None  # and how much of each is still its own


class SentenceBatches(Batches):
    """Embedded training sentences and this epoch's plan; on CUDA all batches are as long as the longest sentence.

    Example:

        from torchcaps.data import load
        batches = SentenceBatches(load("generated-sentences", "train"), batch=4, augment=(), device=torch.device("cpu"))
        batches.new_epoch(torch.Generator().manual_seed(0))
        batches.before(0)
        len(batches.at(torch.tensor(0)).embeddings)  # 4
    """

    def __init__(self, data: Sentences, batch: int, augment: tuple[Augmentation, ...], device: torch.device) -> None:
        if len(augment) > 1 or not all(isinstance(part, Mixup) for part in augment):
            raise ValueError(
                f"sentences can be mixed, and nothing else is made for them: augment=(Mixup(),) or (), got {augment}"
            )
        if len(data.labels) < batch:
            raise ValueError(
                f"a batch of {batch} was asked for and there are {len(data.labels)} training sentences; "
                "use a smaller batch"
            )
        self.store, self.labels = store_for(data, device, batch), data.labels.to(device)
        self.batch, self.n_steps, self.augment = batch, len(data.labels) // batch, augment
        self.fixed_length = self.store.longest if device.type == "cuda" else None  # a captured step has one shape
        self.by_class = None  # as often as they are there
        drawn = self._draw(torch.Generator())
        self.order, self.ready = drawn[0], range(0)
        self.plan = [part.to(device) for part in drawn]

    def new_epoch(self, rng: torch.Generator) -> None:
        """Draw the order and the shares of one epoch."""
        drawn = self._drawn(rng)
        self.order, self.ready = drawn[0], range(0)
        for part, new in zip(self.plan, drawn, strict=True):
            part.copy_(new)

    def divide(self, rank: int, n: int) -> None:
        super().divide(rank, n)
        self.order = self.order if self.own is None else self.order[:, self.columns]

    def before(self, step: int) -> None:
        """Embed the sentences of this step of the epoch, unless that is done."""
        if step not in self.ready:
            self.ready = range(step, step + self.store.prepare(self.order[step:]))

    def at(self, step: Int64[Tensor, ""]) -> SentenceBatch:
        """Make the batch of this step of the epoch; `step` lies on the device, on CUDA nothing waits for the host."""
        order, *drawn = (part.index_select(0, step.view(1)).squeeze(0) for part in self.plan)
        n = self.fixed_length or int(self.store.lengths[order].max())
        batch = SentenceBatch(*self.store.take(order, n), self.labels[order])
        return self._own(mixed(batch, drawn[0]) if drawn else batch)


def mixed(batch: SentenceBatch, shares: Float[Tensor, "b"]) -> SentenceBatch:
    """Mix each sentence with the next one of its batch, token by token, and their masks too (figure 5(d))."""
    own, own_present = rearrange(shares, "b -> b 1 1 1"), rearrange(shares, "b -> b 1")
    embeddings = torch.lerp(batch.embeddings.roll(-1, 0), batch.embeddings, own)
    present = torch.lerp(batch.present.roll(-1, 0), batch.present, own_present)
    return SentenceBatch(embeddings, present, batch.labels, batch.labels.roll(-1), shares)


def sentences_in_order(data: Sentences, batch: int, device: torch.device) -> Iterator[SentenceBatch]:
    """Yield every sentence once, in order, for evaluation: nothing is random and nothing left out."""
    store = store_for(data, device, batch)
    for start in range(0, len(data.labels), batch):
        picks = torch.arange(start, min(start + batch, len(data.labels)))
        store.prepare(picks[None])
        picks = picks.to(device)
        # one length for all on CUDA, so that kernels are made once
        n = store.longest if device.type == "cuda" else int(store.lengths[picks].max())
        yield SentenceBatch(*store.take(picks, n), data.labels[start : start + batch].to(device))
