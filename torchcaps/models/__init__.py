"""Model architectures; the head of each file cites the paper.

`MODELS` maps names to models of images, `SENTENCE_MODELS` to models of sentence embeddings.
"""

from torch import nn

from torchcaps.models.baseline import Baseline
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.capsule_head import CapsuleHead
from torchcaps.models.deep import DeepCapsNet
from torchcaps.models.efficient_capsnet import EfficientCapsNet
from torchcaps.models.em_images import EMCapsNet
from torchcaps.models.em_sentences import EMSentenceNet
from torchcaps.models.experts import ExpertNet
from torchcaps.models.inverted_capsnet import InvertedCapsNet
from torchcaps.models.lcapsnet import LCapsNet
from torchcaps.models.matrix_capsnet import MatrixCapsNet
from torchcaps.models.pooled_sentences import PooledSentences
from torchcaps.models.rbm import NeuronNet
from torchcaps.models.routing_net import PooledNet, RoutingNet
from torchcaps.models.sparsecaps import SparseCaps, SupervisedCaps
from torchcaps.models.stackedcaps import StackedCaps

MODELS: dict[str, type[nn.Module]] = {
    "capsnet": CapsNet,
    "baseline": Baseline,
    "deep-capsnet": DeepCapsNet,
    "efficient-capsnet": EfficientCapsNet,
    "em-capsnet": EMCapsNet,
    "inverted-capsnet": InvertedCapsNet,
    "matrix-capsnet": MatrixCapsNet,
    "routing-net": RoutingNet,
    "pooled-net": PooledNet,
    "lcapsnet": LCapsNet,
    "sparsecaps": SparseCaps,
    "supcaps": SupervisedCaps,
    "stackedcaps": StackedCaps,
    "experts": ExpertNet,
    "rbm": NeuronNet,
}

# their first arguments are the number of layers and the width of an embedding
SENTENCE_MODELS: dict[str, type[nn.Module]] = {"em-sentences": EMSentenceNet, "pooled-sentences": PooledSentences}

__all__ = [
    "MODELS",
    "SENTENCE_MODELS",
    "Baseline",
    "CapsNet",
    "CapsuleHead",
    "DeepCapsNet",
    "EMCapsNet",
    "EMSentenceNet",
    "EfficientCapsNet",
    "ExpertNet",
    "InvertedCapsNet",
    "LCapsNet",
    "MatrixCapsNet",
    "NeuronNet",
    "PooledNet",
    "PooledSentences",
    "RoutingNet",
    "SparseCaps",
    "StackedCaps",
    "SupervisedCaps",
]
