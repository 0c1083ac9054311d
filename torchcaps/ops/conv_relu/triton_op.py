"""A first convolution with ReLU, as one kernel in each direction: the op that torch sees, and its launches.

For the first layer of a network: the images want no gradient and get none. Patches and the gradient before the ReLU are
never written: they are 9 and 26 MB in CapsNet at batch 128. Backward leaves partial sums, which are added in a fixed
order.
"""

from math import prod

import torch
from torch import Tensor

from torchcaps.ops.backend import INTERPRETED, cannot_multiply, cannot_span_devices, is_exporting
from torchcaps.ops.convolution import in_bfloat16
from torchcaps.ops.convolution.triton_op import BLOCK, widest
from torchcaps.ops.gpus import tiles_on
from torchcaps.ops.kernel_op import kernel_op, launch
from torchcaps.ops.partial_sums import add_up
from torchcaps.ops.tiles import ceil_div, next_power_of_2

MOST_TAPS = 255  # values of a patch; the bias is one more
FORWARD = {"ROWS": 64, "STAGES": 2, "num_warps": 8}
BACKWARD = {"ROWS": 32, "STAGES": 3, "num_warps": 8}
CHANNELS = 128  # of a tile
MOST = 2**31 - 1  # places, and values of the images: they are counted in 32 bits


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
    sizes = [size + 2 * padding for size in images.shape[2:]]
    if min(_places(sizes, weight, stride)) < 1 or not images.numel():
        return f"takes one image or more, as large as the kernel, got {list(images.shape)}; give others"
    if max(prod(images.shape[:2]) * prod(sizes), len(images) * prod(_places(sizes, weight, stride))) > MOST:
        return f"takes images of at most {MOST:,} values and places together, got {list(images.shape)}; give fewer"
    return None


def _places(sizes: list[int] | torch.Size, weight: Tensor, stride: int) -> list[int]:
    """Count rows and columns of the maps of images of such sizes."""
    return [(size - kernel) // stride + 1 for size, kernel in zip(sizes, weight.shape[2:], strict=True)]


def _maps(images, weight, bias, stride, low):
    places = _places(images.shape[2:], weight, stride)
    return images.new_empty(len(images), *places, len(weight), dtype=torch.bfloat16 if low else images.dtype)


@kernel_op("torchcaps::conv_relu", _maps)
def conv_relu(images: Tensor, weight: Tensor, bias: Tensor, stride: int, low: bool) -> Tensor:
    """Compute relu(convolution + bias), [b p q k]; `low`: in bfloat16, to which all inputs are rounded."""
    from torchcaps.ops.conv_relu import triton_kernels as kernels

    images, weight, bias = (x.contiguous() for x in (images, weight, bias))
    maps = _maps(images, weight, bias, stride, low)
    programs, numbers, sizes = _cut(images, weight, maps.shape[1:3], stride, FORWARD)
    launch(kernels.conv_relu_forward, programs)(images, weight, bias, maps, *numbers, **sizes)
    return maps


def _gradients(grad, maps, images, weight, stride):
    return weight.new_empty((prod(weight.shape[1:]) + 1, len(weight)), dtype=torch.float32)


@kernel_op("torchcaps::conv_relu_backward", _gradients)
def conv_relu_backward(grad: Tensor, maps: Tensor, images: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Compute the gradients of weight and bias in float32, [taps + 1, k] together; the values of weight are not read."""
    from torchcaps.ops.conv_relu import triton_kernels as kernels

    grad, maps, images = (x.contiguous() for x in (grad, maps, images))
    both = _gradients(grad, maps, images, weight, stride)
    programs, numbers, sizes = _cut(images, weight, maps.shape[1:3], stride, BACKWARD)
    partial = both.new_empty(programs[0], *both.shape)
    launch(kernels.conv_relu_gradients, programs)(grad, maps, images, partial, *numbers, **sizes)
    add_up(partial, both)
    return both


def _cut(
    images: Tensor, weight: Tensor, places: torch.Size, stride: int, sizes: dict[str, int]
) -> tuple[tuple[int, int], tuple[int, ...], dict[str, int]]:
    """Choose the grid of programs; return the kernels' numbers and sizes, too."""
    k, c, rows, columns = weight.shape
    n = len(images) * prod(places)
    taps = max(16, next_power_of_2(c * rows * columns + 1))  # a product's least step
    # a product with many taps takes fewer channels, for it has to fit into shared memory
    block = widest(k, min(CHANNELS, 128 * CHANNELS // taps))
    programs = min(ceil_div(n, sizes["ROWS"]), tiles_on(images.device).multiprocessors), k // block
    sizes = sizes | {"C": c, "Y": rows, "X": columns, "TAPS": taps, "K": k, "BK": block}
    return programs, (n, *images.shape[2:], *places, stride), sizes


def _keep(ctx, inputs, output) -> None:
    images, weight, bias, ctx.stride, _ = inputs
    ctx.save_for_backward(output, images, weight)
    ctx.dtype = bias.dtype


def _backward(ctx, grad):
    maps, images, weight = ctx.saved_tensors
    # contiguous here: a compiled program writes it so at once
    both = conv_relu_backward(grad.contiguous(), maps, images, weight, ctx.stride)
    # laid out as the weight: else autograd copies it once more
    of_weight = both[:-1].t().contiguous().view(weight.shape)
    return None, of_weight.to(weight.dtype), both[-1].to(ctx.dtype), None, None


def _refuse_second(ctx, *grads):
    raise RuntimeError(
        "convolve_relu: the kernel has no second derivatives; leave it out with torchcaps.ops.without_kernels()"
    )


conv_relu.register_autograd(_backward, setup_context=_keep)
conv_relu_backward.register_autograd(_refuse_second)
