"""Sums over all programs of a kernel, which leave a row each: in a fixed order, so same inputs give the same bits."""

from torch import Tensor

from torchcaps.ops.kernel_op import launch
from torchcaps.ops.tiles import ceil_div

ROWS, COLUMNS = 64, 16  # of a tile


def add_up(partial: Tensor, out: Tensor) -> None:
    """Sum the rows of `partial` into `out`."""
    from torchcaps.ops.partial_sums import triton_kernels as kernels

    grid = (ceil_div(out.numel(), COLUMNS),)
    launch(kernels.add_partial, grid)(partial, out, len(partial), out.numel(), ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4)
