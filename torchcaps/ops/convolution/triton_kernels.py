"""Kernels of the strided convolution. Memory: images [b h w c], weight [k y x c], output [b p q k]."""

import triton
import triton.language as tl


@triton.jit
def forward(
    images, weight, partial, n, q, stride, h, w, pixels,
    C: tl.constexpr, K: tl.constexpr, COLUMNS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    STEPS: tl.constexpr, ALL: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Compute one pixel of the output, BM images and BN channels.

    A program adds up STEPS of ALL steps, a step being BK channels of a tap. With SPLITS of 1 `partial` is the output.
    """
    pixel = tl.program_id(0)
    split, tile = tl.program_id(2) % SPLITS, tl.program_id(2) // SPLITS
    b = tile * BM + tl.arange(0, BM)
    k = tl.program_id(1) * BN + tl.arange(0, BN)
    c = tl.arange(0, BK)
    corner = (pixel // q * stride * w + pixel % q * stride) * C
    row = images + b.to(tl.int64)[:, None] * (h * w * C) + corner + c[None, :]
    taps: tl.constexpr = ALL * BK // C
    column = weight + k[None, :] * (taps * C) + c[:, None]
    total = tl.zeros((BM, BN), tl.float32)
    PER_TAP: tl.constexpr = C // BK
    for step in range(STEPS):
        at = split * STEPS + step
        tap = at // PER_TAP
        offset = (tap // COLUMNS * w + tap % COLUMNS) * C + at % PER_TAP * BK
        x = tl.load(row + offset, mask=(b < n)[:, None] & (at < ALL), other=0.0)
        y = tl.load(column + at * BK, mask=at < ALL, other=0.0)
        total = tl.dot(x, y, total)
    out = partial + ((split * n + b).to(tl.int64)[:, None] * pixels + pixel) * K + k[None, :]
    tl.store(out, total.to(partial.dtype.element_ty), mask=(b < n)[:, None])


@triton.jit
def add_up(partial, out, total, SPLITS: tl.constexpr, SIZE: tl.constexpr):
    """Sum the parts, in a fixed order."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    value = tl.zeros((SIZE,), tl.float32)
    for split in tl.static_range(SPLITS):
        value += tl.load(partial + split * total.to(tl.int64) + at, mask=at < total, other=0.0)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=at < total)


@triton.jit
def backward(
    grad, weight, out, order, n, h, w, p, q,
    C: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Sum, for one pixel (y, x) of the input, over the pixels (i, j) of the output that saw it.

    `order`: the pixels, those with the longest sums first, since programs start in the order of their numbers.
    """
    BLOCKS: tl.constexpr = C // BN
    blocks = BLOCKS * tl.cdiv(n, BM)
    pixel, part = tl.load(order + tl.program_id(0) // blocks), tl.program_id(0) % blocks
    y, x = pixel // w, pixel % w
    b = part // BLOCKS * BM + tl.arange(0, BM)
    c = part % BLOCKS * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    top, left = tl.maximum((y - ROWS) // STRIDE + 1, 0), tl.maximum((x - COLUMNS) // STRIDE + 1, 0)
    # integer division rounds towards zero, and below zero there is nothing
    top, left = tl.where(y < ROWS, 0, top), tl.where(x < COLUMNS, 0, left)
    down, across = tl.minimum(y // STRIDE + 1, p) - top, tl.minimum(x // STRIDE + 1, q) - left
    PER_TAP: tl.constexpr = K // BK
    row = grad + b.to(tl.int64)[:, None] * (p * q * K) + k[None, :]
    column = weight + k[:, None] * (ROWS * COLUMNS * C) + c[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(tl.maximum(down, 0) * tl.maximum(across, 0) * PER_TAP):
        seen, channels = step // PER_TAP, step % PER_TAP * BK
        i, j = top + seen // across, left + seen % across
        tap = (y - i * STRIDE) * COLUMNS + x - j * STRIDE
        g = tl.load(row + (i * q + j) * K + channels, mask=(b < n)[:, None], other=0.0)
        v = tl.load(column + channels * (ROWS * COLUMNS * C) + tap * C)
        total = tl.dot(g, v, total)
    at = out + (b.to(tl.int64)[:, None] * (h * w) + pixel) * C + c[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=(b < n)[:, None])
