"""Architectures only; the head of a file cites the paper. `MODELS` names those that take images."""

from torch import nn

from torchcaps.models.baseline import Baseline
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.em_images import EMCapsNet
from torchcaps.models.em_sentences import EMSentenceNet
from torchcaps.models.experts import ExpertNet
from torchcaps.models.neurons import NeuronNet
from torchcaps.models.sparsecaps import SparseCaps, SupervisedCaps

MODELS: dict[str, type[nn.Module]] = {
    "capsnet": CapsNet,
    "baseline": Baseline,
    "em-capsnet": EMCapsNet,
    "sparsecaps": SparseCaps,
    "supcaps": SupervisedCaps,
    "experts": ExpertNet,
    "neurons": NeuronNet,
}

__all__ = ["MODELS", "Baseline", "CapsNet", "EMCapsNet", "EMSentenceNet", "ExpertNet", "NeuronNet", "SparseCaps", "SupervisedCaps"]
