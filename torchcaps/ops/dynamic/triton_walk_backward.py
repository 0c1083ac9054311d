"""Backward walk of dynamic routing, through one iteration. Its form: see triton_walk.py.

Two kernels, because the numbers of all outputs for their softmax and the sums of all outputs do not fit into registers
at once. The first makes the couplings again and finds the bounds of their softmax itself: bounds of another kernel,
whose logits may differ in the last bit, would not fit. It keeps couplings and gradients of logits for the second, which
takes one output at a time, and for the weight's gradient.
"""

import triton
import triton.language as tl

from torchcaps.ops.dynamic.triton_tiles import COUNTS, addresses, store_sums
from torchcaps.ops.dynamic.triton_walk import (
    dot_poses,
    from_columns,
    load_parents,
    over_columns,
    softmax,
    walk_poses,
    walk_weights,
    zeros,
)


@triton.jit(do_not_specialize=COUNTS)
def couple(
    poses, weight, pose_sum, grad, kept, grad_poses, n_batch, n_in, places, row_stride, blocks, add,
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr, AGAIN: tl.constexpr, LEAKY: tl.constexpr,
):  # fmt: skip
    """Write couplings c and gradients of logits to kept [b tile j (i 2)], and the gradient of the poses by them.

    With gain = votes · grad, where `grad` is the gradient of the sums, that of the logits is c (gain - Σ_j c gain).
    Where `add` is not 0, the gradient of the poses is added to what is there. It is no constant, because compiling
    this kernel twice takes as long as all others of dynamic routing together.
    """
    chunk = tl.program_id(1)
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    parents = load_parents(pose_sum, b, n_batch, J, E, EP)
    grads = load_parents(grad, b, n_batch, J, E, EP)
    n_tiles = tl.cdiv(n_in, IB)
    kept += b.to(tl.int64)[:, None] * (n_tiles * (J * 2 * IB)) + tl.arange(0, 2 * IB)[None, :]
    for tile in range(chunk * blocks, tl.minimum((chunk + 1) * blocks, n_tiles)):
        x = walk_poses(poses, b, tile * IB, n_batch, n_in, BB, D, IB, DP)
        w = walk_weights(weight, tile * IB, n_in, places, row_stride, J, D, E, IB, DP, EP, T)
        logits, gains = (), ()
        for j in tl.static_range(J):
            q = tl.dot(parents[j], tl.trans(w[j]), input_precision=PRECISION)
            logits += (dot_poses(q, x, BB, IB, DP),)
            q = tl.dot(grads[j], tl.trans(w[j]), input_precision=PRECISION)
            gains += (dot_poses(q, x, BB, IB, DP),)
        shares = softmax(logits, J, LEAKY)
        mean = shares[0] * gains[0]
        for j in tl.static_range(1, J):
            mean += shares[j] * gains[j]
        result = tl.zeros((BB, IB * DP), tl.float32)
        for j in tl.static_range(J):
            change = shares[j] * (gains[j] - mean)
            both = tl.reshape(tl.join(shares[j], change), (BB, 2 * IB))
            tl.store(kept + (tile * J + j) * (2 * IB), both.to(T), mask=(b < n_batch)[:, None])
            # Both products once more: those of all outputs would not fit into registers. AGAIN is a precision of
            # another name; without it the compiler sees that the products are the same, and does keep them
            q = tl.dot(grads[j], tl.trans(w[j]), input_precision=AGAIN)
            result += over_columns(shares[j], BB, IB, DP) * q
            q = tl.dot(parents[j], tl.trans(w[j]), input_precision=AGAIN)
            result += over_columns(change, BB, IB, DP) * q
        at, there = addresses(b, tile * IB, n_in, n_batch, n_in, D, IB, DP)
        result = from_columns(result, BB, IB, DP)
        result += tl.load(grad_poses + at, mask=there & (add != 0), other=0.0)
        tl.store(grad_poses + at, result, mask=there)


@triton.jit(do_not_specialize=COUNTS)
def walk_backward(
    poses, weight, kept, partial, n_batch, n_in, places, row_stride, blocks,
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write partial[chunk]_bje = Σ_i change_bij votes_bije over the inputs of one chunk, the gradient of pose_sum.

    `change` is the gradient of the logits, as `couple` kept it.
    """
    chunk = tl.program_id(1)
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    n_tiles = tl.cdiv(n_in, IB)
    kept += b.to(tl.int64)[:, None] * (n_tiles * (J * 2 * IB)) + tl.arange(0, 2 * IB)[None, :]
    totals = zeros(J, BB, EP)
    for tile in range(chunk * blocks, tl.minimum((chunk + 1) * blocks, n_tiles)):
        x = walk_poses(poses, b, tile * IB, n_batch, n_in, BB, D, IB, DP)
        w = walk_weights(weight, tile * IB, n_in, places, row_stride, J, D, E, IB, DP, EP, T)
        new = ()
        for j in tl.static_range(J):
            both = tl.load(kept + (tile * J + j) * (2 * IB), mask=(b < n_batch)[:, None], other=0.0)
            _, change = tl.split(tl.reshape(both.to(tl.float32), (BB, IB, 2)))
            part = (x * over_columns(change, BB, IB, DP)).to(T)
            new += (tl.dot(part, w[j], totals[j], input_precision=PRECISION),)
        totals = new
    store_sums(partial, totals, b, chunk, n_batch, J, E, EP)
