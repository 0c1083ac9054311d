"""Capsule networks in PyTorch: routing behind one interface, and papers reproduced from one command each."""

from torchcaps.layers import Capsules, ConvRoutedCapsules, Decoder, EMCapsules, LazyRoutedCapsules, PrimaryCapsules, RoutedCapsules
from torchcaps.models import CapsNet, CapsuleHead, EMCapsNet, EMSentenceNet
from torchcaps.ops import (
    dynamic_routing,
    dynamic_routing_steps,
    em_routing,
    em_routing_steps,
    lazy_routing,
    lazy_routing_steps,
    margin_loss,
    reconstruction_loss,
    recover_couplings,
    squash,
    unsquash,
)
from torchcaps.pretrained import load

__version__ = "0.1.0"

__all__ = [
    "CapsNet",
    "CapsuleHead",
    "Capsules",
    "ConvRoutedCapsules",
    "Decoder",
    "EMCapsNet",
    "EMCapsules",
    "EMSentenceNet",
    "LazyRoutedCapsules",
    "PrimaryCapsules",
    "RoutedCapsules",
    "dynamic_routing",
    "dynamic_routing_steps",
    "em_routing",
    "em_routing_steps",
    "lazy_routing",
    "lazy_routing_steps",
    "load",
    "margin_loss",
    "reconstruction_loss",
    "recover_couplings",
    "squash",
    "unsquash",
]
