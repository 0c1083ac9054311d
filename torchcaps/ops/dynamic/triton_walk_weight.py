"""The weight's gradient after backward walks, for transforms per pair. Their form: see triton_walk.py.

A program has a tile of inputs and some of the outputs, and goes over all images and iterations. The gradient is made
transposed, [e n]: then couplings times poses [b n] are the right operand of a product in the very order in which a
thread loads them.
"""

import triton
import triton.language as tl

from torchcaps.ops.dynamic.triton_tiles import COUNTS, load_parent
from torchcaps.ops.dynamic.triton_walk import over_columns, walk_columns, walk_poses, zeros


@triton.jit(do_not_specialize=COUNTS)
def walk_weight(
    poses, pose_sums, grads, kept, grad_weight, scale, n_batch, n_in,
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr, JB: tl.constexpr,
    BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr, N_ITERS: tl.constexpr,
):  # fmt: skip
    """Write grad_weight_ijde = Σ_b poses_bid (gradient of the votes)_bije for JB outputs, through all iterations.

    kept [t b tile j (i 2)]: couplings and gradients of logits of all iterations but the first, whose couplings are all
    `scale`.
    """
    tile, first = tl.program_id(0), tl.program_id(1) * JB
    n_tiles = tl.cdiv(n_in, IB)
    size, size_kept = n_batch.to(tl.int64) * (J * E), n_batch.to(tl.int64) * n_tiles * (J * 2 * IB)
    kept += (tile * J + first) * (2 * IB) + tl.arange(0, 2 * IB)[None, :]
    pose_sums += first * E
    grads += first * E
    totals = zeros(JB, EP, IB * DP)
    for start in range(0, n_batch, BB):
        b = start + tl.arange(0, BB)
        x = walk_poses(poses, b, tile * IB, n_batch, n_in, BB, D, IB, DP)
        at = kept + b.to(tl.int64)[:, None] * (n_tiles * (J * 2 * IB))
        new = ()
        for j in tl.static_range(JB):
            there = (b < n_batch)[:, None] & (first + j < J)
            seen = tl.where(first + j < J, n_batch, 0)
            total = tl.dot(
                tl.trans(load_parent(grads, b, j, seen, J, E, EP)), (x * scale).to(T), totals[j],
                input_precision=PRECISION,
            )  # fmt: skip
            for t in tl.static_range(1, N_ITERS):
                both = tl.load(at + (t - 1) * size_kept + j * (2 * IB), mask=there, other=0.0).to(tl.float32)
                share, change = tl.split(tl.reshape(both, (BB, IB, 2)))
                g = tl.trans(load_parent(grads + t * size, b, j, seen, J, E, EP))
                total = tl.dot(g, (x * over_columns(share, BB, IB, DP)).to(T), total, input_precision=PRECISION)
                a = tl.trans(load_parent(pose_sums + (t - 1) * size, b, j, seen, J, E, EP))
                total = tl.dot(a, (x * over_columns(change, BB, IB, DP)).to(T), total, input_precision=PRECISION)
            new += (total,)
        totals = new
    i, d = walk_columns(tile * IB, IB, DP)
    e = tl.arange(0, EP)
    out = grad_weight + (i.to(tl.int64) * (J * D * E) + first * (D * E) + d * E)[None, :] + e[:, None]
    there = ((i < n_in) & (d < D))[None, :] & (e < E)[:, None]
    for j in tl.static_range(JB):
        tl.store(out + j * (D * E), totals[j].to(grad_weight.dtype.element_ty), mask=there & (first + j < J))
