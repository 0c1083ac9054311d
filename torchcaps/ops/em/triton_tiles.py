"""Tuples of registers that the kernels of EM routing share: how they are loaded, transformed and summed.

Letters: see triton_forward.py.
"""

import triton
import triton.language as tl

ABSENT = tl.constexpr(-1.0e30)  # the logit of what is not there


@triton.jit
def lanes(n, BLOCK: tl.constexpr):
    """Sample of this program, and which BLOCK of its n inputs or outputs the lanes are."""
    n_blocks = tl.cdiv(n, BLOCK)
    return (tl.program_id(0) // n_blocks).to(tl.int64), (tl.program_id(0) % n_blocks) * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def load_numbers(start, stride, N: tl.constexpr):
    """Load N numbers, the same for all lanes."""
    found = ()
    for k in tl.static_range(N):
        found += (tl.load(start + k * stride).to(tl.float32),)
    return found


@triton.jit
def load_columns(start, stride, there, N: tl.constexpr):
    """Load N numbers for every lane (or, for a start that is no tile, for all), zero where there is nothing."""
    found = ()
    for k in tl.static_range(N):
        found += (tl.load(start + k * stride, mask=there, other=0.0).to(tl.float32),)
    return found


@triton.jit
def load_packed(poses, row, there, N: tl.constexpr):
    """Load the pose of a row as it lies in memory, four bfloat16 as one int64; zero where there is none."""
    WORDS: tl.constexpr = N // 4 if poses.dtype.element_ty == tl.int64 else N
    found = ()
    for k in tl.static_range(WORDS):
        found += (tl.load(poses + row * WORDS + k, mask=there, other=0),)
    return found


@triton.jit
def unpacked(words, PACKED: tl.constexpr, N: tl.constexpr):
    """Turn what `load_packed` found into N float32; a bfloat16 is the upper half of one."""
    found = ()
    if PACKED:
        for k in tl.static_range(N // 2):
            pair = (words[k // 2] >> (k % 2 * 32)).to(tl.int32)
            found += ((pair << 16).to(tl.float32, bitcast=True), (pair & -65536).to(tl.float32, bitcast=True))
    else:
        for k in tl.static_range(N):
            found += (words[k].to(tl.float32),)
    return found


@triton.jit
def load_pose(poses, row, there, N: tl.constexpr):
    """Load the N numbers of the pose of a row as float32, zero where there is none."""
    return unpacked(load_packed(poses, row, there, N), poses.dtype.element_ty == tl.int64, N)


@triton.jit
def load_sums(sums, row, there, N: tl.constexpr):
    """Load the N float32 of a row, which may come as int64, two each."""
    if sums.dtype.element_ty == tl.int64:
        found = ()
        for k in tl.static_range(N // 2):
            word = tl.load(sums + row * (N // 2) + k, mask=there, other=0)
            low, high = word.to(tl.int32), (word >> 32).to(tl.int32)
            found += (low.to(tl.float32, bitcast=True), high.to(tl.float32, bitcast=True))
    else:
        found = load_columns(sums + row * N, 1, there, N)
    return found


@triton.jit
def store_pose(poses, row, numbers, there, N: tl.constexpr):
    """Write N numbers to a row, four bfloat16 as one int64 where `poses` is of those."""
    if poses.dtype.element_ty == tl.int64:
        for k in tl.static_range(N // 4):
            word = tl.zeros_like(row)
            for n in tl.static_range(4):
                bits = numbers[4 * k + n].to(tl.bfloat16).to(tl.int16, bitcast=True)
                word |= (bits.to(tl.int64) & 0xFFFF) << (16 * n)
            tl.store(poses + row * (N // 4) + k, word, mask=there)
    else:
        for k in tl.static_range(N):
            tl.store(poses + row * N + k, numbers[k].to(poses.dtype.element_ty), mask=there)


@triton.jit
def first_input(gates, poses, b, i, n_in, N: tl.constexpr):
    """Start a walk over inputs that loads a pose one step ahead: row, gate and packed pose, and the next gate.

    A load takes as long as half of a step's arithmetic, and few warps are there to hide it.
    """
    row = b * n_in + i
    gate = tl.load(gates + row, mask=i < n_in, other=0.0)
    return row, gate, load_packed(poses, row, gate > 0, N), tl.load(gates + row + 1, mask=i + 1 < n_in, other=0.0)


@triton.jit
def zeros(BLOCK: tl.constexpr, N: tl.constexpr):
    found = ()
    for _ in tl.static_range(N):
        found += (tl.zeros((BLOCK,), tl.float32),)
    return found


@triton.jit
def plus(a, b, N: tl.constexpr):
    found = ()
    for k in tl.static_range(N):
        found += (a[k] + b[k],)
    return found


@triton.jit
def transformed(poses, weight, start, R: tl.constexpr, D: tl.constexpr, E: tl.constexpr):
    """Compute start + poses · weight: [r e]."""
    found = ()
    for r in tl.static_range(R):
        for e in tl.static_range(E):
            x = start[r * E + e]
            for d in tl.static_range(D):
                x = tl.fma(poses[r * D + d], weight[d * E + e], x)
            found += (x,)
    return found


@triton.jit
def logit_of(off, factors, level, N: tl.constexpr):
    """Compute level + Σ factor · off²; the level comes last because it is large, and with it every rounding."""
    total = tl.fma(factors[0] * off[0], off[0], 0.0)
    for k in tl.static_range(1, N):
        total = tl.fma(factors[k] * off[k], off[k], total)
    return total + level


@triton.jit
def own_parameters(
    weight, bias, beta_use, beta_ignore, start, pair, there,
    R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Load transform, start of the votes and betas of a pair that has its own."""
    w = load_columns(weight + pair * (D * E), 1, there, D * E)
    use = tl.load(beta_use + pair, mask=there, other=0.0).to(tl.float32)
    ignore = tl.load(beta_ignore + pair, mask=there, other=0.0).to(tl.float32)
    if BIAS:
        start = plus(load_columns(bias + pair * (R * E), 1, there, R * E), start, R * E)
    return w, start, use, ignore


@triton.jit
def chunk_tile(chunk, k, j, n_chunks, J: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr):
    """Where [chunk k j] lies in a `partial` of ROWS rows, and which of it is there."""
    at = chunk[:, None, None] * (ROWS * J) + k[None, :, None] * J + j[None, None, :]
    return at, (chunk < n_chunks)[:, None, None] & (k < N)[None, :, None] & (j < J)[None, None, :]


@triton.jit
def merged(top, total, other_top, other_total):
    """Put two sums of exponentials together, each taken from its own highest logit."""
    higher = tl.maximum(top, other_top)
    return higher, total * tl.exp(top - higher) + other_total * tl.exp(other_top - higher)


@triton.jit
def softmax_of_lanes(logit, BLOCK: tl.constexpr):
    """Find the highest logit of all lanes, and Σ exp(logit - highest).

    Within each warp first: warps then meet once in shared memory, not once for each of the two.
    """
    WIDTH: tl.constexpr = 32 if BLOCK > 32 else BLOCK
    logit = tl.reshape(logit, (BLOCK // WIDTH, WIDTH))
    tops = tl.max(logit, 1)
    return tl.reduce((tops, tl.sum(tl.exp(logit - tops[:, None]), 1)), 0, merged)
