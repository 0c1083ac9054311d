"""Forward kernels of EM routing.

A tile is one-dimensional: either a lane is an input and the program walks over the outputs, or a lane is an output and
the program walks over inputs. Values of the other side are then plain numbers, the same for all lanes. So no sum
over a pose or over the capsules walked over ever crosses lanes; poses and transforms are tuples of R·D, D·E, R·E
registers per lane. Capital letters are known when a kernel is compiled: R rows, D and E columns of a pose, BLOCK lanes,
PAIRS whether every pair has its own parameters, BIAS whether every pair has a bias, FIRST whether it is the first
iteration.

Tensors, all float32, j last so that lanes of outputs read a row:
- `model` [b 2·R·E+1 j] is what an E-step needs of each output: where its Gaussian sits (bias - mean: a vote's start, so
  that transforming a pose gives its distance from the mean), the factors -1/(2 variance), and the level
  logsigmoid(score) - Σ log(variance)/2.
- `stats` [b 3·R·E+3 j] is what an M-step found: means, variances without EPS, average distances from the means (EPS and
  rounding keep them from 0), data used, data ignored, score.
- `softmax` [b i 2] is the highest logit of an input and 1 / Σ_j exp(logit - highest): their logarithm in one number
  would be rounded.

The kernels of an iteration must agree to the last bit on a logit, or exp(logit - highest) exceeds 1 where logits are
huge: hence the explicit `tl.fma`, which leaves a compiler no choice.
"""

import triton
import triton.language as tl

from torchcaps.ops.em.triton_tiles import (
    ABSENT,
    chunk_tile,
    first_input,
    lanes,
    load_columns,
    load_numbers,
    load_packed,
    load_pose,
    logit_of,
    own_parameters,
    softmax_of_lanes,
    transformed,
    unpacked,
    zeros,
)

TINY = tl.constexpr(1e-37)  # below what an output can use of its inputs and matter
LOWEST = tl.constexpr(-3.0e38)  # below every logit


