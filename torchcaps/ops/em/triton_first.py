"""Kernels of EM routing's first iteration, for transforms that inputs share. Maths: triton_backward.py.

There every output uses gate / J of every input, so that no walk over pairs is needed. With x the pose of an input, y
its distance from the mean of all by gate, and ū the average distance of votes from an output's mean, u = ū + y W. So
    Σ_j ∂D = level + Σ_rd y_rd (l_rd + Σ_d' M_rdd' y_rd' / 2),   ∂x_rd = gate / J (l_rd + Σ_d' M_rdd' y_rd'),
    l_rd = Σ_je (p + 2 q ū)_jre W_jde,   M_rdd' = Σ_je 2 q_jre W_jde W_jd'e,
and the gradient of a transform needs moments of the inputs only, Σ gate x and Σ gate y y'. ū is the one that the
forward pass found, and y must average to 0 beyond float32, or u would not be what means and variances were made of
(one input alone: y is 0, and ū a hundred-thousandth of the vote). Hence moments in float64, and with them forward
the mean and the variance of the votes: Σ_dd' W_de W_d'e Σ gate y y' does not cancel there.
`moments` has 1 + R·D + R·D·D numbers of every sample: Σ gate, Σ gate x, Σ gate x x'; `sums` has one more: level, what
is paid for ignoring, l, M.
"""

import triton
import triton.language as tl

from torchcaps.ops.em.triton_forward import TINY
from torchcaps.ops.em.triton_tiles import (
    lanes,
    load_columns,
    load_numbers,
    load_pose,
    load_sums,
    plus,
    store_pose,
    zeros,
)


