"""nn.Modules: weights, one shape check, one call into ops."""

from torchcaps.layers.autoencoder import ConvAutoencoder
from torchcaps.layers.capsules import Capsules
from torchcaps.layers.conv_routed import ConvRoutedCapsules
from torchcaps.layers.decoder import Decoder
from torchcaps.layers.em import EMCapsules
from torchcaps.layers.experts import ExpertCapsules
from torchcaps.layers.lazy import LazyRoutedCapsules
from torchcaps.layers.primary import PrimaryCapsules
from torchcaps.layers.routed import Coupled, RoutedCapsules
from torchcaps.layers.sparse import RankMask

__all__ = [
    "Capsules",
    "ConvAutoencoder",
    "ConvRoutedCapsules",
    "Coupled",
    "Decoder",
    "EMCapsules",
    "ExpertCapsules",
    "LazyRoutedCapsules",
    "PrimaryCapsules",
    "RankMask",
    "RoutedCapsules",
]
