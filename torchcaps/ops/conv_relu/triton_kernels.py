"""Kernels of a first convolution with ReLU. Memory: stripes [b h q wide], filters [y wide k], maps and gradient [n k].

A stripe holds what a place sees of one row of its image: all channels and columns of the kernel, a 1 for the bias, and
zeros. Stripes of neighbouring places lie together, so a product loads them as they are, one row of the kernel a step.
"""

import triton
import triton.language as tl


@triton.jit
def corner_of(row, h, p, q, stride, WIDE: tl.constexpr):
    """Compute the offset of the first stripe that each place sees."""
    place = row % (p * q)
    return ((row // (p * q) * h + place // q * stride) * q + place % q) * WIDE


@triton.jit
def conv_relu_forward(
    stripes, filters, maps, n, h, p, q, stride,
    Y: tl.constexpr, WIDE: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute relu(convolution + bias) of a tile of places and channels."""
    row, at = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDE)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    seen = stripes + corner_of(tl.minimum(row, n - 1), h, p, q, stride, WIDE)[:, None] + at[None, :]
    weights = filters + at[:, None] * K + k[None, :]
    x = tl.zeros((ROWS, BK), tl.float32)
    for y in tl.range(Y, num_stages=STAGES):
        x = tl.dot(tl.load(seen + y * (q * WIDE)), tl.load(weights + y * (WIDE * K)), x)
    x = tl.where(x <= 0.0, 0.0, x).to(maps.dtype.element_ty)  # NaN stays
    tl.store(maps + row.to(tl.int64)[:, None] * K + k[None, :], x, mask=(row < n)[:, None])


@triton.jit
def conv_relu_gradients(
    grad, maps, stripes, partial, n, h, p, q, stride,
    MAIN: tl.constexpr, REST: tl.constexpr, Y: tl.constexpr, WIDE: tl.constexpr, USED: tl.constexpr, K: tl.constexpr,
    BK: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute this program's part of the gradient of the filters, [y used k], without the zeros of a stripe.

    MAIN rows of the kernel are one product; REST, the power of two that covers those left, are another.
    """
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    first, second = tl.arange(0, MAIN * WIDE), MAIN * WIDE + tl.arange(0, REST * WIDE)
    total, left = tl.zeros((MAIN * WIDE, BK), tl.float32), tl.zeros((REST * WIDE, BK), tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)
        there = (row < n)[:, None]
        at = row.to(tl.int64)[:, None] * K + k[None, :]
        g, x = tl.load(grad + at, mask=there, other=0.0), tl.load(maps + at, mask=there, other=0.0)
        g = tl.where(x.to(tl.float32) <= 0.0, 0.0, g.to(tl.float32)).to(stripes.dtype.element_ty)
        corner = stripes + corner_of(row, h, p, q, stride, WIDE)[:, None]
        seen = tl.load(corner + (first // WIDE * (q * WIDE) + first % WIDE)[None, :], mask=there, other=0.0)
        total = tl.dot(tl.trans(seen), g, total)
        if Y > MAIN:
            known = there & (second < Y * WIDE)[None, :]
            seen = tl.load(corner + (second // WIDE * (q * WIDE) + second % WIDE)[None, :], mask=known, other=0.0)
            left = tl.dot(tl.trans(seen), g, left)
    found = partial + tl.program_id(0).to(tl.int64) * (Y * USED * K) + k[None, :]
    used = (first % WIDE < USED)[:, None]
    tl.store(found + (first // WIDE * USED + first % WIDE)[:, None] * K, total, mask=used)
    if Y > MAIN:
        used = ((second % WIDE < USED) & (second < Y * WIDE))[:, None]
        tl.store(found + (second // WIDE * USED + second % WIDE)[:, None] * K, left, mask=used)
