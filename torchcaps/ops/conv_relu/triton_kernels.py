"""Kernel of the gradient of a first convolution with ReLU. Memory: gradient and maps [n k], patches [n wide].

The bias is the weight of a further value of every patch, which is 1: its gradient comes with that of the weight.
"""

import triton
import triton.language as tl


@triton.jit
def conv_relu_gradients(
    grad, maps, patches, partial, n,
    TAPS: tl.constexpr, WIDE: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute this program's part of the gradients of weight and bias, [wide k] together."""
    k, tap = tl.program_id(1) * BK + tl.arange(0, BK), tl.arange(0, TAPS)
    total = tl.zeros((TAPS, BK), tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)
        there = (row < n)[:, None]
        at = row.to(tl.int64)[:, None] * K + k[None, :]
        g, x = tl.load(grad + at, mask=there, other=0.0), tl.load(maps + at, mask=there, other=0.0)
        columns = there & (tap < WIDE)[None, :]
        seen = tl.load(patches + row[:, None] * WIDE + tap[None, :], mask=columns, other=0.0)
        g = tl.where(x.to(tl.float32) <= 0.0, 0.0, g.to(tl.float32)).to(patches.dtype.element_ty)
        total = tl.dot(tl.trans(seen), g, total)
    found = partial + tl.program_id(0) * (WIDE * K) + tap[:, None] * K + k[None, :]
    tl.store(found, total, mask=(tap < WIDE)[:, None])
