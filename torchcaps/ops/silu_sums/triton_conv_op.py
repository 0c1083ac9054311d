"""A convolution of few channels with SiLU and sums, as one kernel in each direction: the op, and its launches.

For the first layer of a network: the images want no gradient and get none. Patches, maps before SiLU and their
gradient are never written.
"""

from math import prod

import torch
from torch import Tensor

from torchcaps.ops.backend import INTERPRETED, cannot_run_kernels, cannot_span_devices
from torchcaps.ops.gpus import tiles_on
from torchcaps.ops.kernel_op import kernel_op, launch
from torchcaps.ops.partial_sums import add_up
from torchcaps.ops.tiles import ceil_div, next_power_of_2

MOST_TAPS = 64  # values of a patch: one step of the product
CHANNELS = 16, 32, 64
ROWS = 64
STAGES = 3
FORWARD, BACKWARD = 16, 12  # warps on a multiprocessor, by their registers


def refuses(images: Tensor, weight: Tensor, bias: Tensor, centre: Tensor, stride: int) -> str | None:
    """Say why the kernels cannot run these arguments, or None."""
    if reason := cannot_run_kernels(images) or cannot_span_devices((images, weight, bias, centre)):
        return reason
    # on a GPU products of float32 would be rounded to TF32
    if not (images.dtype == weight.dtype == torch.bfloat16 or INTERPRETED):
        return f"takes images and weight in bfloat16, got {images.dtype} and {weight.dtype}; convert them"
    if not bias.dtype == centre.dtype == torch.float32:
        return f"takes bias and centre in float32, got {bias.dtype} and {centre.dtype}; convert them"
    if prod(weight.shape[1:]) > MOST_TAPS or len(weight) not in CHANNELS:
        taken = f"patches of at most {MOST_TAPS} values and {CHANNELS} channels"
        return f"takes {taken}, got {list(weight.shape)}; give another weight"
    if min(_places(images, weight, stride)) < 1:
        return f"takes images as large as the kernel at least, got {list(images.shape)}; give larger ones"
    if not 0 < images.numel() < 2**31:
        return f"takes images of 1 to 2^31 values, got {images.numel():,}; give fewer"
    if images.requires_grad and torch.is_grad_enabled():
        return "has no gradient of the images, and they want one; detach them"
    return None


def _outputs(images, weight, bias, centre, stride):
    return images.new_empty(len(images), *_places(images, weight, stride), len(weight)), bias.new_empty(2, len(weight))


@kernel_op("torchcaps::conv_silu_sums", _outputs)
def conv_silu_sums(images: Tensor, weight: Tensor, bias: Tensor, centre: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """Compute silu(convolution + bias) - centre [b p q k], and its sums and sums of squares [2 k]."""
    from torchcaps.ops.silu_sums import triton_conv_kernels as kernels

    tensors = [x.contiguous() for x in (images, weight, bias, centre)]
    out, sums = _outputs(*tensors, stride)
    programs, numbers, sizes = _cut(FORWARD, images, weight, out.shape[1:3], stride)
    partial = sums.new_empty(programs, *sums.shape)
    launch(kernels.convolve_activate, (programs,))(*tensors, out, partial, *numbers, **sizes)
    add_up(partial, sums)
    return out, sums


def _gradients(grad, grad_sums, images, weight, bias, centre, stride):
    return bias.new_empty(len(weight), prod(weight.shape[1:]) + 1)


@kernel_op("torchcaps::conv_silu_sums_backward", _gradients)
def conv_silu_sums_backward(
    grad: Tensor, grad_sums: Tensor, images: Tensor, weight: Tensor, bias: Tensor, centre: Tensor, stride: int
) -> Tensor:
    """Compute the gradients of weight and bias in float32, side by side: [k taps + 1]."""
    from torchcaps.ops.silu_sums import triton_conv_kernels as kernels

    tensors = [x.contiguous() for x in (grad, grad_sums, images, weight, bias, centre)]
    both = _gradients(*tensors, stride)
    programs, numbers, sizes = _cut(BACKWARD, images, weight, grad.shape[1:3], stride)
    partial = both.new_empty(programs, *both.shape)
    launch(kernels.convolve_activate_backward, (programs,))(*tensors, partial, *numbers, **sizes)
    add_up(partial, both)
    return both


def _places(images: Tensor, weight: Tensor, stride: int) -> tuple[int, int]:
    (h, w), (rows, columns) = images.shape[2:], weight.shape[2:]
    return (h - rows) // stride + 1, (w - columns) // stride + 1


def _cut(
    warps: int, images: Tensor, weight: Tensor, places: tuple[int, int], stride: int
) -> tuple[int, tuple[int, ...], dict[str, int]]:
    """Choose the number of programs; return the kernels' sizes, too."""
    k, c, rows, columns = weight.shape
    n = len(images) * places[0] * places[1]
    tiles = tiles_on(images.device)
    programs = min(ceil_div(n, ROWS), warps // tiles.wide_warps * tiles.multiprocessors)
    taps = max(16, next_power_of_2(c * rows * columns))  # a product's least step
    sizes = {"C": c, "Y": rows, "X": columns, "TAPS": taps, "K": k, "ROWS": ROWS, "STAGES": STAGES}
    return programs, (n, *images.shape[2:], *places, stride), sizes | {"num_warps": tiles.wide_warps}


def _keep(ctx, inputs, output) -> None:
    *tensors, ctx.stride = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx, grad, grad_sums):
    images, weight, bias, centre = ctx.saved_tensors
    # contiguous here: a compiled program writes it so at once
    both = conv_silu_sums_backward(grad.contiguous(), grad_sums, images, weight, bias, centre, ctx.stride)
    return None, both[:, :-1].reshape(weight.shape).to(weight.dtype), both[:, -1], None, None


def _refuse_second(ctx, *grads):
    raise RuntimeError(
        "conv_silu_with_sums: the kernel has no second derivatives; leave it out with torchcaps.ops.without_kernels()"
    )


conv_silu_sums.register_autograd(_backward, setup_context=_keep)
conv_silu_sums_backward.register_autograd(_refuse_second)
