"""Trained models that come with the package: small safetensors files, each with its hash, its result file and its card.

`torchcaps.load("capsnet-digits")` reads one; `torchcaps release` makes one of a finished run (`release.py`).
"""

from torchcaps.pretrained.loading import load, locate, open_model, prepare
from torchcaps.pretrained.registry import FOLDER, Entry, entries, entry, file_of

__all__ = ["FOLDER", "Entry", "entries", "entry", "file_of", "load", "locate", "open_model", "prepare"]
