"""Backward kernels of EM routing whose lanes are outputs. Tuples and letters: see triton_forward.py.

With data D = gate · R, total N = Σ_i D + eps and distance u = vote - mean, the M-step's gradients (s, m, v: of score,
means, variances) reach D and the votes as
    ∂D = s · (use + ignore) + Σ_re u (p + q u) - Σ_re q · (variance - eps),   ∂vote = D (p + 2 q u),
    q = v / N,  p = (m - 2 q Σ_i D u) / N.
(Σ_i D u would be eps · mean but for the rounding of the mean, which these terms must share to cancel.) The softmax of
the E-step turns ∂D into ∂logit = D (∂D - Σ_j R ∂D), and the logit reaches the votes, and means, variances and scores of
the iteration before, through distances from the means of that iteration.
`slopes` [b 3·R·E+2 j] holds for every output: mean of the iteration before - mean, p, q, the constant of ∂D, and s.
"""

import triton
import triton.language as tl

from torchcaps.ops.em.triton_tiles import (
    ABSENT,
    chunk_tile,
    first_input,
    lanes,
    load_columns,
    load_packed,
    load_pose,
    logit_of,
    own_parameters,
    plus,
    transformed,
    unpacked,
    zeros,
)


@triton.jit
def slopes_of(
    grad_scores, grad_poses, grad_variances, partial, stats, before, model, slopes, tallies, n_chunks, eps,
    J: tl.constexpr, RE: tl.constexpr, LAST: tl.constexpr,
    STEPS: tl.constexpr, CHUNKS: tl.constexpr, NUMBERS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Turn gradients of an iteration's score, means and variances into `slopes`.

    They come from outside or from the chunks of the next iteration, whose model is `model`. `tallies` [b R·E+2 j]: what
    the iteration adds to the gradients of a shared bias and of shared betas.
    """
    b, j = lanes(J, BLOCK)
    k = tl.arange(0, NUMBERS)
    at, here = k[:, None] * J + j[None, :], (k < RE)[:, None] & (j < J)[None, :]
    at_one, is_one = j[None, :], (j < J)[None, :]
    stats += b * ((3 * RE + 3) * J)
    mean = tl.load(stats + at, mask=here, other=0.0)
    variance = tl.load(stats + RE * J + at, mask=here, other=0.0)
    off = tl.load(stats + 2 * RE * J + at, mask=here, other=0.0)
    used = tl.load(stats + 3 * RE * J + at_one, mask=is_one, other=0.0)
    ignored = tl.load(stats + (3 * RE + 1) * J + at_one, mask=is_one, other=0.0)
    if LAST:
        row = (b * J + j)[None, :]
        grad_score = tl.load(grad_scores + row, mask=is_one, other=0.0).to(tl.float32)
        grad_mean = tl.load(grad_poses + row * RE + k[:, None], mask=here, other=0.0).to(tl.float32)
        grad_variance = tl.load(grad_variances + row * RE + k[:, None], mask=here, other=0.0).to(tl.float32)
    else:
        partial += b * n_chunks * ((2 * RE + 1) * J)
        means = tl.zeros((CHUNKS, NUMBERS, BLOCK), tl.float32)
        spreads = means
        levels = tl.zeros((CHUNKS, 1, BLOCK), tl.float32)
        for step in range(STEPS):
            chunk = step * CHUNKS + tl.arange(0, CHUNKS)
            where, there = chunk_tile(chunk, tl.arange(0, 1), j, n_chunks, J, RE, 2 * RE + 1)
            levels += tl.load(partial + 2 * RE * J + where, mask=there, other=0.0)
            where, there = chunk_tile(chunk, k, j, n_chunks, J, RE, 2 * RE + 1)
            means += tl.load(partial + where, mask=there, other=0.0)
            spreads += tl.load(partial + RE * J + where, mask=there, other=0.0)
        level = tl.sum(levels, 0)
        factor = tl.load(model + b * ((2 * RE + 1) * J) + RE * J + at, mask=here, other=0.0)
        grad_mean, grad_variance = -tl.sum(means, 0), factor * (tl.sum(spreads, 0) + level)
        score = tl.load(stats + (3 * RE + 2) * J + at_one, mask=is_one, other=0.0)
        small = tl.exp(-tl.abs(score))
        grad_score = level * tl.where(score > 0, small, 1.0) / (1.0 + small)  # the slope of logsigmoid
    q = grad_variance / (used + eps)
    p = (grad_mean - 2.0 * q * (used * off)) / (used + eps)
    shift = tl.load(before + b * ((3 * RE + 3) * J) + at, mask=here, other=0.0) - mean
    slopes += b * ((3 * RE + 2) * J)
    tl.store(slopes + at, shift, mask=here)
    tl.store(slopes + RE * J + at, p, mask=here)
    tl.store(slopes + 2 * RE * J + at, q, mask=here)
    tl.store(slopes + 3 * RE * J + at_one, -tl.sum(q * variance, 0)[None, :], mask=is_one)
    tl.store(slopes + (3 * RE + 1) * J + at_one, grad_score, mask=is_one)
    tally = used * (p + 2.0 * q * off)
    tallies += b * ((RE + 2) * J)
    # the gradient that reaches the next iteration's votes through this mean reaches the bias as well
    tl.store(tallies + at, tally if LAST else tally - grad_mean, mask=here)
    tl.store(tallies + RE * J + at_one, grad_score * used, mask=is_one)
    tl.store(tallies + (RE + 1) * J + at_one, -grad_score * ignored, mask=is_one)


@triton.jit
def data_gradient(off, p, q, constant, N: tl.constexpr):
    """Compute ∂D, and p + 2 q u for every dimension of the vote."""
    half = tl.fma(q[0], off[0], p[0])
    total = tl.fma(off[0], half, 0.0)
    steep = (tl.fma(q[0], off[0], half),)
    for k in tl.static_range(1, N):
        half = tl.fma(q[k], off[k], p[k])
        total = tl.fma(off[k], half, total)
        steep += (tl.fma(q[k], off[k], half),)
    return total + constant, steep


@triton.jit
def vote_gradients(steep, off, factors, a, c, N: tl.constexpr):
    """Compute a · steep + c · dlogit/dvote."""
    found = ()
    for k in tl.static_range(N):
        found += (tl.fma(a, steep[k], (2.0 * c) * (factors[k] * off[k])),)
    return found


@triton.jit
def vote_parts(off, steep, factors, data, logit, grad_means, grad_spreads, N: tl.constexpr):
    """Compute ∂vote, and add to the sums over inputs that make the gradients of the iteration before."""
    votes, new_means, new_spreads = (), (), ()
    for k in tl.static_range(N):
        pull = (2.0 * logit) * (factors[k] * off[k])
        votes += (tl.fma(data, steep[k], pull),)
        new_means += (grad_means[k] + pull,)
        new_spreads += (tl.fma(pull, off[k], grad_spreads[k]),)
    return votes, new_means, new_spreads


@triton.jit
def scaled(grads, a, N: tl.constexpr):
    found = ()
    for k in tl.static_range(N):
        found += (a * grads[k],)
    return found


@triton.jit
def outer(poses, grads, total, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr):
    """Compute total + poses [r d] · gradients of votes [r e]: [d e]."""
    found = ()
    for d in tl.static_range(D):
        for e in tl.static_range(E):
            x = total[d * E + e]
            for r in tl.static_range(R):
                x = tl.fma(poses[r * D + d], grads[r * E + e], x)
            found += (x,)
    return found


@triton.jit
def load_some_columns(start, first, there, R: tl.constexpr, D: tl.constexpr, SLICE: tl.constexpr):
    """Load [r d] of a pose for SLICE values of d only."""
    found = ()
    for r in tl.static_range(R):
        for d in tl.static_range(SLICE):
            found += (tl.load(start + r * D + first + d, mask=there & (first + d < D), other=0.0).to(tl.float32),)
    return found


@triton.jit
def chunk_gradients(
    gates, poses, weight, bias, beta_use, beta_ignore, model, softmax, slopes, expected, grad_gates, partial,
    grad_weight, n_in, n_chunks, length,
    J: tl.constexpr, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PAIRS: tl.constexpr, BIAS: tl.constexpr,
    FIRST: tl.constexpr, ADD: tl.constexpr, WHOLE: tl.constexpr, SLICE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One iteration's sums over `length` inputs for every output. Lanes are outputs, the walk is over inputs.

    `partial` [b chunk 2·R·E+1 j]: parts of the gradients of means, variances and score of the iteration before.
    `grad_weight` [b chunk d·e j], for a weight that inputs share; a program sums SLICE rows of it, so that the sums fit
    into registers.
    WHOLE: the lanes are all outputs, the slice is all rows: `expected` and the gradients of the gates are found here.
    """
    n_blocks = tl.cdiv(J, BLOCK)
    chunk = (tl.program_id(0) // n_blocks) % n_chunks
    b = (tl.program_id(0) // (n_blocks * n_chunks)).to(tl.int64)
    first = tl.program_id(1) * SLICE
    j = (tl.program_id(0) % n_blocks) * BLOCK + tl.arange(0, BLOCK)
    here = j < J
    model += b * (2 * R * E + 1) * J + j
    slopes += b * (3 * R * E + 2) * J + j
    grad_weight += ((b * n_chunks + chunk) * D + first) * E * J + j
    centre = load_columns(model, J, here, R * E)
    factors, level = centre, centre[0]
    if not FIRST:
        factors = load_columns(model + R * E * J, J, here, R * E)
        level = tl.load(model + 2 * R * E * J, mask=here, other=ABSENT)
    shift = load_columns(slopes, J, here, R * E)
    p, q = load_columns(slopes + R * E * J, J, here, R * E), load_columns(slopes + 2 * R * E * J, J, here, R * E)
    constant = tl.load(slopes + 3 * R * E * J, mask=here, other=0.0)
    grad_score = tl.load(slopes + (3 * R * E + 1) * J, mask=here, other=0.0)
    if not PAIRS:
        w = load_columns(weight + j, J, here, D * E)
        betas = tl.load(beta_use + j, mask=here, other=0.0) + tl.load(beta_ignore + j, mask=here, other=0.0)
        constant = tl.fma(grad_score, betas, constant)
        if WHOLE:
            paid = tl.sum(grad_score * tl.load(beta_ignore + j, mask=here, other=0.0), 0)
    grad_means, grad_spreads = zeros(BLOCK, R * E), zeros(BLOCK, R * E)
    grad_level = tl.zeros((BLOCK,), tl.float32)
    sums = zeros(BLOCK, SLICE * E)
    AHEAD: tl.constexpr = R * D <= 16  # more would not fit into registers
    step = 0
    row, gate, words, gate_ahead = first_input(gates, poses, b, chunk * length, n_in, R * D)
    while step < length:
        i = chunk * length + step
        real = i < n_in
        if AHEAD:
            pose = unpacked(words, poses.dtype.element_ty == tl.int64, R * D)
            words_ahead = load_packed(poses, row + 1, gate_ahead > 0, R * D)
        else:
            pose = load_pose(poses, row, gate > 0, R * D)
        start, base = centre, constant
        if PAIRS:
            pair = i.to(tl.int64) * J + j
            w, start, use, ignore = own_parameters(
                weight, bias, beta_use, beta_ignore, start, pair, here & real, R, D, E, BIAS
            )
            base = tl.fma(grad_score, use + ignore, base)
        off = transformed(pose, w, start, R, D, E)
        grad_data, steep = data_gradient(plus(off, shift, R * E), p, q, base, R * E)
        if FIRST:
            votes = scaled(steep, gate / J, R * E)
        else:
            top = tl.load(softmax + row * 2, mask=real, other=-ABSENT)
            scale = tl.load(softmax + row * 2 + 1, mask=real, other=0.0)
            share = scale * tl.exp(logit_of(off, factors, level, R * E) - top)
            if WHOLE:
                expectation = tl.sum(share * grad_data, 0)
                if PAIRS:
                    paid = tl.sum(grad_score * ignore, 0)
                tl.store(expected + row, expectation, mask=real)
                found = expectation - paid
                if ADD:
                    found += tl.load(grad_gates + row, mask=real, other=0.0)
                tl.store(grad_gates + row, found, mask=real)
            else:
                expectation = tl.load(expected + row, mask=real, other=0.0)
            data = gate * share
            logit = data * (grad_data - expectation)
            grad_level += logit
            votes, grad_means, grad_spreads = vote_parts(
                off, steep, factors, data, logit, grad_means, grad_spreads, R * E
            )
        if not PAIRS:
            part = pose if SLICE == D else load_some_columns(poses + row * (R * D), first, gate > 0, R, D, SLICE)
            sums = outer(part, votes, sums, R, SLICE, E)
        step += 1
        row += 1
        gate = gate_ahead
        if AHEAD:
            words = words_ahead
        gate_ahead = tl.load(gates + row + 1, mask=i + 2 < n_in, other=0.0)
    if not FIRST:
        partial += (b * n_chunks + chunk) * (2 * R * E + 1) * J + j
        mine = here & (first == 0)
        for k in tl.static_range(R * E):
            tl.store(partial + k * J, grad_means[k], mask=mine)
            tl.store(partial + (R * E + k) * J, grad_spreads[k], mask=mine)
        tl.store(partial + 2 * R * E * J, grad_level, mask=mine)
    if not PAIRS:
        for k in tl.static_range(SLICE * E):
            mine = here & (first + k // E < D)
            found = sums[k]
            if ADD:
                found += tl.load(grad_weight + k * J, mask=mine, other=0.0)
            tl.store(grad_weight + k * J, found, mask=mine)
