"""SiLU with sums as one kernel in each direction: the op that torch sees, and its launches.

The maps are read once and written once. Backward reads the maps and the gradient, and computes the activation again.
Partial sums are added in a fixed order, so that the same inputs give the same bits.
"""

import torch
from torch import Tensor

from torchcaps.ops.backend import cannot_run_kernels, cannot_span_devices
from torchcaps.ops.gpus import tiles_on
from torchcaps.ops.kernel_op import kernel_op, launch
from torchcaps.ops.partial_sums import add_up
from torchcaps.ops.tiles import ceil_div, next_power_of_2

MOST_CHANNELS = 256
VALUES = 2048  # of a tile: sixteen in a thread
WARPS, STAGES = 4, 3
PROGRAMS = 6  # on a multiprocessor


def refuses(maps: Tensor, bias: Tensor, centre: Tensor) -> str | None:
    """Say why the kernels cannot run these arguments, or None."""
    if reason := cannot_run_kernels(maps) or cannot_span_devices((maps, bias, centre)):
        return reason
    if maps.dtype not in (torch.float32, torch.bfloat16) or not bias.dtype == centre.dtype == torch.float32:
        kinds = f"{maps.dtype}, {bias.dtype} and {centre.dtype}"
        return f"takes maps in float32 or bfloat16, bias and centre in float32, got {kinds}; convert them"
    if maps.numel() == 0 or maps.shape[-1] > MOST_CHANNELS:
        return f"takes 1 to {MOST_CHANNELS} channels and one place at least, got {list(maps.shape)}; give another shape"
    return None


def _outputs(maps, bias, centre):
    return maps.new_empty(maps.shape), bias.new_empty((2, *bias.shape))


@kernel_op("torchcaps::silu_sums", _outputs)
def silu_sums(maps: Tensor, bias: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Compute silu(maps + bias) - centre [*b c], and its sums and sums of squares [2 c]."""
    from torchcaps.ops.silu_sums import triton_kernels as kernels

    maps, bias, centre = (x.contiguous() for x in (maps, bias, centre))
    out, sums = _outputs(maps, bias, centre)
    programs, n, sizes = _cut(maps)
    partial = sums.new_empty(programs, *sums.shape)
    launch(kernels.activate, (programs,))(maps, bias, centre, out, partial, n, **sizes, num_warps=WARPS)
    add_up(partial, sums)
    return out, sums


def _gradients(grad, grad_sums, maps, bias, centre):
    return maps.new_empty(maps.shape), bias.new_empty(bias.shape)


@kernel_op("torchcaps::silu_sums_backward", _gradients)
def silu_sums_backward(
    grad: Tensor, grad_sums: Tensor, maps: Tensor, bias: Tensor, centre: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of maps and bias."""
    from torchcaps.ops.silu_sums import triton_kernels as kernels

    grad, grad_sums, maps, bias, centre = (x.contiguous() for x in (grad, grad_sums, maps, bias, centre))
    out, total = _gradients(grad, grad_sums, maps, bias, centre)
    programs, n, sizes = _cut(maps)
    partial = total.new_empty(programs, *total.shape)
    given = grad, grad_sums, maps, bias, centre
    launch(kernels.activate_backward, (programs,))(*given, out, partial, n, **sizes, num_warps=WARPS)
    add_up(partial, total)
    return out, total


def _cut(maps: Tensor) -> tuple[int, int, dict[str, int]]:
    """Choose the number of programs and their tiles, and count the rows."""
    c = maps.shape[-1]
    columns, n = next_power_of_2(c), maps.numel() // c
    rows = VALUES // columns
    programs = min(ceil_div(n, rows), PROGRAMS * tiles_on(maps.device).multiprocessors)
    return programs, n, {"C": c, "BC": columns, "ROWS": rows, "STAGES": STAGES}


def _keep(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad, grad_sums):
    # contiguous here: a compiled program writes it so at once
    return *silu_sums_backward(grad.contiguous(), grad_sums, *ctx.saved_tensors), None


def _refuse_second(ctx, *grads):
    raise RuntimeError(
        "silu_with_sums: the kernel has no second derivatives; leave it out with torchcaps.ops.without_kernels()"
    )


silu_sums.register_autograd(_backward, setup_context=_keep)
silu_sums_backward.register_autograd(_refuse_second)
