"""Batches of pairs, made on the device; see images.py for why an epoch's random numbers are drawn on the host."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int64, UInt8
from torch import Tensor

from torchcaps.data import Labelled
from torchcaps.data.augment import Augmentation
from torchcaps.data.batches.hard import Hard
from torchcaps.data.batches.images import Batches
from torchcaps.data.batches.records import Records
from torchcaps.data.batches.sentences import SentenceBatches
from torchcaps.data.sets.pairs import Pairs, PairSource, draw_moves, draw_partners, overlay
from torchcaps.data.sets.sst import Sentences


class PairBatch(NamedTuple):
    """Two overlapping digits in an image, with each of them alone.

    Example:

        from torchcaps.data import load
        batch = next(pairs_in_order(load("generated-pairs", "test"), 16, torch.device("cpu")))
        list(batch.images.shape), list(batch.sources.shape)  # ([16, 1, 24, 24], [16, 2, 1, 24, 24])
    """

    images: Float[Tensor, "b c h w"]  # 0..1
    labels: Int64[Tensor, "b 2"]
    sources: Float[Tensor, "b 2 c h w"]  # each digit alone, in the order of the labels


class PairBatches(Batches):
    """Training pairs: in an epoch every digit is the base of one (but for the remainder), with a new partner.

    Example:

        from torchcaps.data import load
        batches = PairBatches(load("generated-pairs", "train"), batch=16, augment=(), device=torch.device("cpu"))
        batches.new_epoch(torch.Generator().manual_seed(0))
        list(batches.at(torch.tensor(0)).labels.shape)  # [16, 2]
    """

    def __init__(self, data: PairSource, batch: int, augment: tuple[Augmentation, ...], device: torch.device) -> None:
        if augment:
            raise ValueError(f"pairs are moved by their data set already; give no augmentation with it, got {augment}")
        self.shift, self.classes = data.shift, data.labels  # on the host, to draw partners
        super().__init__(Labelled(data.images, data.labels), batch, (), device)

    def at(self, step: Int64[Tensor, ""]) -> PairBatch:
        picks, moves = (part.index_select(0, step.view(1)).squeeze(0) for part in self.plan)
        return _batch(self.images, self.labels, picks, moves, self.shift)

    def _draw(self, rng: torch.Generator) -> list[Tensor]:
        n_used = self.n_steps * self.batch
        base = torch.randperm(len(self.classes), generator=rng)[:n_used]
        picks = torch.stack([base, draw_partners(base, self.classes, rng)], dim=1)
        return [part.unflatten(0, (self.n_steps, self.batch)) for part in (picks, draw_moves(n_used, self.shift, rng))]


def batches_for(
    data: Labelled | PairSource | Sentences,
    batch: int,
    augment: tuple[Augmentation, ...],
    device: torch.device,
    balanced: bool = False,
    records: Records | None = None,
    hard: Hard | None = None,
) -> Batches:
    """Make the training batches that suit this data."""
    kinds = {PairSource: PairBatches, Sentences: SentenceBatches}
    if type(data) not in kinds:
        return Batches(data, batch, augment, device, balanced=balanced, records=records, hard=hard)
    if balanced or records or hard:
        raise ValueError(
            "balanced drawing, the order of records and hard images are made for images of one class each; give a "
            "stage of pairs or sentences balanced=False, records=None and hard=None"
        )
    return kinds[type(data)](data, batch, augment, device)


def pairs_in_order(pairs: Pairs, batch: int, device: torch.device) -> Iterator[PairBatch]:
    """Yield every fixed pair once, in order; images exist for one batch at a time."""
    digits, classes = pairs.digits.to(device), pairs.classes.to(device)
    for start in range(0, len(pairs.picks), batch):
        part = slice(start, start + batch)
        yield _batch(digits, classes, pairs.picks[part].to(device), pairs.moves[part].to(device), pairs.shift)


def _batch(
    digits: UInt8[Tensor, "m c h w"],
    classes: Int64[Tensor, "m"],
    picks: Int64[Tensor, "b 2"],
    moves: Int[Tensor, "b 2 2"],
    shift: int,
) -> PairBatch:
    both, alone = overlay(digits[picks], moves, shift)
    return PairBatch(both.float() / 255, classes[picks], alone.float() / 255)
