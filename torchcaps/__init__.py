"""Capsule networks in PyTorch: routing algorithms behind one interface, and papers reproduced by one command each."""

from pathlib import Path
from typing import TYPE_CHECKING

from torchcaps.layers import (
    EM,
    ROUTINGS,
    CapsuleLayer,
    Capsules,
    CodeNets,
    ConvAutoencoder,
    ConvMatrixCapsules,
    ConvRoutedCapsules,
    Decoder,
    Dynamic,
    EMCapsules,
    ExpertCapsules,
    Inverted,
    InvertedCapsules,
    Ladder,
    LadderCapsules,
    Lazy,
    LazyRoutedCapsules,
    MatrixCapsules,
    MatrixEM,
    PrimaryCapsules,
    RankMask,
    RoutedCapsules,
    SelfAttention,
    SelfAttentionCapsules,
    SelfRoutedCapsules,
    SelfRouting,
    calibrate,
)
from torchcaps.models import (
    CapsNet,
    CapsuleHead,
    DeepCapsNet,
    EfficientCapsNet,
    EMCapsNet,
    EMSentenceNet,
    MatrixCapsNet,
    RoutingNet,
)
from torchcaps.ops import (
    LOSSES,
    cross_entropy_loss,
    dynamic_routing,
    dynamic_routing_steps,
    em_routing,
    em_routing_steps,
    inverted_routing,
    inverted_routing_steps,
    lazy_routing,
    lazy_routing_steps,
    likelihood_loss,
    margin_loss,
    matrix_em_routing,
    matrix_em_routing_steps,
    presence_loss,
    reconstruction_loss,
    recover_couplings,
    self_attention_routing,
    self_attention_routing_steps,
    self_routing,
    self_routing_steps,
    spread_loss,
    squash,
    unsquash,
)

if TYPE_CHECKING:
    import torch

__version__ = "0.1.0"

__all__ = [
    "EM",
    "LOSSES",
    "ROUTINGS",
    "CapsNet",
    "CapsuleHead",
    "CapsuleLayer",
    "Capsules",
    "CodeNets",
    "ConvAutoencoder",
    "ConvMatrixCapsules",
    "ConvRoutedCapsules",
    "Decoder",
    "DeepCapsNet",
    "Dynamic",
    "EMCapsNet",
    "EMCapsules",
    "EMSentenceNet",
    "EfficientCapsNet",
    "ExpertCapsules",
    "Inverted",
    "InvertedCapsules",
    "Ladder",
    "LadderCapsules",
    "Lazy",
    "LazyRoutedCapsules",
    "MatrixCapsNet",
    "MatrixCapsules",
    "MatrixEM",
    "PrimaryCapsules",
    "RankMask",
    "RoutedCapsules",
    "RoutingNet",
    "SelfAttention",
    "SelfAttentionCapsules",
    "SelfRoutedCapsules",
    "SelfRouting",
    "calibrate",
    "cross_entropy_loss",
    "dynamic_routing",
    "dynamic_routing_steps",
    "em_routing",
    "em_routing_steps",
    "inverted_routing",
    "inverted_routing_steps",
    "lazy_routing",
    "lazy_routing_steps",
    "likelihood_loss",
    "load",
    "margin_loss",
    "matrix_em_routing",
    "matrix_em_routing_steps",
    "presence_loss",
    "reconstruction_loss",
    "recover_couplings",
    "self_attention_routing",
    "self_attention_routing_steps",
    "self_routing",
    "self_routing_steps",
    "spread_loss",
    "squash",
    "unsquash",
]


def load(name: str | Path, device: "str | torch.device" = "cpu", *, n_classes: int | None = None) -> "torch.nn.Module":
    """Load a trained model in evaluation mode.

    `name`: a released model (`torchcaps pretrained` lists them) or the path of a checkpoint. See docs/pretrained.md.
    `n_classes`: for fine-tuning, replace the head by a new one for so many classes; the rest keeps its weights.
    """
    # imported here, so that layers alone need neither data sets nor safetensors
    from torchcaps.pretrained import load as load_by_name

    return load_by_name(name, device, n_classes=n_classes)
