"""Forward walk of dynamic routing: few outputs, whose logits all fit on chip, in one pass over the inputs.

A program holds a tile of images and walks over a chunk of inputs. For each tile of inputs it makes the logits of all
outputs, their softmax and the weighted sums, so that poses and weights are read once per iteration and the softmax
needs no kernel of its own. Formulas and letters: see triton_forward.py. Outputs are a tuple of tiles, one for each j.

Columns are (d/2, i, d%2) here, not (i, d): a thread of a tensor core's result has two neighbours in each eight columns,
and so all d of its inputs. Sums over d then stay within a thread, and no logit is held twice.
"""

import triton
import triton.language as tl

from torchcaps.ops.dynamic.triton_tiles import COUNTS, addresses, load_parent, store_sums


@triton.jit
def walk_columns(start, IB: tl.constexpr, DP: tl.constexpr):
    """Input and dimension of every column of a tile that starts at input `start`."""
    n = tl.arange(0, IB * DP)
    return start + n // 2 % IB, n // (2 * IB) * 2 + n % 2


@triton.jit
def to_columns(x, BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr):
    """Bring [b (i d)] as it lies in memory to the columns of a walk."""
    return tl.reshape(tl.permute(tl.reshape(x, (BB, IB, DP // 2, 2)), (0, 2, 1, 3)), (BB, IB * DP))


@triton.jit
def from_columns(x, BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr):
    """Undo `to_columns`."""
    return tl.reshape(tl.permute(tl.reshape(x, (BB, DP // 2, IB, 2)), (0, 2, 1, 3)), (BB, IB * DP))


@triton.jit
def dot_poses(q, x, BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr):
    """Sum q times poses [b n] over d: [b i]."""
    return tl.sum(tl.sum(tl.reshape(q * x, (BB, DP // 2, IB, 2)), 3), 1)


@triton.jit
def over_columns(numbers, BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr):
    """Repeat [b i] over d: [b n]."""
    wide = tl.broadcast_to(numbers[:, None, :, None], (BB, DP // 2, IB, 2))
    return tl.reshape(wide, (BB, IB * DP))


@triton.jit
def walk_poses(poses, b, start, n_batch, n_in, BB: tl.constexpr, D: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr):
    """Load [b n] as float32; zero outside, which adds nothing anywhere."""
    at, there = addresses(b, start, n_in, n_batch, n_in, D, IB, DP)
    return to_columns(tl.load(poses + at, mask=there, other=0.0), BB, IB, DP).to(tl.float32)


@triton.jit
def walk_weights(
    weight, start, n_in, places, row_stride,
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    T: tl.constexpr,
):  # fmt: skip
    """Load [n e] for every output, as `load_weight` does for one."""
    i, d = walk_columns(start, IB, DP)
    e = tl.arange(0, EP)
    at = weight + ((i // places).to(tl.int64) * row_stride + d * E)[:, None] + e[None, :]
    there = ((i < n_in) & (d < D))[:, None] & (e < E)[None, :]
    found = ()
    for j in tl.static_range(J):
        found += (tl.load(at + j * (D * E), mask=there, other=0.0).to(T),)
    return found


@triton.jit
def load_parents(parents, b, n_batch, J: tl.constexpr, E: tl.constexpr, EP: tl.constexpr):
    """Load [b e] of a tensor [b j e] for every output."""
    found = ()
    for j in tl.static_range(J):
        found += (load_parent(parents, b, j, n_batch, J, E, EP),)
    return found


@triton.jit
def softmax(logits, J: tl.constexpr, LEAKY: tl.constexpr):
    """Softmax over a tuple of tiles. LEAKY: with one more logit of 0, whose share nobody gets."""
    top = logits[0]
    for j in tl.static_range(1, J):
        top = tl.maximum(top, logits[j])
    if LEAKY:
        top = tl.maximum(top, 0.0)
    powers = ()
    for j in tl.static_range(J):
        powers += (tl.exp(logits[j] - top),)
    total = powers[0]
    for j in tl.static_range(1, J):
        total += powers[j]
    if LEAKY:
        total += tl.exp(-top)
    scale = 1 / total
    shares = ()
    for j in tl.static_range(J):
        shares += (powers[j] * scale,)
    return shares


@triton.jit
def zeros(J: tl.constexpr, BB: tl.constexpr, EP: tl.constexpr):
    """Sums of all outputs before the first input."""
    found = ()
    for _ in tl.static_range(J):
        found += (tl.zeros((BB, EP), tl.float32),)
    return found


@triton.jit(do_not_specialize=COUNTS)
def walk(
    poses, weight, pose_sum, partial, n_batch, n_in, places, row_stride, blocks,
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BB: tl.constexpr, IB: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr,
    T: tl.constexpr, PRECISION: tl.constexpr, LEAKY: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """Write partial[chunk]_bje = Σ_i couplings_bij votes_bije over the inputs of one chunk, `blocks` tiles.

    FIRST: with couplings of 1 (the caller scales).
    """
    chunk = tl.program_id(1)
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    if not FIRST:
        parents = load_parents(pose_sum, b, n_batch, J, E, EP)
    totals = zeros(J, BB, EP)
    for tile in range(chunk * blocks, tl.minimum((chunk + 1) * blocks, tl.cdiv(n_in, IB))):
        start = tile * IB
        x = walk_poses(poses, b, start, n_batch, n_in, BB, D, IB, DP)
        w = walk_weights(weight, start, n_in, places, row_stride, J, D, E, IB, DP, EP, T)
        if not FIRST:
            logits = ()
            for j in tl.static_range(J):
                q = tl.dot(parents[j], tl.trans(w[j]), input_precision=PRECISION)
                logits += (dot_poses(q, x, BB, IB, DP),)
            shares = softmax(logits, J, LEAKY)
        new = ()
        for j in tl.static_range(J):
            part = (x if FIRST else x * over_columns(shares[j], BB, IB, DP)).to(T)
            new += (tl.dot(part, w[j], totals[j], input_precision=PRECISION),)
        totals = new
    store_sums(partial, totals, b, chunk, n_batch, J, E, EP)
