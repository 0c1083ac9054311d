"""The forward kernels of dynamic_triton.py, and the tiles that all share.

Their loop is flash attention's, with images for queries and input capsules for keys.

Votes are never made. With the parents' poses `a` so far, what input i and image b agree on with output j is
    votes_bij · a_bj = Σ_d poses_bid q_bjid,  q_bjid = Σ_e a_bje weight_ijde,
and the weighted sum of votes is
    Σ_i couplings_bij votes_bije = Σ_id (couplings_bij poses_bid) weight_ijde:
two matrix products per output with a number per (b, i) between them. A tile has rows b and columns n = (i, d) [b n]. The
softmax over j needs the largest logit and the sum of exponentials per (b, i): a kernel of its own loops over j to get them.
(Their single number, the log of the denominator, would cost logits of thousands their last digits.)
Capital letters are sizes known when a kernel is compiled: J outputs, D and E numbers of a pose, BB images and IB inputs
of a tile, DP and EP are D and E rounded up to a power of two. T is the type in which matrix products are taken; sums of
poses, gradients of sums and weights that are not too large come in that type, so that tiles go straight to the tensor cores.
"""

import triton
import triton.language as tl

FIRST, FORWARD, BACKWARD = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
COUNTS = ("n_batch", "n_rows", "n_chunks", "blocks")  # else each would be a constant where it is 1, and kernels would be compiled once more


@triton.jit
def columns(start, IB: tl.constexpr, DP: tl.constexpr):
    """The input and the dimension of every column of a tile that starts at input `start`."""
    n = tl.arange(0, IB * DP)
    return start + n // DP, n % DP


@triton.jit
def addresses(b, start, end, n_batch, n_in, D: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr):
    """Where the poses [b n] of a tile lie, and which of them are there."""
    i, d = columns(start, IB, DP)
    # the compiler sees a contiguous row only if it is written as one
    column = start * D + tl.arange(0, IB * DP) if D == DP else i * D + d
    return b.to(tl.int64)[:, None] * (n_in * D) + column[None, :], (b < n_batch)[:, None] & ((i < end) & (d < D))[None, :]


@triton.jit
def load_poses(poses, b, start, end, n_batch, n_in, D: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr):
    """[b n], float32; zero outside, so that what is outside adds nothing anywhere."""
    at, there = addresses(b, start, end, n_batch, n_in, D, IB, DP)
    return tl.load(poses + at, mask=there, other=0.0).to(tl.float32)


