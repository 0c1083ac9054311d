"""Architectures only, one file per paper. `MODELS` names them."""

from torch import nn

from torchcaps.models.capsnet import CapsNet

MODELS: dict[str, type[nn.Module]] = {"capsnet": CapsNet}

__all__ = ["MODELS", "CapsNet"]
