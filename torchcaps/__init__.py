"""Capsule networks in PyTorch: routing algorithms behind one interface, and papers reproduced by one command each."""

from pathlib import Path
from typing import TYPE_CHECKING

from torchcaps.layers import (
    Capsules,
    ConvRoutedCapsules,
    Decoder,
    EMCapsules,
    LazyRoutedCapsules,
    PrimaryCapsules,
    RoutedCapsules,
    calibrate,
)
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

if TYPE_CHECKING:
    import torch

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
    "calibrate",
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


def load(name: str | Path, device: "str | torch.device" = "cpu") -> "torch.nn.Module":
    """Load a trained model in evaluation mode.

    `name`: a released model (`torchcaps pretrained` lists them) or the path of a checkpoint. See docs/pretrained.md.
    """
    # imported here, so that layers alone need neither data sets nor safetensors
    from torchcaps.pretrained import load as load_by_name

    return load_by_name(name, device)
