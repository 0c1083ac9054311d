"""Backward walk of dynamic routing, through one iteration. Its form: see triton_walk.py.

It makes the couplings again and finds the bounds of their softmax itself: those of another kernel, whose logits may
differ in the last bit, would not fit.
"""

import triton
import triton.language as tl

from torchcaps.ops.dynamic.triton_tiles import COUNTS
from torchcaps.ops.dynamic.triton_walk import (
    dot_poses,
    from_columns,
    load_parents,
    over_columns,
    softmax,
    store_sums,
    walk_addresses,
    walk_poses,
    walk_weights,
    zeros,
)


@triton.jit
def couple(
    poses, weight, parents, grads, kept, b, start, n_batch, n_in, places, row_stride,
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr, LEAKY: tl.constexpr,
):  # fmt: skip
    """Write the couplings of a tile of inputs and the gradients of their logits to kept [b j (i 2)]."""
    x = walk_poses(poses, b, start, n_batch, n_in, BB, D, IB, DP)
    w = walk_weights(weight, start, n_in, places, row_stride, J, D, E, IB, DP, EP, T)
    logits, gains = (), ()
    for j in tl.static_range(J):
        qa = tl.dot(parents[j], tl.trans(w[j]), input_precision=PRECISION)
        logits += (dot_poses(qa, x, BB, IB, DP),)
        qg = tl.dot(grads[j], tl.trans(w[j]), input_precision=PRECISION)
        gains += (dot_poses(qg, x, BB, IB, DP),)
    shares = softmax(logits, J, LEAKY)
    mean = shares[0] * gains[0]
    for j in tl.static_range(1, J):
        mean += shares[j] * gains[j]
    for j in tl.static_range(J):
        both = tl.reshape(tl.join(shares[j], shares[j] * (gains[j] - mean)), (BB, 2 * IB))
        tl.store(kept + j * (2 * IB), both.to(T), mask=(b < n_batch)[:, None])


@triton.jit(do_not_specialize=COUNTS)
def walk_backward(
    poses, weight, pose_sum, grad, partial, kept, grad_poses, n_batch, n_in, places, row_stride, blocks,
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr, LEAKY: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Gradients by one iteration with couplings c, given `grad`, the gradient of its sums: of pose_sum and of poses.

    With gain = votes · grad the gradient of the logits is c (gain - Σ_j c gain). Both go to kept [b tile j (i 2)], also
    for the weight's gradient. A second walk, which needs them one output at a time, writes the gradient of pose_sum by
    one chunk of inputs to partial [chunk b j e], and the gradient of the poses (ADD: plus what is there). In one walk
    the numbers of all outputs and the sums of all outputs would not fit into registers.
    """
    chunk = tl.program_id(1)
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    parents = load_parents(pose_sum, b, n_batch, J, E, EP)
    grads = load_parents(grad, b, n_batch, J, E, EP)
    end = tl.minimum((chunk + 1) * blocks, tl.cdiv(n_in, IB))
    kept += b.to(tl.int64)[:, None] * (tl.cdiv(n_in, IB) * (J * 2 * IB)) + tl.arange(0, 2 * IB)[None, :]
    for tile in range(chunk * blocks, end):
        couple(
            poses, weight, parents, grads, kept + tile * (J * 2 * IB), b, tile * IB,
            n_batch, n_in, places, row_stride, J, D, E, BB, IB, DP, EP, T, PRECISION, LEAKY,
        )  # fmt: skip
    # what other threads of the program have kept is read below
    tl.debug_barrier()
    totals = zeros(J, BB, EP)
    for tile in range(chunk * blocks, end):
        x = walk_poses(poses, b, tile * IB, n_batch, n_in, BB, D, IB, DP)
        w = walk_weights(weight, tile * IB, n_in, places, row_stride, J, D, E, IB, DP, EP, T)
        result = tl.zeros((BB, IB * DP), tl.float32)
        new = ()
        for j in tl.static_range(J):
            both = tl.load(kept + (tile * J + j) * (2 * IB), mask=(b < n_batch)[:, None], other=0.0)
            share, change = tl.split(tl.reshape(both.to(tl.float32), (BB, IB, 2)))
            share, change = over_columns(share, BB, IB, DP), over_columns(change, BB, IB, DP)
            result += share * tl.dot(grads[j], tl.trans(w[j]), input_precision=PRECISION)
            result += change * tl.dot(parents[j], tl.trans(w[j]), input_precision=PRECISION)
            new += (tl.dot((x * change).to(T), w[j], totals[j], input_precision=PRECISION),)
        totals = new
        at, there = walk_addresses(b, tile * IB, n_batch, n_in, D, IB, DP)
        result = from_columns(result, BB, IB, DP)
        if ADD:
            result += tl.load(grad_poses + at, mask=there, other=0.0)
        tl.store(grad_poses + at, result, mask=there)
    store_sums(partial, totals, b, chunk, n_batch, J, E, EP)
