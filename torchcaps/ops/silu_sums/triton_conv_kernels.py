"""Kernels of a convolution of few channels with SiLU and sums. Memory: images [b c h w], weight [k taps], maps [n k].

The maps before SiLU exist in registers alone: backward computes them again from the images, which are small.
"""

import triton
import triton.language as tl

from torchcaps.ops.silu_sums.triton_kernels import sigmoid


@triton.jit
def gather(images, row, tap, n, h, w, p, q, stride, C: tl.constexpr, Y: tl.constexpr, X: tl.constexpr):
    """Load patches [taps rows]; neighbouring threads take neighbouring places, which lie together in memory."""
    place = row % (p * q)
    corner = row // (p * q) * (C * h * w) + place // q * stride * w + place % q * stride
    at = tap // (Y * X) * (h * w) + tap % (Y * X) // X * w + tap % X
    there = (tap < C * Y * X)[:, None] & (row < n)[None, :]
    return tl.load(images + at[:, None] + corner[None, :], mask=there, other=0.0)


@triton.jit
def convolve_activate(
    images, weight, bias, centre, out, partial, n, h, w, p, q, stride,
    C: tl.constexpr, Y: tl.constexpr, X: tl.constexpr, TAPS: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute silu(convolution + bias) - centre of every place that is this program's, and the sums of it."""
    k, tap = tl.arange(0, K), tl.arange(0, TAPS)
    filters = tl.load(weight + k[:, None] * (C * Y * X) + tap[None, :], mask=(tap < C * Y * X)[None, :], other=0.0)
    shift, middle = tl.load(bias + k)[:, None], tl.load(centre + k)[:, None]
    first, second = tl.zeros((K,), tl.float32), tl.zeros((K,), tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)
        there = (row < n)[None, :]
        x = tl.dot(filters, gather(images, row, tap, n, h, w, p, q, stride, C, Y, X)) + shift
        value = (x * sigmoid(x) - middle).to(out.dtype.element_ty)
        tl.store(out + row.to(tl.int64)[None, :] * K + k[:, None], value, mask=there)
        value = tl.where(there, value.to(tl.float32), 0.0)
        first += tl.sum(value, 1)
        second += tl.sum(value * value, 1)
    sums = partial + tl.program_id(0) * (2 * K) + k
    tl.store(sums, first)
    tl.store(sums + K, second)


@triton.jit
def convolve_activate_backward(
    grad, grad_sums, images, weight, bias, centre, partial, n, h, w, p, q, stride,
    C: tl.constexpr, Y: tl.constexpr, X: tl.constexpr, TAPS: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Compute this program's part of the gradients of weight and bias, [k taps + 1] together."""
    k, tap = tl.arange(0, K), tl.arange(0, TAPS)
    known = (tap < C * Y * X)[None, :]
    filters = tl.load(weight + k[:, None] * (C * Y * X) + tap[None, :], mask=known, other=0.0)
    shift, middle = tl.load(bias + k)[:, None], tl.load(centre + k)[:, None]
    slope, twice = tl.load(grad_sums + k)[:, None], 2.0 * tl.load(grad_sums + K + k)[:, None]
    total, last = tl.zeros((K, TAPS), tl.float32), tl.zeros((K,), tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)
        there = (row < n)[None, :]
        g = tl.load(grad + row.to(tl.int64)[None, :] * K + k[:, None], mask=there, other=0.0).to(tl.float32)
        patches = gather(images, row, tap, n, h, w, p, q, stride, C, Y, X)
        x = tl.dot(filters, patches) + shift
        gate = sigmoid(x)
        value = x * gate
        seen = (value - middle).to(images.dtype.element_ty).to(tl.float32)  # the sums are those of the rounded values
        g = tl.where(there, (g + slope + seen * twice) * (gate + value * (1.0 - gate)), 0.0)
        g = g.to(images.dtype.element_ty)
        last += tl.sum(g.to(tl.float32), 1)
        total = tl.dot(g, tl.trans(patches), total)
    found = partial + tl.program_id(0) * (K * (C * Y * X + 1)) + k * (C * Y * X + 1)
    tl.store(found[:, None] + tap[None, :], total, mask=known)
    tl.store(found + C * Y * X, last)
