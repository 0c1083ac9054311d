"""The kernels of dynamic_triton.py. Their loop is flash attention's, with images for queries and input capsules for keys.

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
COUNTS = ("n_batch", "n_rows", "n_chunks")  # else each would be a constant where it is 1, and kernels would be compiled once more


@triton.jit
def _columns(start, IB: tl.constexpr, DP: tl.constexpr):
    """The input and the dimension of every column of a tile that starts at input `start`."""
    n = tl.arange(0, IB * DP)
    return start + n // DP, n % DP


@triton.jit
def _at(b, start, end, n_batch, n_in, D: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr):
    """Where the poses [b n] of a tile lie, and which of them are there."""
    i, d = _columns(start, IB, DP)
    # the compiler sees a contiguous row only if it is written as one
    column = start * D + tl.arange(0, IB * DP) if D == DP else i * D + d
    return b.to(tl.int64)[:, None] * (n_in * D) + column[None, :], (b < n_batch)[:, None] & ((i < end) & (d < D))[None, :]


@triton.jit
def _load_poses(poses, b, start, end, n_batch, n_in, D: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr):
    """[b n], float32; zero outside, so that what is outside adds nothing anywhere."""
    at, there = _at(b, start, end, n_batch, n_in, D, IB, DP)
    return tl.load(poses + at, mask=there, other=0.0).to(tl.float32)


@triton.jit
def _load_weight(
    weight, i, d, j, end, places, row_stride, out_stride, D: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, T: tl.constexpr
):
    """[n e]: the transforms of the columns' inputs for output j; `places` inputs in a row share one."""
    e = tl.arange(0, EP)
    offset = (i // places).to(tl.int64) * row_stride + j * out_stride + d * E
    there = ((i < end) & (d < D))[:, None] & (e < E)[None, :]
    return tl.load(weight + offset[:, None] + e[None, :], mask=there, other=0.0).to(T)


@triton.jit
def _load_parent(parents, b, j, n_batch, J: tl.constexpr, E: tl.constexpr, EP: tl.constexpr):
    """[b e] of a tensor [b j e]."""
    e = tl.arange(0, EP)
    return tl.load(parents + (b[:, None] * J + j) * E + e[None, :], mask=(b < n_batch)[:, None] & (e < E)[None, :], other=0.0)


@triton.jit
def _load_number(numbers, b, start, n_batch, end, n_in, IB: tl.constexpr):
    """[b i] of a tensor [b i]."""
    i = start + tl.arange(0, IB)
    return tl.load(numbers + b.to(tl.int64)[:, None] * n_in + i[None, :], mask=(b < n_batch)[:, None] & (i < end)[None, :], other=0.0)


@triton.jit
def _load_bounds(bounds, b, start, n_batch, end, n_in, IB: tl.constexpr):
    """Two tiles [b i] of [2 b i]: the largest logit, and one over the sum of exponentials."""
    top = _load_number(bounds, b, start, n_batch, end, n_in, IB)
    return top, 1 / tl.maximum(_load_number(bounds + n_batch.to(tl.int64) * n_in, b, start, n_batch, end, n_in, IB), 1.0)


@triton.jit
def _agree(q, poses, BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr):
    """[b i]: sum over d of q and poses [b n]."""
    return tl.sum(tl.reshape(q * poses, (BB, IB, DP)), 2)


@triton.jit
def _spread(numbers, BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr):
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
    i, d = _columns(start, IB, DP)
    here = _load_poses(poses, b, start, n_in, n_batch, n_in, D, IB, DP)
    top = tl.zeros((BB, IB), tl.float32) + (0.0 if LEAKY else float("-inf"))
    total = tl.zeros((BB, IB), tl.float32) + (1.0 if LEAKY else 0.0)
    for j in range(J):
        w = _load_weight(weight, i, d, j, n_in, places, row_stride, out_stride, D, E, EP, T)
        a = _load_parent(pose_sum, b, j, n_batch, J, E, EP)
        logit = _agree(tl.dot(a, tl.trans(w), input_precision=PRECISION), here, BB, IB, DP)
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
    poses, weight, pose_sum, grad, bounds, delta, partial, kept, n_batch, n_in, places, row_stride, out_stride,
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr, BLOCKS: tl.constexpr, MODE: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """partial[chunk]_bje = Σ_i x_bij votes_bije over the inputs of one chunk.

    x is 1 in the first pass (the caller scales), the couplings forward, the gradient of the logits backward: then the sum
    is the gradient of pose_sum. KEEP: couplings and gradient go to kept [2 j b i] for `weight_backward`.
    """
    chunk, j = tl.program_id(0), tl.program_id(1)
    b = tl.program_id(2) * BB + tl.arange(0, BB)
    if MODE != FIRST:
        a = _load_parent(pose_sum, b, j, n_batch, J, E, EP)
    if MODE == BACKWARD:
        g = _load_parent(grad, b, j, n_batch, J, E, EP)
    total = tl.zeros((BB, EP), tl.float32)
    for k in range(BLOCKS):
        start = (chunk * BLOCKS + k) * IB
        i, d = _columns(start, IB, DP)
        x = _load_poses(poses, b, start, n_in, n_batch, n_in, D, IB, DP)
        w = _load_weight(weight, i, d, j, n_in, places, row_stride, out_stride, D, E, EP, T)
        if MODE != FIRST:
            logit = _agree(tl.dot(a, tl.trans(w), input_precision=PRECISION), x, BB, IB, DP)
            top, scale = _load_bounds(bounds, b, start, n_batch, n_in, n_in, IB)
            share = tl.exp(logit - top) * scale
            if MODE == BACKWARD:
                gain = _agree(tl.dot(g, tl.trans(w), input_precision=PRECISION), x, BB, IB, DP)
                change = share * (gain - _load_number(delta, b, start, n_batch, n_in, n_in, IB))
                if KEEP:
                    own = start + tl.arange(0, IB)
                    at = (j * n_batch + b).to(tl.int64)[:, None] * n_in + own[None, :]
                    there = (b < n_batch)[:, None] & (own < n_in)[None, :]
                    tl.store(kept + at, share.to(T), mask=there)
                    tl.store(kept + J * n_batch.to(tl.int64) * n_in + at, change.to(T), mask=there)
                share = change
            x = x * _spread(share, BB, IB, DP)
        total += tl.dot(x.to(T), w, input_precision=PRECISION)
    e = tl.arange(0, EP)
    out = partial + ((chunk * n_batch + b[:, None]).to(tl.int64) * J + j) * E + e[None, :]
    tl.store(out, total, mask=(b < n_batch)[:, None] & (e < E)[None, :])


@triton.jit
def _sum_partials(partial, row, e, n_rows, n_chunks, E: tl.constexpr, RB: tl.constexpr, EP: tl.constexpr, CHUNKS: tl.constexpr):
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
    row, e = tl.program_id(0) * RB + tl.arange(0, RB), tl.arange(0, EP)
    there = (row < n_rows)[:, None] & (e < E)[None, :]
    at = row[:, None] * E + e[None, :]
    total = _sum_partials(partial, row, e, n_rows, n_chunks, E, RB, EP, CHUNKS) * scale
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


@triton.jit(do_not_specialize=COUNTS)
def finish_backward(
    partial, incoming, running, total, grad_total, narrow, n_rows, n_chunks,
    E: tl.constexpr, RB: tl.constexpr, EP: tl.constexpr, CHUNKS: tl.constexpr, EPS: tl.constexpr, ADD: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Rows (b, j): the gradient of the poses of one pass, through squash. ADD: plus `partial`; KEEP: for the passes before, too."""
    row, e = tl.program_id(0) * RB + tl.arange(0, RB), tl.arange(0, EP)
    there = (row < n_rows)[:, None] & (e < E)[None, :]
    at = row[:, None] * E + e[None, :]
    grad = tl.load(incoming + at, mask=there, other=0.0).to(tl.float32)
    if ADD:
        grad += _sum_partials(partial, row, e, n_rows, n_chunks, E, RB, EP, CHUNKS)
    if KEEP:
        tl.store(running + at, grad, mask=there)
    s = tl.load(total + at, mask=there, other=0.0)
    square = tl.sum(s * s, 1)[:, None]
    root = tl.rsqrt(square + EPS)
    # squash is s k(|s|²)
    k = square / (1 + square) * root
    slope = root / ((1 + square) * (1 + square)) - 0.5 * square / (1 + square) * root * root * root
    result = k * grad + s * (2 * slope * tl.sum(s * grad, 1)[:, None])
    tl.store(grad_total + at, result, mask=there)
    tl.store(narrow + at, result.to(narrow.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=COUNTS)
def bias_backward(grads, grad_bias, n_rows, n_columns, CB: tl.constexpr, RB: tl.constexpr, BLOCKS: tl.constexpr):
    """Column sums of grads [(t b) (j e)]."""
    column = tl.program_id(0) * CB + tl.arange(0, CB)
    total = tl.zeros((RB, CB), tl.float32)
    for k in range(BLOCKS):
        row = k * RB + tl.arange(0, RB)
        there = (row < n_rows)[:, None] & (column < n_columns)[None, :]
        total += tl.load(grads + row.to(tl.int64)[:, None] * n_columns + column[None, :], mask=there, other=0.0)
    tl.store(grad_bias + column, tl.sum(total, 0), mask=column < n_columns)


@triton.jit(do_not_specialize=COUNTS)
def poses_backward(
    poses, weight, pose_sum, grad, bounds, delta, grad_poses, n_batch, n_in, places, row_stride, out_stride,
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr, DETACH: tl.constexpr, ADD: tl.constexpr, GIVE: tl.constexpr,
):  # fmt: skip
    """What one pass with couplings c gives to the poses (if GIVE), and delta_bi = Σ_j c_bij gain_bij, gain = votes · grad.

    The gradient of the logits is c (gain - delta), and delta is known only after a loop over j. In bfloat16 the poses' part is
    summed in the same loop, what delta multiplies apart. Where c is nearly 0 or 1 the two parts nearly cancel, so float32
    takes a loop of its own for delta first.
    """
    start = tl.program_id(0) * IB
    b = tl.program_id(1) * BB + tl.arange(0, BB)
    i, d = _columns(start, IB, DP)
    x = _load_poses(poses, b, start, n_in, n_batch, n_in, D, IB, DP)
    top, scale = _load_bounds(bounds, b, start, n_batch, n_in, n_in, IB)
    APART: tl.constexpr = T != tl.float32
    mean = tl.zeros((BB, IB), tl.float32)
    if not APART:
        for j in range(J):
            w = tl.trans(_load_weight(weight, i, d, j, n_in, places, row_stride, out_stride, D, E, EP, T))
            qa = tl.dot(_load_parent(pose_sum, b, j, n_batch, J, E, EP), w, input_precision=PRECISION)
            qg = tl.dot(_load_parent(grad, b, j, n_batch, J, E, EP), w, input_precision=PRECISION)
            mean += tl.exp(_agree(qa, x, BB, IB, DP) - top) * scale * _agree(qg, x, BB, IB, DP)
    result = tl.zeros((BB, IB * DP), tl.float32)
    held = tl.zeros((BB, IB * DP), tl.float32)
    for j in range(J):
        w = tl.trans(_load_weight(weight, i, d, j, n_in, places, row_stride, out_stride, D, E, EP, T))
        qa = tl.dot(_load_parent(pose_sum, b, j, n_batch, J, E, EP), w, input_precision=PRECISION)
        qg = tl.dot(_load_parent(grad, b, j, n_batch, J, E, EP), w, input_precision=PRECISION)
        share = tl.exp(_agree(qa, x, BB, IB, DP) - top) * scale
        gain = _agree(qg, x, BB, IB, DP)
        if APART:
            mean += share * gain
        else:
            gain -= mean
        result += _spread(share, BB, IB, DP) * qg
        if not DETACH:
            result += _spread(share * gain, BB, IB, DP) * qa
            if APART:
                held += _spread(share, BB, IB, DP) * qa
    own = start + tl.arange(0, IB)
    tl.store(delta + b.to(tl.int64)[:, None] * n_in + own[None, :], mean, mask=(b < n_batch)[:, None] & (own < n_in)[None, :])
    if GIVE:
        at, there = _at(b, start, n_in, n_batch, n_in, D, IB, DP)
        if APART:
            result -= _spread(mean, BB, IB, DP) * held
        if ADD:
            result += tl.load(grad_poses + at, mask=there, other=0.0)
        tl.store(grad_poses + at, result, mask=there)


@triton.jit(do_not_specialize=COUNTS)
def poses_backward_first(
    weight, grad, before, grad_poses, scale, n_batch, n_in, places, row_stride, out_stride,
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """What the first pass, whose couplings are all `scale`, gives to the poses; plus what the others gave."""
    b = tl.program_id(1) * BB + tl.arange(0, BB)
    start = tl.program_id(0) * IB
    i, d = _columns(start, IB, DP)
    total = tl.zeros((BB, IB * DP), tl.float32)
    for j in range(J):
        w = _load_weight(weight, i, d, j, n_in, places, row_stride, out_stride, D, E, EP, T)
        total += tl.dot(_load_parent(grad, b, j, n_batch, J, E, EP), tl.trans(w), input_precision=PRECISION)
    total *= scale
    at, there = _at(b, start, n_in, n_batch, n_in, D, IB, DP)
    if ADD:
        total += tl.load(before + at, mask=there, other=0.0)
    tl.store(grad_poses + at, total.to(grad_poses.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=COUNTS)
def weight_backward(
    poses, weight, pose_sums, grads, bounds, delta, kept, grad_weight, scale, n_batch, n_in, n_rows, places, row_stride, out_stride,
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr, BLOCKS: tl.constexpr, BATCHES: tl.constexpr, PASSES: tl.constexpr,
    DETACH: tl.constexpr, PER_PAIR: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """grad_weight_ijde = Σ_b poses_bid (gradient of the votes)_bije, through all passes.

    PER_PAIR: a program has a few inputs and writes their transforms. Else it has some of the inputs that share a row of the
    weight and writes one part of that row, [part row j d e].
    """
    j = tl.program_id(1)
    row = tl.program_id(0)
    first = row * IB if PER_PAIR else row * places + tl.program_id(2) * BLOCKS * IB
    end = n_in if PER_PAIR else (row + 1) * places
    total = tl.zeros((IB * DP, EP), tl.float32)
    size, numbers = n_batch.to(tl.int64) * J * E, n_batch.to(tl.int64) * n_in
    for k in range(BLOCKS):
        start = first + k * IB
        i, d = _columns(start, IB, DP)
        w = _load_weight(weight, i, d, j, end, places, row_stride, out_stride, D, E, EP, T)
        for tile in range(BATCHES):
            b = tile * BB + tl.arange(0, BB)
            x = _load_poses(poses, b, start, end, n_batch, n_in, D, IB, DP)
            for t in tl.static_range(1, PASSES):
                g = _load_parent(grads + t * size, b, j, n_batch, J, E, EP)
                a = _load_parent(pose_sums + (t - 1) * size, b, j, n_batch, J, E, EP)
                if KEPT:
                    slot = kept + ((t - 1) * 2 * J + j) * numbers
                    share = _load_number(slot, b, start, n_batch, end, n_in, IB).to(tl.float32)
                    change = _load_number(slot + J * numbers, b, start, n_batch, end, n_in, IB).to(tl.float32)
                else:
                    # in the very tiles of `sums`: delta is of the same gains to the last bit, and is all but equal to one of them
                    top, over = _load_bounds(bounds + 2 * (t - 1) * numbers, b, start, n_batch, end, n_in, IB)
                    share = tl.exp(_agree(tl.dot(a, tl.trans(w), input_precision=PRECISION), x, BB, IB, DP) - top) * over
                    gain = _agree(tl.dot(g, tl.trans(w), input_precision=PRECISION), x, BB, IB, DP)
                    change = share * (gain - _load_number(delta + (t - 1) * numbers, b, start, n_batch, end, n_in, IB))
                if (not DETACH) or t == PASSES - 1:
                    part = (_spread(share, BB, IB, DP) * x).to(T)
                    total += tl.dot(tl.trans(part), g, input_precision=PRECISION)
                if not DETACH:
                    part = (_spread(change, BB, IB, DP) * x).to(T)
                    total += tl.dot(tl.trans(part), a, input_precision=PRECISION)
            if (not DETACH) or PASSES == 1:
                g = _load_parent(grads, b, j, n_batch, J, E, EP)
                total += tl.dot(tl.trans((x * scale).to(T)), g, input_precision=PRECISION)
    e = tl.arange(0, EP)
    if PER_PAIR:
        i, d = _columns(first, IB, DP)
        out = grad_weight + ((i.to(tl.int64) * J + j) * D + d)[:, None] * E + e[None, :]
        tl.store(out, total.to(grad_weight.dtype.element_ty), mask=((i < n_in) & (d < D))[:, None] & (e < E)[None, :])
    else:
        d = tl.arange(0, DP)
        part = tl.sum(tl.reshape(total, (IB, DP, EP)), 0)
        slot = (tl.program_id(2) * n_rows + row).to(tl.int64) * J + j
        tl.store(grad_weight + (slot * D + d[:, None]) * E + e[None, :], part, mask=(d < D)[:, None] & (e < E)[None, :])
