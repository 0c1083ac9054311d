"""Forward kernels of matrix EM routing: votes are made in registers and never stored.

Parents lie in groups of 32, the lanes of a warp: `g` group, `l` lane, v = (g l), filled up with parents that nobody
hears. A warp has one output type m and one vote s at a time, so that a transform is the same for its lanes, and poses
and models are rows of 32. Poses, transforms, votes are tuples of R·D, D·E, R·E registers per lane. Capital letters are
known when a kernel is compiled: R rows, D and E columns of a pose; SHARED whether places of a type share a transform,
COORDINATES whether those of the place are added to a vote; FIRST whether there are no logits yet; WARPS of a program.

Tensors, all float32: `seen` [g s r·d l], `weight` [s m d·e] or [n m d·e], `coordinates` [place 2], `offset` [g s l],
`logits` [g s m l], `means` and all of their shape [g m r·e l], numbers of a parent [g m l]. The log of the weight with
which a parent uses a vote is logit + offset.
"""

import triton
import triton.language as tl

from torchcaps.ops.em.triton_tiles import load_numbers, transformed, zeros

# one program for any number of them: nothing is aligned by them
COUNTS = ["n_groups", "n_seen", "n_out", "n_chunks", "length", "places"]
LANES = tl.constexpr(32)
LOWEST = tl.constexpr(-3.0e38)  # below every log of a weight
TINY = tl.constexpr(1e-37)