@triton.jit
def load_weight(weight, i, d, j, end, places, row_stride, out_stride, D: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, T: tl.constexpr):
    """[n e]: the transforms of the columns' inputs for output j; `places` inputs in a row share one."""
    e = tl.arange(0, EP)
    offset = (i // places).to(tl.int64) * row_stride + j * out_stride + d * E
    there = ((i < end) & (d < D))[:, None] & (e < E)[None, :]
    return tl.load(weight + offset[:, None] + e[None, :], mask=there, other=0.0).to(T)


@triton.jit
def load_parent(parents, b, j, n_batch, J: tl.constexpr, E: tl.constexpr, EP: tl.constexpr):
    """[b e] of a tensor [b j e]."""
    e = tl.arange(0, EP)
    return tl.load(parents + (b.to(tl.int64)[:, None] * J + j) * E + e[None, :], mask=(b < n_batch)[:, None] & (e < E)[None, :], other=0.0)


@triton.jit
def load_number(numbers, b, start, n_batch, end, n_in, IB: tl.constexpr):
    """[b i] of a tensor [b i]."""
    i = start + tl.arange(0, IB)
    return tl.load(numbers + b.to(tl.int64)[:, None] * n_in + i[None, :], mask=(b < n_batch)[:, None] & (i < end)[None, :], other=0.0)


@triton.jit
def load_bounds(bounds, b, start, n_batch, end, n_in, IB: tl.constexpr):
    """Two tiles [b i] of [2 b i]: the largest logit, and one over the sum of exponentials."""
    top = load_number(bounds, b, start, n_batch, end, n_in, IB)
    return top, 1 / tl.maximum(load_number(bounds + n_batch.to(tl.int64) * n_in, b, start, n_batch, end, n_in, IB), 1.0)


@triton.jit
def agree(q, poses, BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr):
    """[b i]: sum over d of q and poses [b n]."""
    return tl.sum(tl.reshape(q * poses, (BB, IB, DP)), 2)


@triton.jit
def spread(numbers, BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr):
    """[b i] -> [b n]"""
    return tl.reshape(tl.broadcast_to(numbers[:, :, None], (BB, IB, DP)), (BB, IB * DP))


@triton.jit(do_not_specialize=COUNTS)
def denominators(
    poses, weight, pose_sum, bounds, n_batch, n_in, places, row_stride, out_stride,
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr, LEAKY: tl.constexpr,
):  # fmt: skip
    """bounds [2 b i]: top = the largest logit votes_bij · pose_sum_bj over j, Σ_j exp(logit - top). If leaky, one more logit of 0."""
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
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr, BLOCKS: tl.constexpr, MODE: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """partial[chunk]_bje = Σ_i x_bij votes_bije over the inputs of one chunk, which are `blocks` tiles: BLOCKS of them, or if
    that is 0 as many as the number says.

    x is 1 in the first pass (the caller scales), the couplings forward, the gradient of the logits backward: then the sum
    is the gradient of pose_sum. KEEP: couplings and gradient go to kept [2 j b i] for `weight_backward`.
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


@triton.jit
def sum_partials(partial, row, e, n_rows, n_chunks, E: tl.constexpr, RB: tl.constexpr, EP: tl.constexpr, CHUNKS: tl.constexpr):
    """[row e], added up in a fixed order."""
    total = tl.zeros((RB, EP), tl.float32)
    for chunk in range(CHUNKS):
        offset = (row[:, None] + chunk * n_rows.to(tl.int64)) * E + e[None, :]
        total += tl.load(partial + offset, mask=(row < n_rows)[:, None] & (e < E)[None, :] & (chunk < n_chunks), other=0.0)
    return total


@triton.jit(do_not_specialize=COUNTS)
def finish(
    partial, bias, total_out, running, pose_sum, poses_out, pose_sum_out, n_rows, n_chunks, scale,
    J: tl.constexpr, E: tl.constexpr, RB: tl.constexpr, EP: tl.constexpr, CHUNKS: tl.constexpr,
    EPS: tl.constexpr, BIAS: tl.constexpr, FIRST_PASS: tl.constexpr, LAST_PASS: tl.constexpr,
):  # fmt: skip
    """Rows (b, j): the whole sum, bias, squash; the sum of the poses so far, in float32 and in T for the passes to come."""
    row, e = tl.program_id(0).to(tl.int64) * RB + tl.arange(0, RB), tl.arange(0, EP)
    there = (row < n_rows)[:, None] & (e < E)[None, :]
    at = row[:, None] * E + e[None, :]
    total = sum_partials(partial, row, e, n_rows, n_chunks, E, RB, EP, CHUNKS) * scale
    if BIAS:
        total += tl.load(bias + (row % J)[:, None] * E + e[None, :], mask=there, other=0.0).to(tl.float32)
    tl.store(total_out + at, total, mask=there)
    square = tl.sum(total * total, 1)[:, None]
    pose = total * (square / (1 + square)) * tl.rsqrt(square + EPS)
    before = tl.zeros((RB, EP), tl.float32)
    if not FIRST_PASS:
        before = tl.load(running + at, mask=there, other=0.0)
    if LAST_PASS:
        tl.store(poses_out + at, pose.to(poses_out.dtype.element_ty), mask=there)
        tl.store(pose_sum_out + at, before.to(pose_sum_out.dtype.element_ty), mask=there)
    else:
        tl.store(running + at, before + pose, mask=there)
        tl.store(pose_sum + at, (before + pose).to(pose_sum.dtype.element_ty), mask=there)
