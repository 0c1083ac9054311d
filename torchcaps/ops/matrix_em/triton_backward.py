"""Backward kernels of matrix EM routing; letters and tensors as in triton_forward.py.

A vote's gradient is its use times a slope. FIT, from a parent's mean and variance: use is its weight, and the slope
`line` + 2 `curve` · (vote - mean), with the gradients of mean and variance. Otherwise, from a logit: use is the logit's
gradient, and the slope `curve` · (vote - mean). A lane has S votes s, so that what it loads of a parent serves S times.
"""

import triton
import triton.language as tl

from torchcaps.ops.em.triton_tiles import load_numbers, transformed, zeros
from torchcaps.ops.matrix_em.triton_forward import COUNTS, LANES, minus, moved, place_of, transform_at


@triton.jit
def load_parent(means, line, curve, at, N: tl.constexpr, FIT: tl.constexpr):
    """Load minus the mean, the line (anything where there is none) and the curve of a parent."""
    centre = minus(load_numbers(means + at, LANES, N), N)
    curves = load_numbers(curve + at, LANES, N)
    lines = curves
    if FIT:
        lines = load_numbers(line + at, LANES, N)
    return centre, lines, curves


@triton.jit
def use_of(logits, offset, highest, scale, row, at, at_pair, FIT: tl.constexpr, FIRST: tl.constexpr):
    """Load or compute by how much a parent uses a vote. Without FIT the `logits` are their gradients."""
    if FIT:
        log = tl.load(offset + row)
        if not FIRST:
            log += tl.load(logits + at_pair)
        use = tl.exp(log - tl.load(highest + at)) * tl.load(scale + at)
    else:
        use = tl.load(logits + at_pair)
    return use


@triton.jit
def slopes_of(off, lines, curves, use, N: tl.constexpr, FIT: tl.constexpr):
    """Gradient of a vote, and with FIT of its weight, without a number that all votes of the parent share."""
    found = ()
    total = use * 0.0
    for k in tl.static_range(N):
        if FIT:
            half = tl.fma(curves[k], off[k], lines[k])
            total = tl.fma(off[k], half, total)
            found += (use * tl.fma(curves[k], off[k], half),)
        else:
            found += (use * (curves[k] * off[k]),)
    return found, total


