"""Architectures only; the head of a file cites the paper. `MODELS` names those that take images."""

from torch import nn

from torchcaps.models.baseline import Baseline
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.em_images import EMCapsNet
from torchcaps.models.em_sentences import EMSentenceNet
from torchcaps.models.lcapsnet import LCapsNet
from torchcaps.models.sparsecaps import SparseCaps, SupervisedCaps
from torchcaps.models.stackedcaps import StackedCaps

MODELS: dict[str, type[nn.Module]] = {
    "capsnet": CapsNet,
    "baseline": Baseline,
    "em-capsnet": EMCapsNet,
    "lcapsnet": LCapsNet,
    "sparsecaps": SparseCaps,
    "supcaps": SupervisedCaps,
    "stackedcaps": StackedCaps,
}

__all__ = ["MODELS", "Baseline", "CapsNet", "EMCapsNet", "EMSentenceNet", "LCapsNet", "SparseCaps", "StackedCaps", "SupervisedCaps"]
