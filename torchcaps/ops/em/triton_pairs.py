"""Backward kernels of EM routing for its parameters.

Where every pair has its own, the pair's owner walks over the batch. Shared ones are summed in parts by
triton_backward.py, and the parts here.
"""

import triton
import triton.language as tl

from torchcaps.ops.em.triton_backward import data_gradient, load_some_columns, outer, vote_gradients
from torchcaps.ops.em.triton_tiles import (
    ABSENT,
    load_columns,
    load_pose,
    logit_of,
    own_parameters,
    plus,
    transformed,
    zeros,
)


@triton.jit
def over_samples(lanes, SAMPLES: tl.constexpr, BLOCK: tl.constexpr):
    """Sum what the samples of a program have for each of its outputs."""
    return tl.sum(tl.reshape(lanes, (SAMPLES, BLOCK)), 0)


@triton.jit
def pair_gradients(
    gates, poses, weight, bias, beta_use, beta_ignore, model, softmax, slopes, expected,
    grad_weight, grad_bias, grad_use, grad_ignore, n_batch, n_in,
    J: tl.constexpr, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BIAS: tl.constexpr,
    N_ITERS: tl.constexpr, SLICE: tl.constexpr, SAMPLES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All iterations' gradients of the parameters of one input and BLOCK outputs.

    `model`, `slopes` [t b . j], the rest [t b i]. The first iteration is one whose model fits every vote alike: factors
    and level 0, softmax 0 and 1 / J.
    A lane is an output for every SAMPLES-th sample: few outputs would leave most of a warp without work.
    """
    LANES: tl.constexpr = SAMPLES * BLOCK
    i = tl.program_id(0)
    first = tl.program_id(2) * SLICE
    lane = tl.arange(0, LANES)
    j = tl.program_id(1) * BLOCK + lane % BLOCK
    here = j < J
    pair = tl.cast(i, tl.int64) * J + j
    none = zeros(LANES, R * E)
    w, own, use, ignore = own_parameters(weight, bias, beta_use, beta_ignore, none, pair, here, R, D, E, BIAS)
    sums, votes_sum = zeros(LANES, SLICE * E), zeros(LANES, R * E)
    used, ignored = zeros(LANES, 2)
    start = 0
    while start < n_batch:
        b = start + lane // BLOCK
        real = b < n_batch
        there = here & real
        row = b.to(tl.int64) * n_in + i
        gate = tl.load(gates + row, mask=real, other=0.0)
        pose = load_pose(poses, row, gate > 0, R * D)
        part = pose if SLICE == D else load_some_columns(poses + row * (R * D), first, gate > 0, R, D, SLICE)
        for t in range(N_ITERS):
            sample = (t * n_batch + b).to(tl.int64)
            at = sample * n_in + i
            of_model = model + sample * (2 * R * E + 1) * J + j
            of_slopes = slopes + sample * (3 * R * E + 2) * J + j
            centre = load_columns(of_model, J, there, R * E)
            factors = load_columns(of_model + R * E * J, J, there, R * E)
            level = tl.load(of_model + 2 * R * E * J, mask=there, other=ABSENT)
            off = transformed(pose, w, plus(own, centre, R * E) if BIAS else centre, R, D, E)
            grad_score = tl.load(of_slopes + (3 * R * E + 1) * J, mask=there, other=0.0)
            constant = tl.fma(grad_score, use + ignore, tl.load(of_slopes + 3 * R * E * J, mask=there, other=0.0))
            p = load_columns(of_slopes + R * E * J, J, there, R * E)
            q = load_columns(of_slopes + 2 * R * E * J, J, there, R * E)
            from_mean = plus(off, load_columns(of_slopes, J, there, R * E), R * E)
            grad_data, steep = data_gradient(from_mean, p, q, constant, R * E)
            top = tl.load(softmax + at * 2, mask=real, other=-ABSENT)
            scale = gate * tl.load(softmax + at * 2 + 1, mask=real, other=0.0)
            data = scale * tl.exp(logit_of(off, factors, level, R * E) - top)
            expectation = tl.load(expected + at, mask=real, other=0.0)
            votes = vote_gradients(steep, off, factors, data, data * (grad_data - expectation), R * E)
            sums = outer(part, votes, sums, R, SLICE, E)
            votes_sum = plus(votes_sum, votes, R * E)
            used += grad_score * data
            ignored -= grad_score * (gate - data)
        start += SAMPLES
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = j < J
    pair = tl.cast(i, tl.int64) * J + j
    for k in tl.static_range(SLICE * E):
        where = grad_weight + (pair * D + first) * E + k
        found = over_samples(sums[k], SAMPLES, BLOCK)
        tl.store(where, found.to(grad_weight.dtype.element_ty), mask=here & (first + k // E < D))
    mine = here & (first == 0)
    if BIAS:
        for k in tl.static_range(R * E):
            found = over_samples(votes_sum[k], SAMPLES, BLOCK)
            tl.store(grad_bias + pair * (R * E) + k, found.to(grad_bias.dtype.element_ty), mask=mine)
    used, ignored = over_samples(used, SAMPLES, BLOCK), over_samples(ignored, SAMPLES, BLOCK)
    tl.store(grad_use + pair, used.to(grad_use.dtype.element_ty), mask=mine)
    tl.store(grad_ignore + pair, ignored.to(grad_ignore.dtype.element_ty), mask=mine)


@triton.jit
def sum_of_parts(start, stride, n_parts, here, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    first = 0
    while first < n_parts:
        part = first + tl.arange(0, ROWS)
        at = start[None, :] + part.to(tl.int64)[:, None] * stride
        total += tl.load(at, mask=(part < n_parts)[:, None] & here[None, :], other=0.0)
        first += ROWS
    return tl.sum(total, 0)


@triton.jit
def parameter_gradients(
    grad_weight, tallies, out_weight, out_bias, out_use, out_ignore, n_weights, n_tallies,
    J: tl.constexpr, DE: tl.constexpr, RE: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of shared parameters from their parts: `grad_weight` [. d·e j], `tallies` [. r·e+2 j].

    A program sums one of the rows d·e + r·e + 2. Lanes are outputs.
    """
    k = tl.program_id(0)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = j < J
    if k < DE:
        found = sum_of_parts(grad_weight + k * J + j, DE * J, n_weights, here, ROWS, BLOCK)
        tl.store(out_weight + j * DE + k, found.to(out_weight.dtype.element_ty), mask=here)
    else:
        row = k - DE
        found = sum_of_parts(tallies + row * J + j, (RE + 2) * J, n_tallies, here, ROWS, BLOCK)
        if BIAS:
            tl.store(out_bias + j * RE + row, found.to(out_bias.dtype.element_ty), mask=here & (row < RE))
        tl.store(out_use + j, found.to(out_use.dtype.element_ty), mask=here & (row == RE))
        tl.store(out_ignore + j, found.to(out_ignore.dtype.element_ty), mask=here & (row == RE + 1))