@triton.jit
def input_moments(
    gates, poses, moments, n_in, n_chunks,
    R: tl.constexpr, D: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum the moments of STEPS · BLOCK inputs, [b chunk .]. Lanes are inputs."""
    b, chunk = (tl.program_id(0) // n_chunks).to(tl.int64), tl.program_id(0) % n_chunks
    total = ()
    for _ in tl.static_range(1 + R * D + R * D * D):
        total += (tl.zeros((BLOCK,), tl.float64),)
    for step in range(STEPS):
        i = (chunk * STEPS + step) * BLOCK + tl.arange(0, BLOCK)
        row = b * n_in + i
        gate = tl.load(gates + row, mask=i < n_in, other=0.0)
        pose = load_pose(poses, row, gate > 0, R * D)
        gate = gate.to(tl.float64)
        found = (total[0] + gate,)
        for k in tl.static_range(R * D):
            found += (total[1 + k] + gate * pose[k],)
        for k in tl.static_range(R * D):
            for other in tl.static_range(D):
                product = (gate * pose[k]) * pose[k // D * D + other]
                found += (total[1 + R * D + k * D + other] + product,)
        total = found
    moments += (b * n_chunks + chunk) * (1 + R * D + R * D * D)
    for k in tl.static_range(1 + R * D + R * D * D):
        tl.store(moments + k, tl.sum(total[k], 0))


@triton.jit
def first_chunk(
    moments, weight, bias, beta_use, beta_ignore, before, partial,
    J: tl.constexpr, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """M-step of the first iteration: `partial` as one chunk of all inputs, about means that go to `before`.

    Lanes are outputs.
    """
    b, j = lanes(J, BLOCK)
    here = j < J
    moments += b * (1 + R * D + R * D * D)
    before += b * ((3 * R * E + 3) * J) + j
    partial += b * ((2 * R * E + 3) * J) + j
    gates = tl.load(moments)
    over = 1.0 / tl.maximum(gates, TINY)
    w = load_columns(weight + j, J, here, D * E)
    for r in tl.static_range(R):
        for e in tl.static_range(E):
            mean, spread = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
            if BIAS:
                mean += tl.load(bias + (r * E + e) * J + j, mask=here, other=0.0)
            for d in tl.static_range(D):
                x = tl.load(moments + 1 + r * D + d)
                mean += w[d * E + e] * (x * over)
                turned = tl.zeros((BLOCK,), tl.float64)
                for other in tl.static_range(D):
                    product = tl.load(moments + 1 + R * D + (r * D + d) * D + other)
                    turned += w[other * E + e] * (product - x * (tl.load(moments + 1 + r * D + other) * over))
                spread += w[d * E + e] * turned
            k = r * E + e
            origin = mean.to(tl.float32)
            tl.store(before + k * J, origin, mask=here)
            tl.store(partial + k * J, (mean - origin).to(tl.float32), mask=here)
            tl.store(partial + (R * E + k) * J, tl.maximum(spread / J, 0.0).to(tl.float32), mask=here)
    used = (gates / J).to(tl.float32)
    ignored = (gates - gates / J).to(tl.float32)
    use = tl.load(beta_use + j, mask=here, other=0.0)
    ignore = tl.load(beta_ignore + j, mask=here, other=0.0)
    tl.store(partial + 2 * R * E * J, tl.zeros((BLOCK,), tl.float32) + used, mask=here)
    tl.store(partial + (2 * R * E + 1) * J, tl.zeros((BLOCK,), tl.float32) + ignored, mask=here)
    tl.store(partial + (2 * R * E + 2) * J, use * used - ignore * ignored, mask=here)


@triton.jit
def first_slopes(off, p, q, N: tl.constexpr):
    """Compute p + 2 q ū and 2 q of every pose dimension, and Σ ū (p + q ū)."""
    steep, twice = (), ()
    total = off[0] * tl.fma(q[0], off[0], p[0])
    for k in tl.static_range(N):
        if k > 0:
            total = tl.fma(off[k], tl.fma(q[k], off[k], p[k]), total)
        steep += (tl.fma(2.0 * q[k], off[k], p[k]),)
        twice += (2.0 * q[k],)
    return steep, twice, total


@triton.jit
def add_slopes(slope, bend, steep, twice, row, weight, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr):
    """Add an output's l [r] and M [r d'] of one row d of its transform."""
    slopes, bends = (), ()
    for r in tl.static_range(R):
        x = slope[r]
        for e in tl.static_range(E):
            x = tl.fma(steep[r * E + e], row[e], x)
        slopes += (x,)
        for other in tl.static_range(D):
            x = bend[r * D + other]
            for e in tl.static_range(E):
                x = tl.fma(twice[r * E + e] * row[e], weight[other * E + e], x)
            bends += (x,)
    return slopes, bends


@triton.jit
def row_moments(moments, d, R: tl.constexpr, D: tl.constexpr):
    """Load Σ gate x [r] and compute Σ gate y y' [r d'] of one column d of the poses."""
    gate = tl.maximum(tl.load(moments), TINY)
    total, about = (), ()
    for r in tl.static_range(R):
        x = tl.load(moments + 1 + r * D + d)
        total += (x.to(tl.float32),)
        for other in tl.static_range(D):
            product = tl.load(moments + 1 + R * D + (r * D + d) * D + other)
            about += ((product - x * (tl.load(moments + 1 + r * D + other) / gate)).to(tl.float32),)
    return total, about


@triton.jit
def first_sums(
    moments, weight, beta_use, beta_ignore, stats, slopes, sums, grad_weight, n_chunks,
    J: tl.constexpr, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`sums` of a sample and its gradient of the weight, for one row of the transforms. Lanes are outputs.

    The gradient goes into the first chunk, ADD: on top of what the iterations after this one left there.
    """
    b, d = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sums += b * (2 + R * D + R * D * D)
    total, about = row_moments(moments + b * (1 + R * D + R * D * D), d, R, D)
    level, paid = zeros(BLOCK, 2)
    slope, bend = zeros(BLOCK, R), zeros(BLOCK, R * D)
    for start in range(0, J, BLOCK):
        j = start + tl.arange(0, BLOCK)
        here = j < J
        of_slopes = slopes + b * ((3 * R * E + 2) * J) + j
        w, row = load_columns(weight + j, J, here, D * E), load_columns(weight + d * E * J + j, J, here, E)
        off = load_columns(stats + (b * (3 * R * E + 3) + 2 * R * E) * J + j, J, here, R * E)
        p = load_columns(of_slopes + R * E * J, J, here, R * E)
        q = load_columns(of_slopes + 2 * R * E * J, J, here, R * E)
        steep, twice, constant = first_slopes(off, p, q, R * E)
        grad_score = tl.load(of_slopes + (3 * R * E + 1) * J, mask=here, other=0.0)
        ignore = tl.load(beta_ignore + j, mask=here, other=0.0)
        betas = tl.load(beta_use + j, mask=here, other=0.0) + ignore
        constant += tl.load(of_slopes + 3 * R * E * J, mask=here, other=0.0)
        level += tl.fma(grad_score, betas, constant)
        paid += grad_score * ignore
        slope, bend = add_slopes(slope, bend, steep, twice, row, w, R, D, E)
        to = grad_weight + (b * n_chunks * D + d) * (E * J) + j
        for e in tl.static_range(E):
            found = tl.zeros((BLOCK,), tl.float32)
            for r in tl.static_range(R):
                turned = tl.zeros((BLOCK,), tl.float32)
                for other in tl.static_range(D):
                    turned = tl.fma(w[other * E + e], about[r * D + other], turned)
                found = tl.fma(steep[r * E + e], total[r], tl.fma(twice[r * E + e], turned, found))
            found = found / J
            if ADD:
                found += tl.load(to + e * J, mask=here, other=0.0)
            tl.store(to + e * J, found, mask=here)
    tl.store(sums, tl.sum(level, 0), mask=d == 0)
    tl.store(sums + 1, tl.sum(paid, 0), mask=d == 0)
    for r in tl.static_range(R):
        tl.store(sums + 2 + r * D + d, tl.sum(slope[r], 0))
        for other in tl.static_range(D):
            tl.store(sums + 2 + R * D + (r * D + d) * D + other, tl.sum(bend[r * D + other], 0))


