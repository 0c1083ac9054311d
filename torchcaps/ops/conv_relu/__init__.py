"""A network's first convolution with its ReLU: which implementation runs."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad, relu

from torchcaps.ops.backend import Implementation, choose
from torchcaps.ops.conv_relu import triton_op
from torchcaps.ops.convolution import convolve, in_bfloat16


def convolve_relu(
    images: Float[Tensor, "b c h w"],
    weight: Float[Tensor, "k c y x"],
    bias: Float[Tensor, "k"],
    stride: int = 1,
    padding: int = 0,
    *,
    backend: str = "auto",
) -> Float[Tensor, "b k p q"]:
    """Compute relu(convolve(images, weight, bias, stride, padding)).

    The kernels are for a network's first layer in bfloat16. They take few channels and give no gradient of the images.
    Neither patches nor the gradient before the ReLU are ever written.
    """
    args = {"images": images, "weight": weight, "bias": bias, "stride": stride, "padding": padding}
    return _IMPLEMENTATIONS[choose("convolve_relu", _IMPLEMENTATIONS, backend, images, args)].load()(**args)


def _plain(images: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    return relu(convolve(images, weight, bias, stride, padding))


def _with_kernels(images: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    """Compute what `_plain` does on CUDA; stripes and filters are rounded as autocast does."""
    around = pad(images, [padding] * 4) if padding else images
    dtype = torch.bfloat16 if in_bfloat16(images, weight) else images.dtype
    stripes = triton_op.stripes_of(around, weight.shape[3], stride, dtype)
    return rearrange(triton_op.ConvRelu.apply(stripes, weight, bias, stride), "b p q k -> b k p q")


_IMPLEMENTATIONS = {
    "reference": Implementation(load=lambda: _plain),
    "triton": Implementation(load=lambda: _with_kernels, refuses=triton_op.refuses),
}
