"""A network's first convolution with its ReLU: which implementation runs."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad, relu

from torchcaps.ops.backend import Implementation, choose
from torchcaps.ops.conv_relu import triton_op
from torchcaps.ops.convolution import as_maps, convolve, in_bfloat16, padded, patches_of, with_ones


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

    The kernel is for the gradient of a network's first layer in bfloat16. It takes few channels and gives no gradient
    of the images. The gradient before the ReLU is never written: it is 26 MB in CapsNet at batch 128.
    """
    args = {"images": images, "weight": weight, "bias": bias, "stride": stride, "padding": padding}
    return _IMPLEMENTATIONS[choose("convolve_relu", _IMPLEMENTATIONS, backend, images, args)].load()(**args)


def _plain(images: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    return relu(convolve(images, weight, bias, stride, padding))


def _with_kernel(images: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    """Compute what `_plain` does on CUDA, in the same steps, with a gradient of its own."""
    around = pad(images, [padding] * 4) if padding else images
    patches, places = patches_of(around, weight, stride)
    patches = padded(with_ones(patches))
    if in_bfloat16(images, weight):  # as autocast does; here, so that the rounded ones are kept for the gradient
        patches = patches.to(torch.bfloat16)
    return as_maps(triton_op.ConvRelu.apply(patches, weight, bias), places)


_IMPLEMENTATIONS = {
    "reference": Implementation(load=lambda: _plain),
    "triton": Implementation(load=lambda: _with_kernel, refuses=triton_op.refuses),
}
