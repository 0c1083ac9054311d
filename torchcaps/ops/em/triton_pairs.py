"""Backward kernel of EM routing for parameters that every pair has for itself: a pair's owner walks over the batch."""

import triton
import triton.language as tl

from torchcaps.ops.em.triton_backward import data_gradient, load_some_columns, outer, vote_gradients
from torchcaps.ops.em.triton_tiles import ABSENT, load_columns, logit_of, own_parameters, plus, transformed, zeros


@triton.jit
def pair_gradients(
    gates, poses, weight, bias, beta_use, beta_ignore, model, softmax, slopes, expected,
    grad_weight, grad_bias, grad_use, grad_ignore, n_batch, n_in,
    J: tl.constexpr, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BIAS: tl.constexpr,
    N_ITERS: tl.constexpr, SLICE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All iterations' gradients of the parameters of one input and BLOCK outputs.

    `model`, `slopes` [t b . j], the rest [t b i]. The first iteration is one whose model fits every vote alike: factors
    and level 0, softmax 0 and 1 / J.
    """
    i = tl.program_id(0)
    first = tl.program_id(2) * SLICE
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = j < J
    pair = tl.cast(i, tl.int64) * J + j
    none = zeros(BLOCK, R * E)
    w, own, use, ignore = own_parameters(weight, bias, beta_use, beta_ignore, none, pair, here, R, D, E, BIAS)
    sums, votes_sum = zeros(BLOCK, SLICE * E), zeros(BLOCK, R * E)
    used, ignored = zeros(BLOCK, 2)
    b = 0
    while b < n_batch:
        row = tl.cast(b, tl.int64) * n_in + i
        gate = tl.load(gates + row)
        pose = load_columns(poses + row * (R * D), 1, gate > 0, R * D)
        part = pose if SLICE == D else load_some_columns(poses + row * (R * D), first, gate > 0, R, D, SLICE)
        for t in range(N_ITERS):
            sample = tl.cast(t * n_batch + b, tl.int64)
            at = sample * n_in + i
            of_model = model + sample * (2 * R * E + 1) * J + j
            of_slopes = slopes + sample * (3 * R * E + 2) * J + j
            centre, factors = load_columns(of_model, J, here, R * E), load_columns(of_model + R * E * J, J, here, R * E)
            level = tl.load(of_model + 2 * R * E * J, mask=here, other=ABSENT)
            off = transformed(pose, w, plus(own, centre, R * E) if BIAS else centre, R, D, E)
            grad_score = tl.load(of_slopes + (3 * R * E + 1) * J, mask=here, other=0.0)
            constant = tl.fma(grad_score, use + ignore, tl.load(of_slopes + 3 * R * E * J, mask=here, other=0.0))
            p = load_columns(of_slopes + R * E * J, J, here, R * E)
            q = load_columns(of_slopes + 2 * R * E * J, J, here, R * E)
            from_mean = plus(off, load_columns(of_slopes, J, here, R * E), R * E)
            grad_data, steep = data_gradient(from_mean, p, q, constant, R * E)
            scale = tl.load(softmax + at * 2 + 1)
            data = (gate * scale) * tl.exp(logit_of(off, factors, level, R * E) - tl.load(softmax + at * 2))
            votes = vote_gradients(steep, off, factors, data, data * (grad_data - tl.load(expected + at)), R * E)
            sums = outer(part, votes, sums, R, SLICE, E)
            votes_sum = plus(votes_sum, votes, R * E)
            used += grad_score * data
            ignored -= grad_score * (gate - data)
        b += 1
    for k in tl.static_range(SLICE * E):
        where = grad_weight + (pair * D + first) * E + k
        tl.store(where, sums[k].to(grad_weight.dtype.element_ty), mask=here & (first + k // E < D))
    mine = here & (first == 0)
    if BIAS:
        for k in tl.static_range(R * E):
            tl.store(grad_bias + pair * (R * E) + k, votes_sum[k].to(grad_bias.dtype.element_ty), mask=mine)
    tl.store(grad_use + pair, used.to(grad_use.dtype.element_ty), mask=mine)
    tl.store(grad_ignore + pair, ignored.to(grad_ignore.dtype.element_ty), mask=mine)
