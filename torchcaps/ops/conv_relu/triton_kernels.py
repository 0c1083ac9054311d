"""Kernels of a first convolution with ReLU. Memory: images [b c h w], weight [k taps], maps and their gradient [n k].

The bias is the weight of a further value of every patch, which is 1: its gradient comes with that of the weight.
"""

import triton
import triton.language as tl

from torchcaps.ops.convolution.triton_patches import gather


@triton.jit
def with_ones(images, row, tap, n, h, w, p, q, stride, C: tl.constexpr, Y: tl.constexpr, X: tl.constexpr):
    """Load patches [taps rows], with the 1 of the bias behind the last tap."""
    found = gather(images, row, tap, n, h, w, p, q, stride, C, Y, X)
    return tl.where((tap == C * Y * X)[:, None], 1.0, found)


@triton.jit
def conv_relu_forward(
    images, weight, bias, maps, n, h, w, p, q, stride,
    C: tl.constexpr, Y: tl.constexpr, X: tl.constexpr, TAPS: tl.constexpr, K: tl.constexpr, BK: tl.constexpr,
    ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute relu(convolution + bias) of every place that is this program's."""
    k, tap = tl.program_id(1) * BK + tl.arange(0, BK), tl.arange(0, TAPS)
    known = (tap < C * Y * X)[:, None]
    filters = tl.load(weight + k[None, :] * (C * Y * X) + tap[:, None], mask=known, other=0.0)
    filters = tl.where((tap == C * Y * X)[:, None], tl.load(bias + k)[None, :], filters).to(maps.dtype.element_ty)
    for tile in tl.range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)
        patches = with_ones(images, row, tap, n, h, w, p, q, stride, C, Y, X).to(maps.dtype.element_ty)
        x = tl.dot(tl.trans(patches), filters)
        x = tl.where(x <= 0.0, 0.0, x).to(maps.dtype.element_ty)  # NaN stays
        tl.store(maps + row.to(tl.int64)[:, None] * K + k[None, :], x, mask=(row < n)[:, None])


@triton.jit
def conv_relu_gradients(
    grad, maps, images, partial, n, h, w, p, q, stride,
    C: tl.constexpr, Y: tl.constexpr, X: tl.constexpr, TAPS: tl.constexpr, K: tl.constexpr, BK: tl.constexpr,
    ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute this program's part of the gradients of weight and bias, [taps + 1, k] together."""
    k, tap = tl.program_id(1) * BK + tl.arange(0, BK), tl.arange(0, TAPS)
    total = tl.zeros((TAPS, BK), tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)
        there = (row < n)[:, None]
        at = row.to(tl.int64)[:, None] * K + k[None, :]
        g, x = tl.load(grad + at, mask=there, other=0.0), tl.load(maps + at, mask=there, other=0.0)
        g = tl.where(x.to(tl.float32) <= 0.0, 0.0, g.to(tl.float32)).to(maps.dtype.element_ty)
        patches = with_ones(images, row, tap, n, h, w, p, q, stride, C, Y, X).to(maps.dtype.element_ty)
        total = tl.dot(patches, g, total)
    found = partial + tl.program_id(0) * ((C * Y * X + 1) * K) + tap[:, None] * K + k[None, :]
    tl.store(found, total, mask=(tap <= C * Y * X)[:, None])
