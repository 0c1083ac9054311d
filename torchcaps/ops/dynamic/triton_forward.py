"""Forward kernels of dynamic routing. Their loop is flash attention's, with images for queries and inputs for keys.

Votes are never made. With the parents' poses `a` so far, the agreement of input i and image b with output j is
    votes_bij · a_bj = Σ_d poses_bid q_bjid,  q_bjid = Σ_e a_bje weight_ijde,
and the weighted sum of votes is
    Σ_i couplings_bij votes_bije = Σ_id (couplings_bij poses_bid) weight_ijde:
two matrix products per output with a number per (b, i) between them. A tile has rows b and columns n = (i, d) [b n].
The softmax over j needs the largest logit and the sum of exponentials per (b, i): a kernel of its own loops over j to
get them. (Their single number, the log of the denominator, would cost logits of thousands their last digits.)
Capital letters are sizes known when a kernel is compiled: J outputs, D and E pose dimensions, BB images and IB inputs
of a tile, DP and EP are D and E rounded up to a power of two. T is the type in which matrix products are taken; sums of
poses, gradients of sums and weights that are not too large come in that type, so that tiles go straight to the tensor
cores.
"""

import triton
import triton.language as tl

from torchcaps.ops.dynamic.triton_tiles import (
    COUNTS,
    agree,
    columns,
    load_bounds,
    load_number,
    load_parent,
    load_poses,
    load_weight,
    shortening,
    spread,
    sum_partials,
)

FIRST, FORWARD, BACKWARD = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit(do_not_specialize=COUNTS)
def denominators(
    poses, weight, pose_sum, bounds, n_batch, n_in, places, row_stride, out_stride,
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr, LEAKY: tl.constexpr,
):  # fmt: skip
    """Write bounds [2 b i]: top, the largest logit votes_bij · pose_sum_bj over j, and Σ_j exp(logit - top).

    LEAKY: with one more logit of 0.
    """
    start = tl.program_id(0) * IB
    b = tl.program_id(1) * BB + tl.arange(0, BB)
    i, d = columns(start, IB, DP)
    here = load_poses(poses, b, start, n_in, n_batch, n_in, D, IB, DP)
    top = tl.zeros((BB, IB), tl.float32) + (0.0 if LEAKY else float("-inf"))
    total = tl.zeros((BB, IB), tl.float32) + (1.0 if LEAKY else 0.0)
    for j in range(J):
        w = load_weight(weight, i, d, j, n_in, places, row_stride, out_stride, D, E, EP, T)
        a = load_parent(pose_sum, b, j, n_batch, J, E, EP)
        logit = agree(tl.dot(a, tl.trans(w), input_precision=PRECISION), here, BB, IB, DP)
        higher = tl.maximum(top, logit)
        total = total * tl.exp(top - higher) + tl.exp(logit - higher)
        top = higher
    own = start + tl.arange(0, IB)
    at = b.to(tl.int64)[:, None] * n_in + own[None, :]
    there = (b < n_batch)[:, None] & (own < n_in)[None, :]
    tl.store(bounds + at, top, mask=there)
    tl.store(bounds + n_batch.to(tl.int64) * n_in + at, total, mask=there)


