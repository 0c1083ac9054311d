"""Layout of weights in memory: channels last for convolutions, and for nothing else."""

import torch
from torch import nn

from torchcaps.layers.autoencoder import ConvAutoencoder
from torchcaps.layers.primary import PrimaryCapsules

CONVOLUTIONS = nn.Conv2d | nn.ConvTranspose2d | PrimaryCapsules | ConvAutoencoder


def to_device(model: nn.Module, device: torch.device) -> nn.Module:
    """Move a model to its device for training; on CUDA its convolutions become channels last."""
    model = model.to(device)
    return convolutions_channels_last(model) if device.type == "cuda" else model


def convolutions_channels_last(model: nn.Module) -> nn.Module:
    """Store the weights of convolutions channels last.

    `model.to(memory_format=...)` would move every weight of four dimensions: the transforms [i j d e] of a routing,
    too, which kernels then copy back in every step, and their gradients once more.
    """
    for layer in model.modules():
        if isinstance(layer, CONVOLUTIONS):
            layer.to(memory_format=torch.channels_last)
    return model
