"""Patches of images that a kernel multiplies without their ever being written. Memory: images [b c h w]."""

import triton
import triton.language as tl


@triton.jit
def gather(images, row, tap, n, h, w, p, q, stride, C: tl.constexpr, Y: tl.constexpr, X: tl.constexpr):
    """Load patches [taps rows]; neighbouring threads take neighbouring places, which lie together in memory."""
    place = row % (p * q)
    corner = row // (p * q) * (C * h * w) + place // q * stride * w + place % q * stride
    at = tap // (Y * X) * (h * w) + tap % (Y * X) // X * w + tap % X
    there = (tap < C * Y * X)[:, None] & (row < n)[None, :]
    return tl.load(images + at[:, None] + corner[None, :], mask=there, other=0.0)