@triton.jit
def first_inputs(
    gates, poses, moments, sums, grad_gates, grad_poses, out_scores, out_poses, n_batch, n_in,
    J: tl.constexpr, R: tl.constexpr, D: tl.constexpr, LATER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of scores and poses. Lanes are inputs.

    Adds the gradients that LATER iterations found, of the poses [t b i r d]; the backward pass comes here last.
    """
    b, i = lanes(n_in, BLOCK)
    here = i < n_in
    row = b * n_in + i
    gate = tl.load(gates + row, mask=here, other=0.0)
    pose = load_pose(poses, row, gate > 0, R * D)
    moments += b * (1 + R * D + R * D * D)
    sums += b * (2 + R * D + R * D * D)
    over = 1.0 / tl.maximum(tl.load(moments), TINY)
    y = ()
    for k in tl.static_range(R * D):
        y += ((pose[k].to(tl.float64) - tl.load(moments + 1 + k) * over).to(tl.float32),)
    slope = load_numbers(sums + 2, 1, R * D)
    total = tl.zeros((BLOCK,), tl.float32)
    grads = ()
    for k in tl.static_range(R * D):
        bent = tl.zeros((BLOCK,), tl.float32)
        for other in tl.static_range(D):
            bent = tl.fma(tl.load(sums + 2 + R * D + k * D + other), y[k // D * D + other], bent)
        total = tl.fma(y[k], tl.fma(bent, 0.5, slope[k]), total)
        grads += ((gate / J) * (slope[k] + bent),)
    for t in tl.static_range(LATER):
        at = row + tl.cast(t * n_batch, tl.int64) * n_in
        grads = plus(grads, load_sums(grad_poses, at, here, R * D), R * D)
    store_pose(out_poses, row, grads, here, R * D)
    found = (total + tl.load(sums)) / J - tl.load(sums + 1)
    if LATER > 0:
        found += tl.load(grad_gates + row, mask=here, other=0.0)
    tl.store(out_scores + row, (found * (gate * (1.0 - gate))).to(out_scores.dtype.element_ty), mask=here)
