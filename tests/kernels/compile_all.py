"""Compile every kernel for the H200, with `more` in every form; print their names. Run without TRITON_INTERPRET."""

import sys

import torch
from ahead import compiled_instead_of_run

from torchcaps.ops.convolution import triton_op as convolution_op
from torchcaps.ops.dynamic import triton_op as dynamic_op


def dynamic(
    dtype: torch.dtype,
    weight: tuple[int, ...],
    batch: int = 128,
    n_in: int = 1152,
    n_iters: int = 3,
    leaky: bool = False,
) -> None:
    weight = torch.zeros(weight)
    *_, n_out, d_in, d_out = weight.shape
    poses, bias = torch.zeros(batch, n_in, d_in, dtype=dtype), torch.zeros(n_out, d_out)
    low = dtype == torch.bfloat16
    outputs = dynamic_op.route(poses, weight, bias, n_out, n_iters, leaky, low)
    dynamic_op.route_backward(outputs[0], None, poses, weight, *outputs[2:], leaky, True)


def convolve() -> None:
    images, weight = (
        torch.zeros(128, 20, 20, 256, dtype=torch.bfloat16),
        torch.zeros(256, 9, 9, 256, dtype=torch.bfloat16),
    )
    maps = convolution_op.convolve_strided(images, weight, 2)
    convolution_op.convolve_strided_backward(maps, weight, images, 2)


def some() -> None:
    """Every kernel once."""
    dynamic(torch.bfloat16, (1152, 10, 8, 16))
    convolve()


def more() -> None:
    """Every form that a benched shape takes, every rule, wide poses of all kinds with the widest tiles."""
    dynamic(torch.float32, (32, 10, 8, 16))
    dynamic(torch.float32, (1152, 10, 8, 16), batch=1)
    for dtype in (torch.float32, torch.bfloat16):
        dynamic(dtype, (33, 7, 64, 64), batch=70, n_in=33)
        dynamic(dtype, (7, 33, 64), batch=70, n_in=33)
        dynamic(dtype, (33, 7, 1, 64), batch=70, n_in=33)
        dynamic(dtype, (1152, 200, 8, 16), batch=32)
        dynamic(dtype, (32, 200, 8, 16), batch=32, n_in=10_816)
    dynamic(torch.bfloat16, (1152, 10, 8, 16), n_iters=1, leaky=True)
    dynamic(torch.bfloat16, (1152, 10, 8, 16), n_iters=2)


if __name__ == "__main__":
    with compiled_instead_of_run() as names:
        some()
        if "more" in sys.argv:
            more()
    sys.stdout.write(" ".join(sorted(set(names))))
