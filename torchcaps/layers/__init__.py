"""Capsule layers as nn.Modules: each owns its weights, checks shapes once and calls one op."""

from torchcaps.layers.autoencoder import ConvAutoencoder
from torchcaps.layers.calibration import calibrate
from torchcaps.layers.capsules import Capsules
from torchcaps.layers.code_nets import CodeNets
from torchcaps.layers.conv_routed import ConvRoutedCapsules
from torchcaps.layers.decoder import Decoder
from torchcaps.layers.em import EMCapsules
from torchcaps.layers.experts import ExpertCapsules
from torchcaps.layers.inverted import InvertedCapsules
from torchcaps.layers.ladder import LadderCapsules, Laddered, LadderForm
from torchcaps.layers.lazy import LazyRoutedCapsules
from torchcaps.layers.matrix_em import ConvMatrixCapsules, MatrixCapsules
from torchcaps.layers.primary import PrimaryCapsules
from torchcaps.layers.routed import Coupled, RoutedCapsules
from torchcaps.layers.routings import (
    EM,
    ROUTINGS,
    CapsuleLayer,
    Dynamic,
    Inverted,
    Ladder,
    Lazy,
    MatrixEM,
    Routing,
    SelfAttention,
    SelfRouting,
)
from torchcaps.layers.self_attention import SelfAttentionCapsules
from torchcaps.layers.self_routing import SelfRoutedCapsules
from torchcaps.layers.sparse import RankMask

__all__ = [
    "EM",
    "ROUTINGS",
    "CapsuleLayer",
    "Capsules",
    "CodeNets",
    "ConvAutoencoder",
    "ConvMatrixCapsules",
    "ConvRoutedCapsules",
    "Coupled",
    "Decoder",
    "Dynamic",
    "EMCapsules",
    "ExpertCapsules",
    "Inverted",
    "InvertedCapsules",
    "Ladder",
    "LadderCapsules",
    "LadderForm",
    "Laddered",
    "Lazy",
    "LazyRoutedCapsules",
    "MatrixCapsules",
    "MatrixEM",
    "PrimaryCapsules",
    "RankMask",
    "RoutedCapsules",
    "Routing",
    "SelfAttention",
    "SelfAttentionCapsules",
    "SelfRoutedCapsules",
    "SelfRouting",
    "calibrate",
]