@triton.jit(do_not_specialize=COUNTS)
def sums(
    poses, weight, pose_sum, grad, bounds, delta, partial, kept, n_batch, n_in, places, row_stride, out_stride, blocks,
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr, BLOCKS: tl.constexpr, MODE: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Write partial[chunk]_bje = Σ_i x_bij votes_bije over the inputs of one chunk.

    A chunk is `blocks` tiles: BLOCKS of them, or if that is 0 as many as the number says. x is 1 in the first iteration
    (the caller scales), the couplings forward, the gradient of the logits backward: then the sum is the gradient of
    pose_sum. KEEP: couplings and gradient go to kept [2 j b i] for `weight_backward`.
    """
    chunk, j = tl.program_id(0), tl.program_id(1)
    b = tl.program_id(2) * BB + tl.arange(0, BB)
    if MODE != FIRST:
        a = load_parent(pose_sum, b, j, n_batch, J, E, EP)
    if MODE == BACKWARD:
        g = load_parent(grad, b, j, n_batch, J, E, EP)
    total = tl.zeros((BB, EP), tl.float32)
    for k in range(BLOCKS if BLOCKS else blocks):
        start = (chunk * blocks + k) * IB
        i, d = columns(start, IB, DP)
        x = load_poses(poses, b, start, n_in, n_batch, n_in, D, IB, DP)
        w = load_weight(weight, i, d, j, n_in, places, row_stride, out_stride, D, E, EP, T)
        if MODE != FIRST:
            logit = agree(tl.dot(a, tl.trans(w), input_precision=PRECISION), x, BB, IB, DP)
            top, scale = load_bounds(bounds, b, start, n_batch, n_in, n_in, IB)
            share = tl.exp(logit - top) * scale
            if MODE == BACKWARD:
                gain = agree(tl.dot(g, tl.trans(w), input_precision=PRECISION), x, BB, IB, DP)
                change = share * (gain - load_number(delta, b, start, n_batch, n_in, n_in, IB))
                if KEEP:
                    own = start + tl.arange(0, IB)
                    at = (j * n_batch + b).to(tl.int64)[:, None] * n_in + own[None, :]
                    there = (b < n_batch)[:, None] & (own < n_in)[None, :]
                    tl.store(kept + at, share.to(T), mask=there)
                    tl.store(kept + J * n_batch.to(tl.int64) * n_in + at, change.to(T), mask=there)
                share = change
            x = x * spread(share, BB, IB, DP)
        total += tl.dot(x.to(T), w, input_precision=PRECISION)
    e = tl.arange(0, EP)
    out = partial + ((chunk * n_batch + b[:, None]).to(tl.int64) * J + j) * E + e[None, :]
    tl.store(out, total, mask=(b < n_batch)[:, None] & (e < E)[None, :])


@triton.jit(do_not_specialize=COUNTS)
def finish(
    partial, bias, total_out, running, pose_sum, poses_out, pose_sum_out, n_rows, n_chunks, scale,
    J: tl.constexpr, E: tl.constexpr, RB: tl.constexpr, EP: tl.constexpr, CHUNKS: tl.constexpr, AT_ONCE: tl.constexpr,
    EPS: tl.constexpr, BIAS: tl.constexpr, FIRST_ITER: tl.constexpr, LAST_ITER: tl.constexpr,
):  # fmt: skip
    """Finish rows (b, j): the whole sum, bias, squash.

    The sum of the poses so far is written in float32, and in T for the iterations to come.
    """
    row, e = tl.program_id(0).to(tl.int64) * RB + tl.arange(0, RB), tl.arange(0, EP)
    there = (row < n_rows)[:, None] & (e < E)[None, :]
    at = row[:, None] * E + e[None, :]
    total = sum_partials(partial, row, e, n_rows, n_chunks, E, RB, EP, CHUNKS, AT_ONCE) * scale
    if BIAS:
        total += tl.load(bias + (row % J)[:, None] * E + e[None, :], mask=there, other=0.0).to(tl.float32)
    tl.store(total_out + at, total, mask=there)
    total *= shortening(total)
    square = tl.sum(total * total, 1)[:, None]
    pose = total * (square / (1 + square)) * tl.rsqrt(square + EPS)
    before = tl.zeros((RB, EP), tl.float32)
    if not FIRST_ITER:
        before = tl.load(running + at, mask=there, other=0.0)
    if LAST_ITER:
        tl.store(poses_out + at, pose.to(poses_out.dtype.element_ty), mask=there)
        tl.store(pose_sum_out + at, before.to(pose_sum_out.dtype.element_ty), mask=there)
    else:
        tl.store(running + at, before + pose, mask=there)
        tl.store(pose_sum + at, (before + pose).to(pose_sum.dtype.element_ty), mask=there)
