"""The gradient of a first convolution with ReLU as one kernel: the op that torch sees, and its launch.

The forward pass is plain PyTorch, which torch.compile sees and fuses. The images want no gradient and get none.
Backward reads gradient, maps and patches once and leaves partial sums, which are added in a fixed order.
"""

from math import prod

import torch
from torch import Tensor
from torch.nn.functional import linear, relu

from torchcaps.ops.backend import INTERPRETED, cannot_multiply, cannot_span_devices, is_exporting
from torchcaps.ops.convolution import MOST, MULTIPLE, in_bfloat16, padded, with_bias
from torchcaps.ops.convolution.triton_op import BLOCK, widest
from torchcaps.ops.gpus import tiles_on
from torchcaps.ops.kernel_op import kernel_op, launch
from torchcaps.ops.partial_sums import add_up
from torchcaps.ops.tiles import ceil_div, next_power_of_2

MOST_TAPS = 255  # values of a patch; the bias is one more
ROWS, CHANNELS = 32, 128  # of a tile
WARPS, STAGES = 8, 3


def refuses(images: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> str | None:
    """Say why the kernels cannot run these arguments, or None."""
    if bias is None or images.ndim != 4 or weight.ndim != 4 or images.shape[1] != weight.shape[1]:
        return "takes images [b c h w], a weight [k c y x] of as many channels, and a bias; give those"
    if reason := cannot_multiply(images) or cannot_span_devices((images, weight, bias)):
        return reason
    # on a GPU products of float32 would be rounded to TF32
    if not (in_bfloat16(images, weight) or (INTERPRETED and images.dtype == weight.dtype == torch.float32)):
        return f"computes in bfloat16, got {images.dtype} and {weight.dtype} without autocast to it; use autocast"
    if is_exporting():
        return "is for training, and torch.export asks for a program to run; leave out backend='triton'"
    if images.requires_grad and torch.is_grad_enabled():
        return "has no gradient of the images, and they want one; detach them"
    return _cannot_cut(images, weight, stride, padding)


def _cannot_cut(images: Tensor, weight: Tensor, stride: int, padding: int) -> str | None:
    """Say why there are no tiles for these shapes, or None."""
    if prod(weight.shape[1:]) > MOST_TAPS or len(weight) % BLOCK or len(weight) == 0:
        taken = f"patches of at most {MOST_TAPS} values, and a multiple of {BLOCK} filters"
        return f"takes {taken}, got a weight {list(weight.shape)}; use a smaller kernel, or another number of filters"
    sizes = zip(images.shape[2:], weight.shape[2:], strict=True)
    p, q = ((size + 2 * padding - kernel) // stride + 1 for size, kernel in sizes)
    if min(p, q) < 1 or not 0 < images.numel() < 2**31:
        return f"takes one image or more, as large as the kernel, got {list(images.shape)}; give others"
    if len(images) * p * q * _wide(prod(weight.shape[1:])) * 2 > MOST:
        return f"takes patches of at most {MOST:,} bytes together, got {list(images.shape)}; give fewer images"
    return None


class ConvRelu(torch.autograd.Function):
    """relu(patches @ filters) [n k], in the dtype of the patches [n wide]; they get no gradient.

    Patches end in a 1 for the bias, and zeros. Gradients of weight and bias are in their own dtypes, unrounded.
    """

    @staticmethod
    def forward(patches: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return relu(linear(patches, padded(with_bias(weight.flatten(1), bias)).to(patches.dtype)))

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        patches, weight, bias = inputs
        ctx.save_for_backward(output, patches)
        ctx.shape, ctx.dtypes = weight.shape, (weight.dtype, bias.dtype)

    @staticmethod
    def backward(ctx, grad):
        # contiguous here: a compiled program writes it so at once
        both = conv_relu_backward(grad.contiguous(), *ctx.saved_tensors)
        n_taps = prod(ctx.shape[1:])
        # laid out as the weight: else autograd copies it once more
        of_weight = both[:n_taps].t().contiguous().view(ctx.shape)
        return None, of_weight.to(ctx.dtypes[0]), both[n_taps].to(ctx.dtypes[1])


def _gradients(grad, maps, patches):
    return maps.new_empty((patches.shape[1], maps.shape[1]), dtype=torch.float32)


@kernel_op("torchcaps::conv_relu_backward", _gradients)
def conv_relu_backward(grad: Tensor, maps: Tensor, patches: Tensor) -> Tensor:
    """Compute the gradients of weight and bias from [n k], [n k] and [n wide], in float32: [wide k]."""
    from torchcaps.ops.conv_relu import triton_kernels as kernels

    grad, maps, patches = (x.contiguous() for x in (grad, maps, patches))
    (n, k), both = maps.shape, _gradients(grad, maps, patches)
    sizes = _sizes(patches.shape[1], k)
    programs = min(ceil_div(n, ROWS), tiles_on(grad.device).multiprocessors)
    partial = both.new_empty(programs, *both.shape)
    launch(kernels.conv_relu_gradients, (programs, k // sizes["BK"]))(
        grad, maps, patches, partial, n, **sizes, ROWS=ROWS, STAGES=STAGES, num_warps=WARPS
    )
    add_up(partial, both)
    return both


def _wide(n_taps: int) -> int:
    """Count the values of a row of patches: the taps, the bias and zeros, since rows of 16 bytes load fastest."""
    return ceil_div(n_taps + 1, MULTIPLE) * MULTIPLE


def _sizes(wide: int, k: int) -> dict[str, int]:
    """Choose the tiles; a product with many taps takes fewer channels, for it has to fit into shared memory."""
    taps = max(16, next_power_of_2(wide))
    return {"TAPS": taps, "WIDE": wide, "K": k, "BK": widest(k, min(CHANNELS, 128 * CHANNELS // taps))}


def _refuse_second(ctx, *grads):
    raise RuntimeError(
        "convolve_relu: the kernel has no second derivatives; leave it out with torchcaps.ops.without_kernels()"
    )


conv_relu_backward.register_autograd(_refuse_second)
