"""Batches that never leave the device: images, overlapping pairs, sentences."""

from torchcaps.data.augment.base import Batch
from torchcaps.data.batches.hard import Hard
from torchcaps.data.batches.images import Batches, in_order, in_order_as_trained
from torchcaps.data.batches.pairs import PairBatch, PairBatches, batches_for, pairs_in_order
from torchcaps.data.batches.records import Records
from torchcaps.data.batches.sentences import SentenceBatch, SentenceBatches, sentences_in_order

__all__ = [
    "Batch",
    "Batches",
    "Hard",
    "PairBatch",
    "PairBatches",
    "Records",
    "SentenceBatch",
    "SentenceBatches",
    "batches_for",
    "in_order",
    "in_order_as_trained",
    "pairs_in_order",
    "sentences_in_order",
]
