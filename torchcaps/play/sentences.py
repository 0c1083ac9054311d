"""Sentences in the playground: tokens and layers that each class used."""

from pathlib import Path
from typing import Any

import torch

from torchcaps import data as datasets
from torchcaps.data import class_names
from torchcaps.figures.sentence_map import explain
from torchcaps.models import EMSentenceNet
from torchcaps.train.recipe import Run

LONGEST = 2000  # characters of a sentence


class SentenceReader:
    """A sentence network with its transformer, which is loaded once."""

    def __init__(self, model: EMSentenceNet, run: Run, name: str, root: Path | None = None) -> None:
        self.model, self.name = model.eval(), name
        self.encoder = datasets.encoder_of(run.data, root).load(torch.device("cpu"))
        self.classes = list(class_names(run.data))
        # first example; the generated encoder knows only a few words
        known = getattr(self.encoder, "numbers", None)
        self.example = " ".join(list(known)[1:5]) if known else "a slow start , but the last hour is wonderful"

    def about(self) -> dict[str, Any]:
        return {"name": self.name, "classes": self.classes, "example": self.example}

    def read(self, text: str) -> dict[str, Any]:
        seen = explain(self.model, self.encoder, text)
        return {"words": seen.words, "shares": seen.shares.tolist(), "used": seen.used.tolist()}
