"""A first convolution with ReLU, as one kernel in each direction: the ops that torch sees, and their launches.

For the first layer of a network: the images want no gradient and get none. No patches are written, but stripes, which
hold what a place sees of one row: 2 MB in CapsNet at batch 128, where patches are 9. The gradient before the ReLU,
26 MB there, is not written either. Backward leaves partial sums, which are added in a fixed order.
"""

from math import prod

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from torchcaps.ops.backend import INTERPRETED, cannot_multiply, cannot_span_devices, is_exporting
from torchcaps.ops.convolution import in_bfloat16
from torchcaps.ops.convolution.triton_op import BLOCK, widest
from torchcaps.ops.gpus import tiles_on
from torchcaps.ops.kernel_op import kernel_op, launch
from torchcaps.ops.partial_sums import add_up
from torchcaps.ops.tiles import ceil_div, next_power_of_2

WIDEST = 64  # values of a stripe
MOST_VALUES = 256  # of a product backward
MOST = 2**31 - 1  # values that are counted in 32 bits
FORWARD = {"ROWS": 64, "STAGES": 3, "num_warps": 4}
BACKWARD = {"ROWS": 32, "STAGES": 3, "num_warps": 8}
CHANNELS = 128  # of a tile


def refuses(images: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> str | None:
    """Say why the kernels cannot run these arguments, or None."""
    fits = bias is not None and images.ndim == weight.ndim == 4 and images.shape[1] == weight.shape[1]
    if not fits or bias.shape != weight.shape[:1]:
        came = ", ".join("none" if part is None else f"{list(part.shape)}" for part in (images, weight, bias))
        return f"takes images [b c h w], a weight [k c y x] of as many channels and a bias [k], got {came}; give those"
    if not isinstance(stride, int) or stride < 1:
        return f"takes one stride of at least 1 for both axes, got {stride}; give that"
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
    k, c, rows, columns = weight.shape
    wide = _wide(c * columns)
    if k % BLOCK or k == 0 or wide > WIDEST:
        taken = f"a multiple of {BLOCK} filters of at most {WIDEST - 1} values in a row"
        return f"takes {taken}, got a weight {list(weight.shape)}; use a smaller kernel, or another number of filters"
    if _main(rows) * wide > MOST_VALUES:
        taken = f"filters of at most {2 * MOST_VALUES // wide - 1} rows of so many values"
        return f"takes {taken}, got a weight {list(weight.shape)}; use a smaller kernel"
    h, w = (size + 2 * padding for size in images.shape[2:])
    p, q = (h - rows) // stride + 1, (w - columns) // stride + 1
    if min(p, q) < 1 or not images.numel():
        return f"takes one image or more, as large as the kernel, got {list(images.shape)}; give others"
    if len(images) * h * q * wide > MOST:
        return f"takes stripes of at most {MOST:,} values together, got {list(images.shape)}; give fewer images"
    return None


def _wide(n: int) -> int:
    """Count the values of a stripe: what a place sees of a row, the 1 of the bias, and zeros."""
    return max(16, next_power_of_2(n + 1))  # a product's least step


def _main(rows: int) -> int:
    """Count the rows of a kernel that are one product backward: the largest power of two."""
    return next_power_of_2(rows + 1) // 2


class ConvRelu(torch.autograd.Function):
    """relu(convolution + bias) [b p q k], in the dtype of the stripes; they get no gradient.

    Gradients of weight and bias are in their own dtypes, unrounded.
    """

    @staticmethod
    def forward(stripes: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
        return conv_relu(stripes, filters_of(weight, bias, stripes.shape[-1]).to(stripes.dtype), stride)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        stripes, weight, bias, ctx.stride = inputs
        ctx.save_for_backward(output, stripes)
        ctx.shape, ctx.dtypes = weight.shape, (weight.dtype, bias.dtype)

    @staticmethod
    def backward(ctx, grad):
        _, c, rows, columns = ctx.shape
        # contiguous here: a compiled program writes it so at once
        both = conv_relu_backward(grad.contiguous(), *ctx.saved_tensors, rows, c * columns + 1, ctx.stride)
        # laid out as the weight mostly is: else autograd copies it once more
        of_weight = rearrange(both[:, :-1], "y (c x) k -> k c y x", c=c).contiguous()
        return None, of_weight.to(ctx.dtypes[0]), both[0, -1].to(ctx.dtypes[1]), None


def stripes_of(
    images: Float[Tensor, "b c h w"], columns: int, stride: int, dtype: torch.dtype
) -> Float[Tensor, "b h q wide"]:
    """Write out what every place sees of every row, with the 1 of the bias; compiled, it is one small kernel."""
    seen = rearrange(images.unfold(3, columns, stride), "b c h q x -> b h q (c x)")
    n = seen.shape[-1]
    return pad(pad(seen, (0, 1), value=1.0), (0, _wide(n) - n - 1)).to(dtype)


def filters_of(weight: Float[Tensor, "k c y x"], bias: Float[Tensor, "k"], wide: int) -> Float[Tensor, "y wide k"]:
    """Lay out the filters as stripes are; the bias is the weight of the 1 in a kernel's first row."""
    rows = rearrange(weight, "k c y x -> y (c x) k")
    last = pad(bias[None, None], (0, 0, 0, 0, 0, len(rows) - 1))
    both = torch.cat([rows, last], 1)
    return pad(both, (0, 0, 0, wide - both.shape[1]))


def _maps(stripes, filters, stride):
    n, h, q, _ = stripes.shape
    return stripes.new_empty(n, (h - len(filters)) // stride + 1, q, filters.shape[-1])


@kernel_op("torchcaps::conv_relu", _maps)
def conv_relu(stripes: Tensor, filters: Tensor, stride: int) -> Tensor:
    """Compute relu(stripes x filters), [b h q wide] and [y wide k], added up over the rows: [b p q k]."""
    from torchcaps.ops.conv_relu import triton_kernels as kernels

    stripes, filters = stripes.contiguous(), filters.contiguous()
    maps = _maps(stripes, filters, stride)
    (_, h, q, wide), (rows, _, k) = stripes.shape, filters.shape
    n, block = prod(maps.shape[:3]), widest(k, CHANNELS)
    launch(kernels.conv_relu_forward, (ceil_div(n, FORWARD["ROWS"]), k // block))(
        stripes, filters, maps, n, h, maps.shape[1], q, stride, Y=rows, WIDE=wide, K=k, BK=block, **FORWARD
    )
    return maps


def _gradients(grad, maps, stripes, rows, used, stride):
    return maps.new_empty((rows, used, maps.shape[-1]), dtype=torch.float32)


@kernel_op("torchcaps::conv_relu_backward", _gradients)
def conv_relu_backward(grad: Tensor, maps: Tensor, stripes: Tensor, rows: int, used: int, stride: int) -> Tensor:
    """Compute the gradient of the filters in float32, [y used k]: their `rows`, and what is `used` of a stripe."""
    from torchcaps.ops.conv_relu import triton_kernels as kernels

    grad, maps, stripes = (x.contiguous() for x in (grad, maps, stripes))
    found = _gradients(grad, maps, stripes, rows, used, stride)
    (_, h, q, wide), (_, p, _, k) = stripes.shape, maps.shape
    n, main = prod(maps.shape[:3]), _main(rows)
    # a product with many values takes fewer channels, for it has to fit into shared memory
    block = widest(k, min(CHANNELS, 128 * CHANNELS // (main * wide)))
    programs = min(ceil_div(n, BACKWARD["ROWS"]), tiles_on(grad.device).multiprocessors)
    partial = found.new_empty(programs, *found.shape)
    launch(kernels.conv_relu_gradients, (programs, k // block))(
        grad, maps, stripes, partial, n, h, p, q, stride,
        MAIN=main, REST=next_power_of_2(max(rows - main, 1)), Y=rows, WIDE=wide, USED=used, K=k, BK=block,
        **BACKWARD,
    )  # fmt: skip
    add_up(partial, found)
    return found


def _refuse_second(ctx, *grads):
    raise RuntimeError(
        "convolve_relu: the kernel has no second derivatives; leave it out with torchcaps.ops.without_kernels()"
    )


conv_relu_backward.register_autograd(_refuse_second)