@triton.jit
def softmax_parts(
    gates, poses, weight, bias, beta_use, beta_ignore, model, softmax, n_in,
    J: tl.constexpr, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PAIRS: tl.constexpr, BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """E-step: the `softmax` of every input. Lanes are inputs, the walk is over outputs."""
    b, i = lanes(n_in, BLOCK)
    here = i < n_in
    row = b * n_in + i
    counts = tl.load(gates + row, mask=here, other=0.0) > 0
    pose = load_pose(poses, row, counts, R * D)
    model += b * (2 * R * E + 1) * J
    top = tl.zeros((BLOCK,), tl.float32) + LOWEST
    total = tl.zeros((BLOCK,), tl.float32)
    for j in range(J):
        start = load_numbers(model + j, J, R * E)
        if PAIRS:
            pair = i.to(tl.int64) * J + j
            w, start, _, _ = own_parameters(weight, bias, beta_use, beta_ignore, start, pair, here, R, D, E, BIAS)
        else:
            w = load_numbers(weight + j, J, D * E)
        off = transformed(pose, w, start, R, D, E)
        factors = load_numbers(model + R * E * J + j, J, R * E)
        logit = logit_of(off, factors, tl.load(model + 2 * R * E * J + j), R * E)
        higher = tl.maximum(top, logit)
        total = total * tl.exp(top - higher) + tl.exp(logit - higher)
        top = higher
    tl.store(softmax + row * 2, top, mask=here)
    tl.store(softmax + row * 2 + 1, 1.0 / total, mask=here)


@triton.jit
def include(off, means, spreads, ratio, kept, N: tl.constexpr):
    """Running means and sums of squares about them with one more vote: no difference of large numbers."""
    new_means, new_spreads = (), ()
    for k in tl.static_range(N):
        step = off[k] - means[k]
        new_means += (tl.fma(ratio, step, means[k]),)
        new_spreads += (tl.fma(kept * step, step, spreads[k]),)
    return new_means, new_spreads


@triton.jit
def chunk_statistics(
    gates, poses, weight, bias, beta_use, beta_ignore, model, softmax, partial, n_in, n_chunks, length,
    J: tl.constexpr, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PAIRS: tl.constexpr, BIAS: tl.constexpr,
    FIRST: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """E- and M-step of `length` inputs for every output. Lanes are outputs, the walk is over inputs.

    `partial` [b chunk 2·R·E+3 j]: means, spreads, used, ignored, score.
    WHOLE: the lanes are all outputs, so that `softmax` is found here, and written for the backward pass.
    """
    n_blocks = tl.cdiv(J, BLOCK)
    chunk = (tl.program_id(0) // n_blocks) % n_chunks
    b = (tl.program_id(0) // (n_blocks * n_chunks)).to(tl.int64)
    j = (tl.program_id(0) % n_blocks) * BLOCK + tl.arange(0, BLOCK)
    here = j < J
    model += b * (2 * R * E + 1) * J + j
    centre = load_columns(model, J, here, R * E)
    if not FIRST:
        factors = load_columns(model + R * E * J, J, here, R * E)
        level = tl.load(model + 2 * R * E * J, mask=here, other=ABSENT)
    if not PAIRS:
        w = load_columns(weight + j, J, here, D * E)
        use = tl.load(beta_use + j, mask=here, other=0.0)
        ignore = tl.load(beta_ignore + j, mask=here, other=0.0)
    used, ignored, score = zeros(BLOCK, 3)
    means, spreads = zeros(BLOCK, R * E), zeros(BLOCK, R * E)
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
        start = centre
        if PAIRS:
            pair = i.to(tl.int64) * J + j
            w, start, use, ignore = own_parameters(
                weight, bias, beta_use, beta_ignore, start, pair, here & real, R, D, E, BIAS
            )
        off = transformed(pose, w, start, R, D, E)
        if FIRST:
            data = gate / J
        else:
            logit = logit_of(off, factors, level, R * E)
            if WHOLE:
                top, total = softmax_of_lanes(logit, BLOCK)
                scale = 1.0 / total
                tl.store(softmax + row * 2, top, mask=real)
                tl.store(softmax + row * 2 + 1, scale, mask=real)
            else:
                top = tl.load(softmax + row * 2, mask=real, other=-ABSENT)
                scale = tl.load(softmax + row * 2 + 1, mask=real, other=0.0)
            data = (gate * scale) * tl.exp(logit - top)
        ratio = data / tl.maximum(used + data, TINY)
        means, spreads = include(off, means, spreads, ratio, ratio * used, R * E)
        used += data
        ignored += gate - data
        score += use * data - ignore * (gate - data)
        step += 1
        row += 1
        gate = gate_ahead
        if AHEAD:
            words = words_ahead
        gate_ahead = tl.load(gates + row + 1, mask=i + 2 < n_in, other=0.0)
    partial += (b * n_chunks + chunk) * (2 * R * E + 3) * J + j
    for k in tl.static_range(R * E):
        tl.store(partial + k * J, means[k], mask=here)
        tl.store(partial + (R * E + k) * J, spreads[k], mask=here)
    tl.store(partial + 2 * R * E * J, used, mask=here)
    tl.store(partial + (2 * R * E + 1) * J, ignored, mask=here)
    tl.store(partial + (2 * R * E + 2) * J, score, mask=here)


@triton.jit
def log_sigmoid(x):
    return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def statistics(
    partial, bias, before, stats, model, out_scores, out_poses, out_variances, n_chunks, eps,
    J: tl.constexpr, RE: tl.constexpr, BIAS: tl.constexpr, LAST: tl.constexpr,
    STEPS: tl.constexpr, CHUNKS: tl.constexpr, NUMBERS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Put the chunks together: `stats`, and the next iteration's `model` or the result.

    `before`: the stats from whose means distances are measured.
    A tile is CHUNKS chunks (STEPS tiles are all), NUMBERS >= R·E pose dimensions, BLOCK outputs. `bias` [re j] is the
    one that all inputs share.
    """
    b, j = lanes(J, BLOCK)
    k = tl.arange(0, NUMBERS)
    one = tl.arange(0, 1)
    partial += b * n_chunks * ((2 * RE + 3) * J)
    total = tl.zeros((CHUNKS, NUMBERS, BLOCK), tl.float32)
    sums = tl.zeros((CHUNKS, 1, BLOCK), tl.float32)
    others, scores = sums, sums
    for step in range(STEPS):
        chunk = step * CHUNKS + tl.arange(0, CHUNKS)
        at, there = chunk_tile(chunk, one, j, n_chunks, J, RE, 2 * RE + 3)
        data = tl.load(partial + 2 * RE * J + at, mask=there, other=0.0)
        sums += data
        others += tl.load(partial + (2 * RE + 1) * J + at, mask=there, other=0.0)
        scores += tl.load(partial + (2 * RE + 2) * J + at, mask=there, other=0.0)
        at, there = chunk_tile(chunk, k, j, n_chunks, J, RE, 2 * RE + 3)
        total += data * tl.load(partial + at, mask=there, other=0.0)
    used = tl.sum(sums, 0)  # [1 j]
    average = tl.sum(total, 0) / tl.maximum(used, TINY)  # [k j]
    total = tl.zeros((CHUNKS, NUMBERS, BLOCK), tl.float32)
    rest = total
    for step in range(STEPS):
        chunk = step * CHUNKS + tl.arange(0, CHUNKS)
        at, there = chunk_tile(chunk, one, j, n_chunks, J, RE, 2 * RE + 3)
        data = tl.load(partial + 2 * RE * J + at, mask=there, other=0.0)
        at, there = chunk_tile(chunk, k, j, n_chunks, J, RE, 2 * RE + 3)
        off = tl.load(partial + at, mask=there, other=0.0) - average[None, :, :]
        weighted = data * off
        total += tl.load(partial + RE * J + at, mask=there, other=0.0) + weighted * off
        rest += weighted
    spread = tl.sum(total, 0)
    # what rounding left out of the average: it is as large as the origin where the mean is 0, and so is its rounding
    rest = tl.sum(rest, 0) / tl.maximum(used, TINY)

    at, here = k[:, None] * J + j[None, :], (k < RE)[:, None] & (j < J)[None, :]
    origin = tl.load(before + b * ((3 * RE + 3) * J) + at, mask=here, other=0.0)
    # `fma`, or a compiler would subtract the mean before it is rounded
    mean = tl.fma((origin + average) + rest, used / (used + eps), 0.0)
    # the sum of squares is wanted about the mean as it is, moved by eps and rounded
    off = (average + (origin - mean)) + rest
    variance = (spread + used * off * off) / (used + eps)
    stats += b * ((3 * RE + 3) * J)
    tl.store(stats + at, mean, mask=here)
    tl.store(stats + RE * J + at, variance, mask=here)
    tl.store(stats + 2 * RE * J + at, off, mask=here)
    at_one, is_one = j[None, :], (j < J)[None, :]
    score = tl.sum(scores, 0)
    tl.store(stats + 3 * RE * J + at_one, used, mask=is_one)
    tl.store(stats + (3 * RE + 1) * J + at_one, tl.sum(others, 0), mask=is_one)
    tl.store(stats + (3 * RE + 2) * J + at_one, score, mask=is_one)
    if LAST:
        at = (b * J + j)[None, :] * RE + k[:, None]
        tl.store(out_scores + b * J + at_one, score.to(out_scores.dtype.element_ty), mask=is_one)
        tl.store(out_poses + at, mean.to(out_poses.dtype.element_ty), mask=here)
        tl.store(out_variances + at, (variance + eps).to(out_variances.dtype.element_ty), mask=here)
    else:
        model += b * ((2 * RE + 1) * J)
        start = tl.load(bias + at, mask=here, other=0.0) - mean if BIAS else -mean
        tl.store(model + at, start, mask=here)
        tl.store(model + RE * J + at, -0.5 / (variance + eps), mask=here)
        entropy = tl.sum(tl.where((k < RE)[:, None], tl.log(variance + eps), 0.0), 0)
        tl.store(model + 2 * RE * J + at_one, log_sigmoid(score) - 0.5 * entropy[None, :], mask=is_one)
