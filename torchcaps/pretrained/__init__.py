"""Pretrained models: safetensors files, each with a hash, a result file and a model card.

`torchcaps.load("capsnet-digits")` loads one; `torchcaps release` makes one from a finished run (`release.py`).
"""

from torchcaps.pretrained.finding import at_hand, card_of, file_of
from torchcaps.pretrained.loading import load, locate, open_model, prepare
from torchcaps.pretrained.registry import FOLDER, Entry, entries, entry

__all__ = [
    "FOLDER",
    "Entry",
    "at_hand",
    "card_of",
    "entries",
    "entry",
    "file_of",
    "load",
    "locate",
    "open_model",
    "prepare",
]
