"""Backward kernels of dynamic routing. Sizes, letters and tiles: see triton_forward.py."""

import triton
import triton.language as tl

from torchcaps.ops.dynamic.triton_tiles import (
    COUNTS,
    addresses,
    agree,
    columns,
    load_bounds,
    load_number,
    load_parent,
    load_poses,
    load_walked,
    load_weight,
    shortening,
    spread,
    sum_partials,
)


@triton.jit(do_not_specialize=COUNTS)
def finish_backward(
    partial, incoming, running, total, grad_total, narrow, n_rows, n_chunks,
    E: tl.constexpr, RB: tl.constexpr, EP: tl.constexpr, CHUNKS: tl.constexpr, AT_ONCE: tl.constexpr,
    EPS: tl.constexpr, GIVEN: tl.constexpr, ADD: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Take the gradient of one iteration's poses back through squash, for rows (b, j).

    GIVEN: it is `incoming`, else 0. ADD: plus `partial`. KEEP: keep it for the iterations before, too.
    """
    row, e = tl.program_id(0).to(tl.int64) * RB + tl.arange(0, RB), tl.arange(0, EP)
    there = (row < n_rows)[:, None] & (e < E)[None, :]
    at = row[:, None] * E + e[None, :]
    grad = tl.zeros((RB, EP), tl.float32)
    if GIVEN:
        grad += tl.load(incoming + at, mask=there, other=0.0).to(tl.float32)
    if ADD:
        grad += sum_partials(partial, row, e, n_rows, n_chunks, E, RB, EP, CHUNKS, AT_ONCE)
    if KEEP:
        tl.store(running + at, grad, mask=there)
    s = tl.load(total + at, mask=there, other=0.0)
    shorter = shortening(s)
    s *= shorter
    square = tl.sum(s * s, 1)[:, None]
    root = tl.rsqrt(square + EPS)
    # squash is s k(|s|²)
    k = square / (1 + square) * root
    slope = root / ((1 + square) * (1 + square)) - 0.5 * square / (1 + square) * root * root * root
    result = (k * grad + s * (2 * slope * tl.sum(s * grad, 1)[:, None])) * shorter
    tl.store(grad_total + at, result, mask=there)
    tl.store(narrow + at, result.to(narrow.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=COUNTS)
def bias_backward(grads, grad_bias, n_rows, n_columns, CB: tl.constexpr, RB: tl.constexpr, BLOCKS: tl.constexpr):
    """Sum the columns of grads [(t b) (j e)]."""
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
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Gradient of the poses by one iteration with couplings c, and delta_bi = Σ_j c_bij gain_bij, gain = votes · grad.

    The gradient of the logits is c (gain - delta), and delta is known only after a loop over j. In bfloat16 the poses'
    part is summed in the same loop, what delta multiplies apart. Where c is nearly 0 or 1 the two parts nearly cancel,
    so float32 takes a loop of its own for delta first.
    """
    start = tl.program_id(0) * IB
    b = tl.program_id(1) * BB + tl.arange(0, BB)
    i, d = columns(start, IB, DP)
    x = load_poses(poses, b, start, n_in, n_batch, n_in, D, IB, DP)
    top, scale = load_bounds(bounds, b, start, n_batch, n_in, n_in, IB)
    APART: tl.constexpr = tl.float32 != T
    mean = tl.zeros((BB, IB), tl.float32)
    if not APART:
        for j in range(J):
            w = tl.trans(load_weight(weight, i, d, j, n_in, places, row_stride, out_stride, D, E, EP, T))
            qa = tl.dot(load_parent(pose_sum, b, j, n_batch, J, E, EP), w, input_precision=PRECISION)
            qg = tl.dot(load_parent(grad, b, j, n_batch, J, E, EP), w, input_precision=PRECISION)
            mean += tl.exp(agree(qa, x, BB, IB, DP) - top) * scale * agree(qg, x, BB, IB, DP)
    result = tl.zeros((BB, IB * DP), tl.float32)
    held = tl.zeros((BB, IB * DP), tl.float32)
    for j in range(J):
        w = tl.trans(load_weight(weight, i, d, j, n_in, places, row_stride, out_stride, D, E, EP, T))
        qa = tl.dot(load_parent(pose_sum, b, j, n_batch, J, E, EP), w, input_precision=PRECISION)
        qg = tl.dot(load_parent(grad, b, j, n_batch, J, E, EP), w, input_precision=PRECISION)
        share = tl.exp(agree(qa, x, BB, IB, DP) - top) * scale
        gain = agree(qg, x, BB, IB, DP)
        if APART:
            mean += share * gain
        else:
            gain -= mean
        result += spread(share, BB, IB, DP) * qg
        result += spread(share * gain, BB, IB, DP) * qa
        if APART:
            held += spread(share, BB, IB, DP) * qa
    own = start + tl.arange(0, IB)
    tl.store(
        delta + b.to(tl.int64)[:, None] * n_in + own[None, :], mean, mask=(b < n_batch)[:, None] & (own < n_in)[None, :]
    )
    at, there = addresses(b, start, n_in, n_batch, n_in, D, IB, DP)
    if APART:
        result -= spread(mean, BB, IB, DP) * held
    if ADD:
        result += tl.load(grad_poses + at, mask=there, other=0.0)
    tl.store(grad_poses + at, result, mask=there)


@triton.jit(do_not_specialize=COUNTS)
def poses_backward_first(
    weight, grad, before, grad_poses, scale, n_batch, n_in, places, row_stride, out_stride,
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Gradient of the poses by the first iteration, whose couplings are all `scale`, plus that by the others."""
    b = tl.program_id(1) * BB + tl.arange(0, BB)
    start = tl.program_id(0) * IB
    i, d = columns(start, IB, DP)
    total = tl.zeros((BB, IB * DP), tl.float32)
    for j in range(J):
        w = load_weight(weight, i, d, j, n_in, places, row_stride, out_stride, D, E, EP, T)
        total += tl.dot(load_parent(grad, b, j, n_batch, J, E, EP), tl.trans(w), input_precision=PRECISION)
    total *= scale
    at, there = addresses(b, start, n_in, n_batch, n_in, D, IB, DP)
    if ADD:
        total += tl.load(before + at, mask=there, other=0.0)
    tl.store(grad_poses + at, total.to(grad_poses.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=COUNTS)
def weight_backward(
    poses, weight, pose_sums, grads, bounds, delta, kept, grad_weight, scale,
    n_batch, n_in, n_rows, places, row_stride, out_stride, blocks,
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr, BATCHES: tl.constexpr, N_ITERS: tl.constexpr,
    PER_PAIR: tl.constexpr, KEPT: tl.constexpr, WALKED: tl.constexpr,
):  # fmt: skip
    """Write grad_weight_ijde = Σ_b poses_bid (gradient of the votes)_bije, through all iterations.

    PER_PAIR: a program has a few inputs and writes their transforms. Else it has some of the inputs that share a row of
    the weight, `blocks` tiles, and writes one part of that row, [part row j d e].
    KEPT: couplings and gradients of logits were kept by `sums` or, if WALKED is not 0, by a walk with tiles of so many
    inputs.
    """
    j = tl.program_id(1)
    row = tl.program_id(0)
    first = row * IB if PER_PAIR else row * places + tl.program_id(2) * blocks * IB
    end = n_in if PER_PAIR else (row + 1) * places
    total = tl.zeros((IB * DP, EP), tl.float32)
    size, numbers = n_batch.to(tl.int64) * J * E, n_batch.to(tl.int64) * n_in
    size_walked = n_batch.to(tl.int64) * tl.cdiv(n_in, WALKED if WALKED else 1) * (J * 2 * WALKED)
    for k in range(1 if PER_PAIR else blocks):
        start = first + k * IB
        i, d = columns(start, IB, DP)
        w = load_weight(weight, i, d, j, end, places, row_stride, out_stride, D, E, EP, T)
        for tile in range(BATCHES):
            b = tile * BB + tl.arange(0, BB)
            x = load_poses(poses, b, start, end, n_batch, n_in, D, IB, DP)
            for t in tl.static_range(1, N_ITERS):
                g = load_parent(grads + t * size, b, j, n_batch, J, E, EP)
                a = load_parent(pose_sums + (t - 1) * size, b, j, n_batch, J, E, EP)
                if WALKED:
                    share, change = load_walked(
                        kept + (t - 1) * size_walked, b, j, start, n_batch, end, n_in, J, IB, WALKED
                    )
                elif KEPT:
                    slot = kept + ((t - 1) * 2 * J + j) * numbers
                    share = load_number(slot, b, start, n_batch, end, n_in, IB).to(tl.float32)
                    change = load_number(slot + J * numbers, b, start, n_batch, end, n_in, IB).to(tl.float32)
                else:
                    # in the very tiles of `sums`: delta has the same gains to the last bit, and nearly equals one
                    top, over = load_bounds(bounds + 2 * (t - 1) * numbers, b, start, n_batch, end, n_in, IB)
                    share = tl.exp(agree(tl.dot(a, tl.trans(w), input_precision=PRECISION), x, BB, IB, DP) - top) * over
                    gain = agree(tl.dot(g, tl.trans(w), input_precision=PRECISION), x, BB, IB, DP)
                    change = share * (gain - load_number(delta + (t - 1) * numbers, b, start, n_batch, end, n_in, IB))
                part = (spread(share, BB, IB, DP) * x).to(T)
                total += tl.dot(tl.trans(part), g, input_precision=PRECISION)
                part = (spread(change, BB, IB, DP) * x).to(T)
                total += tl.dot(tl.trans(part), a, input_precision=PRECISION)
            g = load_parent(grads, b, j, n_batch, J, E, EP)
            total += tl.dot(tl.trans((x * scale).to(T)), g, input_precision=PRECISION)
    e = tl.arange(0, EP)
    if PER_PAIR:
        i, d = columns(first, IB, DP)
        out = grad_weight + ((i.to(tl.int64) * J + j) * D + d)[:, None] * E + e[None, :]
        tl.store(out, total.to(grad_weight.dtype.element_ty), mask=((i < n_in) & (d < D))[:, None] & (e < E)[None, :])
    else:
        d = tl.arange(0, DP)
        part = tl.sum(tl.reshape(total, (IB, DP, EP)), 0)
        slot = (tl.program_id(2) * n_rows + row).to(tl.int64) * J + j
        tl.store(grad_weight + (slot * D + d[:, None]) * E + e[None, :], part, mask=(d < D)[:, None] & (e < E)[None, :])
