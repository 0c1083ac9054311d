"""Kernels of SiLU with sums. Memory: maps [n c], n being every place of every image.

Programs stay and walk over the rows, so that sums are kept in registers and a few hundred partial ones are left.
"""

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def activate(
    maps, bias, centre, out, partial, n,
    C: tl.constexpr, BC: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute silu(maps + bias) - centre of every row that is this program's, and their sums and sums of squares."""
    c = tl.arange(0, BC)
    shift = tl.load(bias + c, mask=c < C, other=0.0)
    middle = tl.load(centre + c, mask=c < C, other=0.0)
    first, second = tl.zeros((ROWS, BC), tl.float32), tl.zeros((ROWS, BC), tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)
        there = (row < n)[:, None] & (c < C)[None, :]
        at = row.to(tl.int64)[:, None] * C + c[None, :]
        x = tl.load(maps + at, mask=there, other=0.0).to(tl.float32) + shift[None, :]
        value = (x * sigmoid(x) - middle[None, :]).to(out.dtype.element_ty)
        tl.store(out + at, value, mask=there)
        value = tl.where(there, value.to(tl.float32), 0.0)
        first += value
        second += value * value
    sums = partial + tl.program_id(0) * (2 * C) + c
    tl.store(sums, tl.sum(first, 0), mask=c < C)
    tl.store(sums + C, tl.sum(second, 0), mask=c < C)


@triton.jit
def activate_backward(
    grad, grad_sums, maps, bias, centre, out, partial, n,
    C: tl.constexpr, BC: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the maps for every row that is this program's, and its sums, the bias's gradient."""
    c = tl.arange(0, BC)
    shift = tl.load(bias + c, mask=c < C, other=0.0)
    middle = tl.load(centre + c, mask=c < C, other=0.0)
    slope = tl.load(grad_sums + c, mask=c < C, other=0.0)
    twice = 2.0 * tl.load(grad_sums + C + c, mask=c < C, other=0.0)
    total = tl.zeros((ROWS, BC), tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)
        there = (row < n)[:, None] & (c < C)[None, :]
        at = row.to(tl.int64)[:, None] * C + c[None, :]
        x = tl.load(maps + at, mask=there, other=0.0).to(tl.float32) + shift[None, :]
        g = tl.load(grad + at, mask=there, other=0.0).to(tl.float32)
        gate = sigmoid(x)
        value = x * gate
        seen = (
            (value - middle[None, :]).to(out.dtype.element_ty).to(tl.float32)
        )  # the sums are those of the rounded values
        g = (g + slope[None, :] + seen * twice[None, :]) * (gate + value * (1.0 - gate))
        g = g.to(out.dtype.element_ty)
        tl.store(out + at, g, mask=there)
        # rounded, too: the gradient through the sums then cancels what the convolution's gradient has of it
        total += tl.where(there, g.to(tl.float32), 0.0)
    tl.store(partial + tl.program_id(0) * C + c, tl.sum(total, 0), mask=c < C)
