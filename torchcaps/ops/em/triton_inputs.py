"""Backward kernels of EM routing whose lanes are inputs. Letters: see triton_forward.py, maths: triton_backward.py."""

import triton
import triton.language as tl

from torchcaps.ops.em.triton_backward import data_gradient, vote_gradients
from torchcaps.ops.em.triton_tiles import (
    ABSENT,
    lanes,
    load_numbers,
    load_pose,
    logit_of,
    own_parameters,
    plus,
    transformed,
    zeros,
)


@triton.jit
def pulled_back(grads, weight, total, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr):
    """Compute total + gradients of votes [r e] · weight: [r d]."""
    found = ()
    for r in tl.static_range(R):
        for d in tl.static_range(D):
            x = total[r * D + d]
            for e in tl.static_range(E):
                x = tl.fma(grads[r * E + e], weight[d * E + e], x)
            found += (x,)
    return found


@triton.jit
def seen_by(
    j, i, pose, here, weight, bias, beta_use, beta_ignore, model, slopes,
    J: tl.constexpr, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PAIRS: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Load and compute for output j: transform, distances from its mean before, ∂D and p + 2 q u, s · ignore."""
    start = load_numbers(model + j, J, R * E)
    if PAIRS:
        pair = i.to(tl.int64) * J + j
        w, start, use, ignore = own_parameters(weight, bias, beta_use, beta_ignore, start, pair, here, R, D, E, BIAS)
    else:
        w, use, ignore = load_numbers(weight + j, J, D * E), tl.load(beta_use + j), tl.load(beta_ignore + j)
    off = transformed(pose, w, start, R, D, E)
    grad_score = tl.load(slopes + (3 * R * E + 1) * J + j)
    constant = tl.fma(grad_score, use + ignore, tl.load(slopes + 3 * R * E * J + j))
    p, q = load_numbers(slopes + R * E * J + j, J, R * E), load_numbers(slopes + 2 * R * E * J + j, J, R * E)
    data, steep = data_gradient(plus(off, load_numbers(slopes + j, J, R * E), R * E), p, q, constant, R * E)
    return w, off, data, steep, grad_score * ignore


@triton.jit
def expectations(
    gates, poses, weight, bias, beta_use, beta_ignore, model, softmax, slopes, expected, grad_gates, n_in,
    J: tl.constexpr, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PAIRS: tl.constexpr, BIAS: tl.constexpr,
    ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`expected` [b i]: Σ_j R ∂D, and with it the gradients of the gates. Lanes are inputs, the walk is over outputs.

    ADD: on top of what the iterations after this one left there.
    """
    b, i = lanes(n_in, BLOCK)
    here = i < n_in
    row = b * n_in + i
    pose = load_pose(poses, row, tl.load(gates + row, mask=here, other=0.0) > 0, R * D)
    top = tl.load(softmax + row * 2, mask=here, other=-ABSENT)
    model += b * (2 * R * E + 1) * J
    slopes += b * (3 * R * E + 2) * J
    total, paid = zeros(BLOCK, 2)
    for j in range(J):
        _, off, data, _, cost = seen_by(
            j, i, pose, here, weight, bias, beta_use, beta_ignore, model, slopes, J, R, D, E, PAIRS, BIAS
        )
        factors = load_numbers(model + R * E * J + j, J, R * E)
        total += tl.exp(logit_of(off, factors, tl.load(model + 2 * R * E * J + j), R * E) - top) * data
        paid += cost
    total = total * tl.load(softmax + row * 2 + 1, mask=here, other=0.0)
    tl.store(expected + row, total, mask=here)
    found = total - paid
    if ADD:
        found += tl.load(grad_gates + row, mask=here, other=0.0)
    tl.store(grad_gates + row, found, mask=here)


@triton.jit
def pose_gradients(
    gates, poses, weight, bias, beta_use, beta_ignore, model, softmax, slopes, expected, grad_poses, n_batch, n_in,
    J: tl.constexpr, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PAIRS: tl.constexpr, BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of the poses by every iteration but the first, [t b i r d]. Lanes are inputs, the walk is over outputs.

    A walk of its own: summing apart what `expected` multiplies, in the walk that finds it, would be a difference of
    large numbers.
    All iterations in one launch: where the last few programs of a launch run alone, they do so only once.
    """
    b, i = lanes(n_in, BLOCK)
    here = i < n_in
    row = b * n_in + i
    gate = tl.load(gates + row, mask=here, other=0.0)
    pose = load_pose(poses, row, gate > 0, R * D)
    b += tl.program_id(1) * n_batch
    row = b * n_in + i
    top = tl.load(softmax + row * 2, mask=here, other=-ABSENT)
    expectation = tl.load(expected + row, mask=here, other=0.0)
    model += b * (2 * R * E + 1) * J
    slopes += b * (3 * R * E + 2) * J
    total = zeros(BLOCK, R * D)
    for j in range(J):
        w, off, data, steep, _ = seen_by(
            j, i, pose, here, weight, bias, beta_use, beta_ignore, model, slopes, J, R, D, E, PAIRS, BIAS
        )
        factors = load_numbers(model + R * E * J + j, J, R * E)
        share = tl.exp(logit_of(off, factors, tl.load(model + 2 * R * E * J + j), R * E) - top)
        votes = vote_gradients(steep, off, factors, share, share * (data - expectation), R * E)
        total = pulled_back(votes, w, total, R, D, E)
    scale = gate * tl.load(softmax + row * 2 + 1, mask=here, other=0.0)
    for k in tl.static_range(R * D):
        tl.store(grad_poses + row * (R * D) + k, scale * total[k], mask=here)


@triton.jit
def first_gradients(
    gates, poses, weight, bias, beta_use, beta_ignore, model, slopes, expected,
    grad_gates, grad_poses, out_scores, out_poses, n_batch, n_in,
    J: tl.constexpr, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PAIRS: tl.constexpr, BIAS: tl.constexpr,
    LATER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Both for the first iteration, where every probability is 1/J.

    It is reached last, so that gradients of gates become those of scores. LATER iterations found their part before.
    """
    b, i = lanes(n_in, BLOCK)
    here = i < n_in
    row = b * n_in + i
    gate = tl.load(gates + row, mask=here, other=0.0)
    pose = load_pose(poses, row, gate > 0, R * D)
    model += b * (2 * R * E + 1) * J
    slopes += b * (3 * R * E + 2) * J
    sum_data, paid = zeros(BLOCK, 2)
    total = zeros(BLOCK, R * D)
    for j in range(J):
        w, _, data, steep, cost = seen_by(
            j, i, pose, here, weight, bias, beta_use, beta_ignore, model, slopes, J, R, D, E, PAIRS, BIAS
        )
        sum_data += data
        paid += cost
        total = pulled_back(steep, w, total, R, D, E)
    tl.store(expected + row, sum_data / J, mask=here)
    found = sum_data / J - paid
    if LATER > 0:
        found += tl.load(grad_gates + row, mask=here, other=0.0)
    tl.store(out_scores + row, (found * (gate * (1.0 - gate))).to(out_scores.dtype.element_ty), mask=here)
    for k in tl.static_range(R * D):
        found = (gate / J) * total[k]
        for t in tl.static_range(LATER):
            at = row + tl.cast(t * n_batch, tl.int64) * n_in
            found += tl.load(grad_poses + at * (R * D) + k, mask=here, other=0.0)
        tl.store(out_poses + row * (R * D) + k, found.to(out_poses.dtype.element_ty), mask=here)