@triton.jit
def place_of(n_out, n_seen, n_chunks, length, WARPS: tl.constexpr):
    """Group, chunk of votes, its first and last, output types of the lanes, whether they exist, and the lanes."""
    n_blocks = tl.cdiv(n_out, WARPS)
    program = tl.program_id(0)
    chunk = (program // n_blocks) % n_chunks
    g = (program // (n_blocks * n_chunks)).to(tl.int64)
    lane = tl.arange(0, WARPS * LANES)
    m = (program % n_blocks) * WARPS + lane // LANES
    first = chunk * length
    return g, chunk, first, tl.minimum(first + length, n_seen), tl.minimum(m, n_out - 1), m < n_out, lane % LANES


@triton.jit
def transform_at(weight, s, m, n_out, places, D: tl.constexpr, E: tl.constexpr, SHARED: tl.constexpr):
    """Load the transform of vote s for output type m."""
    owner = s // places if SHARED else s
    return load_numbers(weight + (owner * n_out + m).to(tl.int64) * (D * E), 1, D * E)


@triton.jit
def moved(start, coordinates, s, places, R: tl.constexpr, E: tl.constexpr, COORDINATES: tl.constexpr):
    """Add the coordinates of a vote's place to the first two numbers of its last column."""
    found = ()
    for r in tl.static_range(R):
        for e in tl.static_range(E):
            x = start[r * E + e]
            if COORDINATES and r < 2 and e == E - 1:
                x = x + tl.load(coordinates + (s % places) * 2 + r)
            found += (x,)
    return found


@triton.jit
def minus(numbers, N: tl.constexpr):
    found = ()
    for k in tl.static_range(N):
        found += (-numbers[k],)
    return found


@triton.jit
def include(vote, means, variances, ratio, kept, N: tl.constexpr):
    """Weighted means and variances with one more vote, of which it is a `ratio`: no difference of large numbers."""
    new_means, new_variances = (), ()
    for k in tl.static_range(N):
        step = vote[k] - means[k]
        new_means += (tl.fma(ratio, step, means[k]),)
        new_variances += (kept * tl.fma(ratio * step, step, variances[k]),)
    return new_means, new_variances


@triton.jit(do_not_specialize=COUNTS)
def fit_chunks(
    logits, offset, seen, weight, coordinates, partial, n_seen, n_out, n_chunks, length, places,
    R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, SHARED: tl.constexpr, COORDINATES: tl.constexpr,
    FIRST: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Fit Gaussians to `length` votes.

    `partial` [g m chunk 2·R·E+2 l]: means, variances, highest log, total of the weights exp(log - highest), where the
    highest is the one so far.
    """
    g, chunk, s, last, m, here, lane = place_of(n_out, n_seen, n_chunks, length, WARPS)
    top = tl.zeros((WARPS * LANES,), tl.float32) + LOWEST
    total = tl.zeros((WARPS * LANES,), tl.float32)
    means, variances = zeros(WARPS * LANES, R * E), zeros(WARPS * LANES, R * E)
    while s < last:
        row = g * n_seen + s
        pose = load_numbers(seen + row * (R * D * LANES) + lane, LANES, R * D)
        w = transform_at(weight, s, m, n_out, places, D, E, SHARED)
        start = moved(zeros(WARPS * LANES, R * E), coordinates, s, places, R, E, COORDINATES)
        vote = transformed(pose, w, start, R, D, E)
        log = tl.load(offset + row * LANES + lane)
        if not FIRST:
            log += tl.load(logits + (row * n_out + m) * LANES + lane)
        higher = tl.maximum(top, log)
        kept, data = total * tl.exp(top - higher), tl.exp(log - higher)
        total = kept + data
        share = 1.0 / tl.maximum(total, TINY)
        means, variances = include(vote, means, variances, data * share, kept * share, R * E)
        top = higher
        s += 1
    partial += ((g * n_out + m) * n_chunks + chunk) * ((2 * R * E + 2) * LANES) + lane
    for k in tl.static_range(R * E):
        tl.store(partial + k * LANES, means[k], mask=here)
        tl.store(partial + (R * E + k) * LANES, variances[k], mask=here)
    tl.store(partial + 2 * R * E * LANES, top, mask=here)
    tl.store(partial + (2 * R * E + 1) * LANES, total, mask=here)


@triton.jit
def merge(means, variances, more_means, more_variances, ratio, kept, N: tl.constexpr):
    """Means and variances of two sets of votes together; `ratio` of them are the second."""
    new_means, new_variances = (), ()
    for k in tl.static_range(N):
        step = more_means[k] - means[k]
        new_means += (tl.fma(ratio, step, means[k]),)
        within = tl.fma(ratio, more_variances[k], kept * variances[k])
        new_variances += (tl.fma(ratio * kept * step, step, within),)
    return new_means, new_variances


@triton.jit(do_not_specialize=COUNTS)
def fit_whole(
    partial, means_out, variances_out, amount, highest, scale, n_out, n_chunks, RE: tl.constexpr, WARPS: tl.constexpr
):
    """Put the chunks together. `amount` is the sum of exp(log); a vote's weight is exp(log - highest) · scale."""
    g, _, chunk, _, m, here, lane = place_of(n_out, 1, 1, 0, WARPS)
    at = g * n_out + m
    partial += at * n_chunks * ((2 * RE + 2) * LANES) + lane
    top = tl.zeros((WARPS * LANES,), tl.float32) + LOWEST
    total = tl.zeros((WARPS * LANES,), tl.float32)
    means, variances = zeros(WARPS * LANES, RE), zeros(WARPS * LANES, RE)
    while chunk < n_chunks:
        more_means = load_numbers(partial, LANES, RE)
        more_variances = load_numbers(partial + RE * LANES, LANES, RE)
        log = tl.load(partial + 2 * RE * LANES)
        higher = tl.maximum(top, log)
        kept = total * tl.exp(top - higher)
        data = tl.load(partial + (2 * RE + 1) * LANES) * tl.exp(log - higher)
        total = kept + data
        share = 1.0 / tl.maximum(total, TINY)
        means, variances = merge(means, variances, more_means, more_variances, data * share, kept * share, RE)
        top = higher
        partial += (2 * RE + 2) * LANES
        chunk += 1
    for k in tl.static_range(RE):
        tl.store(means_out + (at * RE + k) * LANES + lane, means[k], mask=here)
        tl.store(variances_out + (at * RE + k) * LANES + lane, variances[k], mask=here)
    tl.store(amount + at * LANES + lane, tl.exp(top) * total, mask=here)
    tl.store(highest + at * LANES + lane, top, mask=here)
    tl.store(scale + at * LANES + lane, 1.0 / tl.maximum(total, TINY), mask=here)


@triton.jit(do_not_specialize=COUNTS)
def log_densities(
    ready, means, factors, seen, weight, coordinates, logits, n_seen, n_out, n_chunks, length, places,
    R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, SHARED: tl.constexpr, COORDINATES: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """Compute the logits of `length` votes: ready - Σ factor · (vote - mean)²."""
    g, _, s, last, m, here, lane = place_of(n_out, n_seen, n_chunks, length, WARPS)
    at = g * n_out + m
    centre = minus(load_numbers(means + at * (R * E * LANES) + lane, LANES, R * E), R * E)
    factor = load_numbers(factors + at * (R * E * LANES) + lane, LANES, R * E)
    level = tl.load(ready + at * LANES + lane)
    while s < last:
        row = g * n_seen + s
        pose = load_numbers(seen + row * (R * D * LANES) + lane, LANES, R * D)
        w = transform_at(weight, s, m, n_out, places, D, E, SHARED)
        off = transformed(pose, w, moved(centre, coordinates, s, places, R, E, COORDINATES), R, D, E)
        total = tl.fma(factor[0] * off[0], off[0], 0.0)
        for k in tl.static_range(1, R * E):
            total = tl.fma(factor[k] * off[k], off[k], total)
        tl.store(logits + (row * n_out + m) * LANES + lane, level - total, mask=here)
        s += 1
