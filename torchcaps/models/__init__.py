"""Architectures only, one file per paper. `MODELS` names them."""

from torch import nn

from torchcaps.models.baseline import Baseline
from torchcaps.models.capsnet import CapsNet

MODELS: dict[str, type[nn.Module]] = {"capsnet": CapsNet, "baseline": Baseline}

__all__ = ["MODELS", "Baseline", "CapsNet"]
