"""Convolutional stem: stages of batch normalisation, convolution and SiLU, fused for training on a GPU.

The fused way computes the same function. A convolution without padding takes the normalisation in front of it into
its weight and bias, so no normalised maps are written; the statistics come with the SiLU before it, and autograd
through these few numbers gives batch normalisation's gradient without another sum over the maps.
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d

from torchcaps.ops import conv_silu_with_sums, silu_with_sums
from torchcaps.ops.backend import autocast_dtype, cannot_run_kernels, is_exporting
from torchcaps.ops.silu_sums.triton_op import MOST_CHANNELS

STAGE = [nn.BatchNorm2d, nn.Conv2d, nn.SiLU]


class ConvStem(nn.Sequential):
    """Stages of BatchNorm2d, Conv2d and SiLU, each an nn.Sequential. [b c h w] -> [b k p q].

    Training on CUDA in bfloat16 takes the fused way, everything else the modules one by one; `refuses` says why.
    """

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k p q"]:
        if refuses(self, images) is None:
            return fused(self, images, torch.bfloat16)
        return super().forward(images)


def refuses(stages: nn.Sequential, images: Tensor) -> str | None:
    """Say why the fused way cannot take this stem and these images, or None."""
    if reason := _cannot_run(images):
        return reason
    if autocast_dtype(images.device) != torch.bfloat16 or images.dtype == torch.float64:
        return "needs autocast to bfloat16; train with it"
    if is_exporting():
        return "is for training, and torch.export asks for a program to run; leave it"
    if images.requires_grad or images.ndim != 4 or len(images) == 0 or len(stages) == 0:
        return "needs a stage, and a batch of images that want no gradient; detach them"
    return next((reason for stage in stages if (reason := _cannot_fuse(stage))), None)


def _cannot_run(images: Tensor) -> str | None:
    """Say why no kernel runs for these images, or None; Triton's interpreter is not for whole networks."""
    if images.device.type != "cuda":
        return f"needs CUDA tensors, got one on {images.device.type}; move the input"
    return cannot_run_kernels(images)


def _cannot_fuse(stage: nn.Module) -> str | None:
    """Say why a stage is not one that can be folded, or None."""
    if type(stage) is not nn.Sequential or [type(part) for part in stage] != STAGE:
        return "needs stages of BatchNorm2d, Conv2d and SiLU, and got others; use those"
    if any(hooks for part in (stage, *stage) for hooks in _hooks(part)):
        return "calls no module of a stage, and one has a hook; remove it"
    norm, convolution, _ = stage
    if not (norm.training and norm.track_running_stats and norm.affine and norm.momentum is not None):
        return "needs batch normalisation in training, with scale, shift, and running statistics with a momentum"
    if any(convolution.padding) or convolution.bias is None or convolution.groups > 1 or max(convolution.dilation) > 1:
        return "needs convolutions with a bias, without padding, groups or dilation"
    if convolution.stride[0] != convolution.stride[1] or convolution.out_channels > MOST_CHANNELS:
        return f"needs equal strides and at most {MOST_CHANNELS} channels"
    if convolution.weight.dtype != torch.float32 or convolution.weight.device != norm.weight.device:
        return "needs parameters in float32 on one device"
    return None


def _hooks(part: nn.Module) -> tuple[dict, ...]:
    return part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks


def fused(stages: nn.Sequential, images: Float[Tensor, "b c h w"], dtype: torch.dtype) -> Float[Tensor, "b k p q"]:
    """Compute the stem with every normalisation folded into its convolution; maps and products are in `dtype`."""
    with torch.autocast(images.device.type, enabled=False):  # what is folded stays in float32
        (norm, convolution, _), *later = stages
        images, weight, bias = _normalised(norm, convolution, images, dtype)
        centre, *centres = _centres(stages)
        maps, sums = conv_silu_with_sums(images, weight, bias, centre, convolution.stride[0])
        for (norm, convolution, _), following in zip(later, centres, strict=True):
            weight, bias = _fold(norm, convolution, sums, centre, maps.numel() // maps.shape[-1], dtype)
            maps = conv2d(rearrange(maps, "b h w c -> b c h w"), weight, None, convolution.stride)
            centre = following
            maps, sums = silu_with_sums(rearrange(maps, "b c h w -> b h w c"), bias, centre)
        return rearrange(maps, "b h w c -> b c h w")


def _centres(stages: nn.Sequential) -> tuple[Float[Tensor, "_"], ...]:
    """Guess the mean of what every stage gives, from the running mean of the next; the last one's is not moved."""
    means = [norm.running_mean for norm, *_ in stages][1:]
    last = stages[-1][1].bias.detach()
    # copies, made together: the running means move before the backward pass needs them
    return torch.cat([*means, torch.zeros_like(last)]).split([len(mean) for mean in [*means, last]])


def _normalised(
    norm: nn.BatchNorm2d, convolution: nn.Conv2d, images: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise images; scale and shift go into weight and bias, so that no gradient of the images is needed."""
    norm.num_batches_tracked.add_(1)
    images = batch_norm(
        images, norm.running_mean, norm.running_var, training=True, momentum=norm.momentum, eps=norm.eps
    )
    bias = convolution.bias + (convolution.weight * _wide(norm.bias)).sum((1, 2, 3))
    return images.to(dtype), (convolution.weight * _wide(norm.weight)).to(dtype), bias


def _fold(
    norm: nn.BatchNorm2d, convolution: nn.Conv2d, sums: Float[Tensor, "2 c"], centre: Tensor, n: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Fold a normalisation into the convolution behind it: its weight in `dtype`, and its bias.

    `sums` are those of n values less `centre`.
    """
    if n == 1:
        raise ValueError(
            "ConvStem: batch normalisation in training needs more than one value per channel, got one; "
            "give more or larger images"
        )
    mean, square = sums / n
    variance = (square - mean.square()).clamp_min(0)
    with torch.no_grad():
        norm.num_batches_tracked.add_(1)
        norm.running_mean.lerp_(mean + centre, norm.momentum)
        norm.running_var.lerp_(variance * (n / (n - 1)), norm.momentum)
    scale = norm.weight * torch.rsqrt(variance + norm.eps)
    bias = convolution.bias + (convolution.weight * _wide(norm.bias - scale * mean)).sum((1, 2, 3))
    return (convolution.weight * _wide(scale)).to(dtype), bias


def _wide(numbers: Float[Tensor, "c"]) -> Float[Tensor, "c 1 1"]:
    return numbers[:, None, None]