@triton.jit
def add_pose_gradient(
    grads, slopes, w, NTH: tl.constexpr, S: tl.constexpr, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr
):
    """Add slopes · weightᵀ to the NTH of S gradients of poses."""
    found = ()
    for k in tl.static_range(S * R * D):
        x = grads[k]
        if k // (R * D) == NTH:
            for e in tl.static_range(E):
                x = tl.fma(slopes[(k // D) % R * E + e], w[k % D * E + e], x)
        found += (x,)
    return found


@triton.jit
def add_weight_gradient(
    grads, slopes, pose, NTH: tl.constexpr, S: tl.constexpr, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr
):
    """Add poseᵀ · slopes to the NTH of S gradients of transforms."""
    found = ()
    for k in tl.static_range(S * D * E):
        x = grads[k]
        if k // (D * E) == NTH:
            for r in tl.static_range(R):
                x = tl.fma(slopes[r * E + k % E], pose[r * D + (k // E) % D], x)
        found += (x,)
    return found


@triton.jit(do_not_specialize=COUNTS)
def children(
    logits, offset, highest, scale, level, means, line, curve, seen, weight, coordinates,
    grad_logits, grad_offset, grad_seen, n_seen, n_out, places,
    R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, SHARED: tl.constexpr, COORDINATES: tl.constexpr,
    FIT: tl.constexpr, FIRST: tl.constexpr, S: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Write the gradients of poses, and with FIT of logits and offsets. The walk is over output types."""
    n_blocks = tl.cdiv(n_seen, S * WARPS)
    g = (tl.program_id(0) // n_blocks).to(tl.int64)
    whole = tl.arange(0, WARPS * LANES)
    lane = whole % LANES
    first = (tl.program_id(0) % n_blocks) * (S * WARPS) + whole // LANES
    grads, poses, sums = zeros(WARPS * LANES, S * R * D), (), zeros(WARPS * LANES, S)
    for i in tl.static_range(S):
        row = g * n_seen + tl.minimum(first + i * WARPS, n_seen - 1)
        poses += load_numbers(seen + row * (R * D * LANES) + lane, LANES, R * D)
    m = 0
    while m < n_out:
        at = (g * n_out + m) * LANES + lane
        centre, lines, curves = load_parent(means, line, curve, (g * n_out + m) * (R * E * LANES) + lane, R * E, FIT)
        new_sums = ()
        for i in tl.static_range(S):
            s = tl.minimum(first + i * WARPS, n_seen - 1)
            row = g * n_seen + s
            at_pair = (row * n_out + m) * LANES + lane
            w = transform_at(weight, s, m, n_out, places, D, E, SHARED)
            start = moved(centre, coordinates, s, places, R, E, COORDINATES)
            off = transformed(poses[i * R * D : (i + 1) * R * D], w, start, R, D, E)
            use = use_of(logits, offset, highest, scale, row * LANES + lane, at, at_pair, FIT, FIRST)
            slopes, total = slopes_of(off, lines, curves, use, R * E, FIT)
            grads = add_pose_gradient(grads, slopes, w, i, S, R, D, E)
            if FIT:
                of_log = use * (total + tl.load(level + at))
                new_sums += (sums[i] + of_log,)
                if not FIRST:
                    tl.store(grad_logits + at_pair, of_log, mask=first + i * WARPS < n_seen)
        if FIT:
            sums = new_sums
        m += 1
    for i in tl.static_range(S):
        there = first + i * WARPS < n_seen
        row = g * n_seen + first + i * WARPS
        for k in tl.static_range(R * D):
            tl.store(grad_seen + (row * (R * D) + k) * LANES + lane, grads[i * R * D + k], mask=there)
        if FIT:
            tl.store(grad_offset + row * LANES + lane, sums[i], mask=there)


@triton.jit(do_not_specialize=COUNTS)
def transforms(
    logits, offset, highest, scale, means, line, curve, seen, weight, coordinates, grad_weight,
    n_groups, n_seen, n_out, places,
    R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, SHARED: tl.constexpr, COORDINATES: tl.constexpr,
    FIT: tl.constexpr, FIRST: tl.constexpr, S: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the transform of every vote [s m d·e]. The walk is over groups of parents."""
    n_blocks = tl.cdiv(n_seen, S * WARPS)
    m = tl.program_id(0) // n_blocks
    whole = tl.arange(0, WARPS * LANES)
    lane = whole % LANES
    start_of = (tl.program_id(0) % n_blocks) * (S * WARPS)
    first = start_of + whole // LANES
    grads, ws = zeros(WARPS * LANES, S * D * E), ()
    for i in tl.static_range(S):
        s = tl.minimum(first + i * WARPS, n_seen - 1)
        ws += transform_at(weight, s, m, n_out, places, D, E, SHARED)
    group = 0
    while group < n_groups:
        g = tl.zeros((), tl.int64) + group
        at = (g * n_out + m) * LANES + lane
        centre, lines, curves = load_parent(means, line, curve, (g * n_out + m) * (R * E * LANES) + lane, R * E, FIT)
        for i in tl.static_range(S):
            s = tl.minimum(first + i * WARPS, n_seen - 1)
            row = g * n_seen + s
            pose = load_numbers(seen + row * (R * D * LANES) + lane, LANES, R * D)
            start = moved(centre, coordinates, s, places, R, E, COORDINATES)
            off = transformed(pose, ws[i * D * E : (i + 1) * D * E], start, R, D, E)
            at_pair = (row * n_out + m) * LANES + lane
            use = use_of(logits, offset, highest, scale, row * LANES + lane, at, at_pair, FIT, FIRST)
            slopes, _ = slopes_of(off, lines, curves, use, R * E, FIT)
            grads = add_weight_gradient(grads, slopes, pose, i, S, R, D, E)
        group += 1
    warp = tl.arange(0, WARPS)
    for i in tl.static_range(S):
        s = start_of + i * WARPS + warp
        for k in tl.static_range(D * E):
            total = tl.sum(tl.reshape(grads[i * D * E + k], (WARPS, LANES)), 1)
            tl.store(grad_weight + (s * n_out + m).to(tl.int64) * (D * E) + k, total, mask=s < n_seen)


@triton.jit(do_not_specialize=COUNTS)
def moments(
    grad, means, seen, weight, coordinates, partial, n_seen, n_out, n_chunks, length, places,
    R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, SHARED: tl.constexpr, COORDINATES: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """Sum over `length` votes: `grad` of a logit times vote - mean, its square, 1. `partial` [chunk g m 2·R·E+1 l]."""
    g, chunk, s, last, m, here, lane = place_of(n_out, n_seen, n_chunks, length, WARPS)
    n_groups = tl.num_programs(0) // (n_chunks * tl.cdiv(n_out, WARPS))
    at = g * n_out + m
    centre = minus(load_numbers(means + at * (R * E * LANES) + lane, LANES, R * E), R * E)
    firsts, seconds = zeros(WARPS * LANES, R * E), zeros(WARPS * LANES, R * E)
    total = tl.zeros((WARPS * LANES,), tl.float32)
    while s < last:
        row = g * n_seen + s
        pose = load_numbers(seen + row * (R * D * LANES) + lane, LANES, R * D)
        w = transform_at(weight, s, m, n_out, places, D, E, SHARED)
        off = transformed(pose, w, moved(centre, coordinates, s, places, R, E, COORDINATES), R, D, E)
        of_logit = tl.load(grad + (row * n_out + m) * LANES + lane)
        new_firsts, new_seconds = (), ()
        for k in tl.static_range(R * E):
            part = of_logit * off[k]
            new_firsts += (firsts[k] + part,)
            new_seconds += (tl.fma(part, off[k], seconds[k]),)
        firsts, seconds = new_firsts, new_seconds
        total += of_logit
        s += 1
    partial += ((chunk * n_groups + g) * n_out + m) * ((2 * R * E + 1) * LANES) + lane
    for k in tl.static_range(R * E):
        tl.store(partial + k * LANES, firsts[k], mask=here)
        tl.store(partial + (R * E + k) * LANES, seconds[k], mask=here)
    tl.store(partial + 2 * R * E * LANES, total, mask=here)
