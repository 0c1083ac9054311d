"""Tiles of the kernels of dynamic routing: where they lie, how they are loaded and summed.

Letters: see triton_forward.py.
"""

import triton
import triton.language as tl

from torchcaps.ops.squash import LONG, MUCH_SHORTER, SHORTER, VERY_LONG

# globals of a kernel must be constants
AT_LONG, AT_VERY_LONG = tl.constexpr(LONG), tl.constexpr(VERY_LONG)
BY_LITTLE, BY_MUCH = tl.constexpr(SHORTER), tl.constexpr(MUCH_SHORTER)
# else each would be a constant where it is 1, and kernels would be compiled once more
COUNTS = ("n_batch", "n_rows", "n_chunks", "blocks", "add")


@triton.jit
def columns(start, IB: tl.constexpr, DP: tl.constexpr):
    """Input and dimension of every column of a tile that starts at input `start`."""
    n = tl.arange(0, IB * DP)
    return start + n // DP, n % DP


@triton.jit
def addresses(b, start, end, n_batch, n_in, D: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr):
    """Offsets of the poses [b n] of a tile, and which of them exist."""
    i, d = columns(start, IB, DP)
    # the compiler sees a contiguous row only if it is written as one
    column = start * D + tl.arange(0, IB * DP) if D == DP else i * D + d
    return (
        b.to(tl.int64)[:, None] * (n_in * D) + column[None, :],
        (b < n_batch)[:, None] & ((i < end) & (d < D))[None, :],
    )


@triton.jit
def load_poses(poses, b, start, end, n_batch, n_in, D: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr):
    """Load [b n] as float32; zero outside, which adds nothing anywhere."""
    at, there = addresses(b, start, end, n_batch, n_in, D, IB, DP)
    return tl.load(poses + at, mask=there, other=0.0).to(tl.float32)


@triton.jit
def load_weight(
    weight, i, d, j, end, places, row_stride, out_stride,
    D: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Load [n e], the transforms of the columns' inputs for output j; `places` inputs in a row share one."""
    e = tl.arange(0, EP)
    offset = (i // places).to(tl.int64) * row_stride + j * out_stride + d * E
    there = ((i < end) & (d < D))[:, None] & (e < E)[None, :]
    return tl.load(weight + offset[:, None] + e[None, :], mask=there, other=0.0).to(T)


@triton.jit
def load_parent(parents, b, j, n_batch, J: tl.constexpr, E: tl.constexpr, EP: tl.constexpr):
    """Load [b e] of a tensor [b j e]."""
    e = tl.arange(0, EP)
    return tl.load(
        parents + (b.to(tl.int64)[:, None] * J + j) * E + e[None, :],
        mask=(b < n_batch)[:, None] & (e < E)[None, :],
        other=0.0,
    )


@triton.jit
def load_number(numbers, b, start, n_batch, end, n_in, IB: tl.constexpr):
    """Load a tile [b i] of a tensor [b i]."""
    i = start + tl.arange(0, IB)
    return tl.load(
        numbers + b.to(tl.int64)[:, None] * n_in + i[None, :],
        mask=(b < n_batch)[:, None] & (i < end)[None, :],
        other=0.0,
    )


@triton.jit
def load_bounds(bounds, b, start, n_batch, end, n_in, IB: tl.constexpr):
    """Load two tiles [b i] of [2 b i]: the largest logit, and one over the sum of exponentials."""
    top = load_number(bounds, b, start, n_batch, end, n_in, IB)
    return top, 1 / tl.maximum(load_number(bounds + n_batch.to(tl.int64) * n_in, b, start, n_batch, end, n_in, IB), 1.0)


@triton.jit
def load_walked(kept, b, j, start, n_batch, end, n_in, J: tl.constexpr, IB: tl.constexpr, WALKED: tl.constexpr):
    """Load two tiles [b i] of what a walk kept, [b tile j i 2]: the couplings and the gradients of the logits."""
    i = start + tl.arange(0, IB)
    at = (b.to(tl.int64)[:, None] * tl.cdiv(n_in, WALKED) + (i // WALKED)[None, :]) * J + j
    at = kept + (at * WALKED + (i % WALKED)[None, :]) * 2
    there = (b < n_batch)[:, None] & (i < end)[None, :]
    share, change = tl.load(at, mask=there, other=0.0), tl.load(at + 1, mask=there, other=0.0)
    return share.to(tl.float32), change.to(tl.float32)


@triton.jit
def agree(q, poses, BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr):
    """Sum q times poses [b n] over d: [b i]."""
    return tl.sum(tl.reshape(q * poses, (BB, IB, DP)), 2)


@triton.jit
def spread(numbers, BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr):
    """Repeat [b i] over d: [b n]."""
    return tl.reshape(tl.broadcast_to(numbers[:, :, None], (BB, IB, DP)), (BB, IB * DP))


@triton.jit
def shortening(total):
    """Factor per row of [row e] that keeps its squared length finite, as in the reference's squash."""
    largest = tl.max(tl.abs(total), 1)[:, None]
    return tl.where(largest < AT_LONG, 1.0, tl.where(largest < AT_VERY_LONG, BY_LITTLE, BY_MUCH))


@triton.jit
def sum_partials(
    partial, row, e, n_rows, n_chunks,
    E: tl.constexpr, RB: tl.constexpr, EP: tl.constexpr, CHUNKS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Add up the chunks of [row e] in a fixed order, AT_ONCE in one load: many chunks one by one are many waits."""
    total = tl.zeros((RB, EP), tl.float32)
    inside = (row < n_rows)[:, None] & (e < E)[None, :]
    for block in range(CHUNKS // AT_ONCE):
        if AT_ONCE == 1:
            offset = (row[:, None] + block * n_rows.to(tl.int64)) * E + e[None, :]
            total += tl.load(partial + offset, mask=inside & (block < n_chunks), other=0.0)
        else:
            chunk = (block * AT_ONCE + tl.arange(0, AT_ONCE))[:, None, None]
            offset = (row[None, :, None] + chunk * n_rows.to(tl.int64)) * E + e[None, None, :]
            total += tl.sum(tl.load(partial + offset, mask=inside[None, :, :] & (chunk < n_chunks), other=0.0), 0)
    return total


@triton.jit
def store_sums(
    partial, totals, b, chunk, n_batch,
    J: tl.constexpr, E: tl.constexpr, EP: tl.constexpr,
):  # fmt: skip
    """Write a chunk's sums of all outputs to partial [chunk b j e]."""
    e = tl.arange(0, EP)
    out = partial + (chunk * n_batch + b[:, None]).to(tl.int64) * (J * E) + e[None, :]
    for j in tl.static_range(J):
        tl.store(out + j * E, totals[j], mask=(b < n_batch)[:, None] & (e < E)[None, :])
