"""Launch the kernels of EM routing: how a problem is cut, and which kernel follows which."""

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor

from torchcaps.ops.em.densities import EPS
from torchcaps.ops.gpus import tiles_on
from torchcaps.ops.kernel_op import launch
from torchcaps.ops.tiles import ceil_div, next_power_of_2

# lanes that are inputs: (inputs, warps) of a program. More inputs per thread share what is read of an output, fewer
# hide latency.
SOFTMAX_LANES = 64, 1
EXPECTATION_LANES = 64, 1
POSE_GRADIENT_LANES = 64, 1
FIRST_GRADIENT_LANES = 64, 1
MANY_NUMBERS = 16  # in a pose or a pair's transform: beyond it a thread has registers for one input only
# lanes that are outputs: at most so many of a program
STATISTICS_OUTPUTS = 64
GRADIENT_OUTPUTS = 64
# at most so many programs for each multiprocessor, unless the batch alone makes more: what it holds at once. A few
# more, and all would wait for those few.
STATISTICS_PROGRAMS = 8
GRADIENT_PROGRAMS = 4
LEAST_INPUTS = 16  # in a chunk; fewer than 256 inputs are cut into CHUNKS_AT_ONCE shorter ones
CHUNKS_AT_ONCE = 16  # that one step puts together; inputs of a chunk are loaded one after another
MERGED_OUTPUTS, MERGED_NUMBERS, MERGE_WARPS = 8, 2048, 4  # a program that puts chunks together; numbers of its tile
FIRST_INPUT_LANES = 64, 2
MOMENT_INPUTS, MOMENT_STEPS = 32, 8  # a program that sums moments of inputs: lanes, one warp, and inputs of each
FIRST_OUTPUTS = 32  # lanes of the other kernels of the first iteration: one warp
MOST_MOMENTS = 80  # of an input: they lie in registers, in float64
PAIR_LANES = 128  # outputs of one input times samples, at most
SLICE_NUMBERS = 64  # entries of a weight's gradient that a program sums at once


def n_moments(poses: Tensor, pairs: bool) -> int:
    """Count the moments of a sample's inputs that the first iteration comes from; 0 where it does not."""
    *_, rows, d_in = poses.shape
    return 0 if pairs or rows * d_in * (d_in + 1) > MOST_MOMENTS else 1 + rows * d_in * (d_in + 1)


class Problem(NamedTuple):
    """Inputs as the kernels want them, and how they are cut."""

    gates: Tensor  # [b i]
    poses: Tensor  # [b i r d]
    weight: Tensor  # [d·e j], or [i j d e] of every pair
    bias: Tensor  # [r·e j] or [i j r e]; anything where there is none
    beta_use: Tensor
    beta_ignore: Tensor
    has_bias: bool
    n_out: int
    d_out: int

    @classmethod
    def of(cls, scores, poses, weight, bias, beta_use, beta_ignore) -> "Problem":
        n_out, _, d_out = weight.shape[-3:]
        parameters = [weight, bias, beta_use, beta_ignore]
        if weight.ndim == 3:  # few numbers, read by every program: laid out for it
            parameters[:2] = [None if x is None else rearrange(x, "j x e -> (x e) j") for x in parameters[:2]]
            parameters = [None if x is None else x.float() for x in parameters]
        parameters = [None if x is None else x.contiguous() for x in parameters]
        gates = scores.float().sigmoid().contiguous()
        if bias is None:
            parameters[1] = gates
        return cls(gates, poses.contiguous(), *parameters, bias is not None, n_out, d_out)

    @property
    def pairs(self) -> bool:
        return self.weight.ndim == 4

    @property
    def numbers(self) -> int:
        """Dimensions of one output pose."""
        return self.poses.shape[2] * self.d_out

    def inputs(self, *rest: Tensor | int) -> tuple[Tensor | int, ...]:
        """First arguments of every kernel that makes votes, then the rest."""
        return self.gates, self.packed, self.weight, self.bias, self.beta_use, self.beta_ignore, *rest

    @property
    def packed(self) -> Tensor:
        """Poses as the kernels read them: four bfloat16 as one int64, where rows are whole fours and aligned."""
        d_in, start = self.poses.shape[3], self.poses.storage_offset()
        aligned = d_in % 4 == 0 and start % 4 == 0 and self.poses.data_ptr() % 8 == 0
        fours = self.poses.dtype == torch.bfloat16 and aligned and self.slice() == d_in
        return self.poses.view(torch.int64) if fours else self.poses

    @property
    def constants(self) -> dict[str, int | bool]:
        rows, d_in = self.poses.shape[2:]
        flags = {"PAIRS": self.pairs, "BIAS": self.pairs and self.has_bias}
        return {"J": self.n_out, "R": rows, "D": d_in, "E": self.d_out, **flags}

    def many_numbers(self, of_pairs: bool) -> bool:
        """Whether a thread has registers for one capsule only; `of_pairs`: it holds a transform as well."""
        rows, d_in = self.poses.shape[2:]
        return max(rows * d_in, self.numbers, d_in * self.d_out if of_pairs else 0) > MANY_NUMBERS

    def lanes(self, most: int, per_thread: int = 1) -> dict[str, int]:
        block = min(most, next_power_of_2(self.n_out))
        return {"BLOCK": block, "num_warps": max(1, block // (32 * per_thread))}

    def cut(self, most: int, programs: int) -> tuple[int, int]:
        """Number of chunks of inputs, and inputs of each."""
        n_batch, n_in = self.gates.shape
        programs *= tiles_on(self.gates.device).multiprocessors
        n_chunks = max(1, programs // max(1, n_batch * ceil_div(self.n_out, min(most, next_power_of_2(self.n_out)))))
        least = min(LEAST_INPUTS, max(2, ceil_div(n_in, CHUNKS_AT_ONCE)))
        length = max(least, ceil_div(n_in, n_chunks))
        return max(1, ceil_div(n_in, length)), length

    @property
    def closed_first(self) -> bool:
        """Whether the first iteration comes from moments of the inputs."""
        return n_moments(self.poses, self.pairs) > 0

    def merging(self, n_chunks: int) -> tuple[tuple[int], dict[str, int]]:
        """Grid and sizes of a kernel that puts chunks together."""
        block, numbers = min(MERGED_OUTPUTS, next_power_of_2(self.n_out)), next_power_of_2(self.numbers)
        chunks = min(next_power_of_2(n_chunks), max(1, MERGED_NUMBERS // (block * numbers)))
        steps = next_power_of_2(ceil_div(n_chunks, chunks))
        tile = {"STEPS": steps, "CHUNKS": chunks, "NUMBERS": numbers, "BLOCK": block, "num_warps": MERGE_WARPS}
        return (len(self.gates) * ceil_div(self.n_out, block),), {"J": self.n_out, "RE": self.numbers, **tile}

    def over_inputs(
        self, kernel, lanes: tuple[int, int], *rest: Tensor | int, times: int = 1, **flags: int | bool
    ) -> None:
        """Launch a kernel whose lanes are inputs, for `times` iterations at once."""
        (n_batch, n_in), (block, warps) = self.gates.shape, lanes
        if self.many_numbers(self.pairs):
            block = 32 * warps
        grid = n_batch * ceil_div(n_in, block), times
        launch(kernel, grid)(*self.inputs(*rest), n_in, **self.constants, **flags, BLOCK=block, num_warps=warps)

    def slice(self) -> int:
        """Rows of a weight whose gradient a program sums at once."""
        return max(1, min(self.poses.shape[3], SLICE_NUMBERS // self.d_out))

    def new(self, *shape: int) -> Tensor:
        return self.gates.new_empty(shape)


def forward(problem: Problem, outputs: tuple[Tensor, ...], models, stats, softmax, moments) -> None:
    """Write scores, poses and variances, and what triton_op.py keeps for the backward pass."""
    from torchcaps.ops.em import triton_forward as kernels

    n_batch, n_in = problem.gates.shape
    # two outputs per thread: a warp then is all 64 of them, and finds their softmax without waiting for another
    lanes = problem.lanes(STATISTICS_OUTPUTS, per_thread=1 if problem.pairs or problem.many_numbers(True) else 2)
    n_chunks, length = problem.cut(STATISTICS_OUTPUTS, STATISTICS_PROGRAMS)
    partial = problem.new(n_batch, n_chunks, 2 * problem.numbers + 3, problem.n_out)
    shared_bias = problem.has_bias and not problem.pairs
    whole = problem.n_out <= lanes["BLOCK"]

    def merge(t: int, before: Tensor, last: bool, n_chunks: int) -> None:
        grid, tile = problem.merging(n_chunks)
        launch(kernels.statistics, grid)(
            partial, problem.bias, before, stats[t + 1], models[t if last else t + 1], *outputs, n_chunks, EPS,
            BIAS=shared_bias, LAST=last, **tile,
        )  # fmt: skip

    def statistics(t: int, before: Tensor, last: bool, n_chunks: int, length: int) -> None:
        """Run the M-step of iteration t by `models[t]` and `softmax[t]`; `stats` start one iteration earlier."""
        grid = (n_batch * n_chunks * ceil_div(problem.n_out, lanes["BLOCK"]),)
        inputs = problem.inputs(models[max(t, 0)], softmax[max(t, 0)], partial)
        flags = {"FIRST": t <= 0, "WHOLE": whole}
        launch(kernels.chunk_statistics, grid)(*inputs, n_in, n_chunks, length, **problem.constants, **flags, **lanes)
        merge(t, before, last, n_chunks)

    # before the first iteration every output fits every vote alike, and distances are from 0
    models[0].zero_()
    softmax[0, ..., 0], softmax[0, ..., 1] = 0, 1 / problem.n_out
    if problem.closed_first:
        stats[0].zero_()
        _first_chunk(problem, moments, stats[0], partial)
        merge(0, stats[0], len(models) == 1, 1)
    else:
        if shared_bias:
            models[0, :, : problem.numbers] = problem.bias
        # from a few inputs, means near those of all: distances from them are small, and so is their rounding
        statistics(-1, torch.zeros_like(stats[0]), False, 1, min(LEAST_INPUTS, n_in))
        models[0, :, problem.numbers :] = 0
    for t in range(1 if problem.closed_first else 0, len(models)):
        if t > 0 and not whole:
            problem.over_inputs(kernels.softmax_parts, SOFTMAX_LANES, models[t], softmax[t])
        statistics(t, stats[t], t == len(models) - 1, n_chunks, length)


def _first_chunk(problem: Problem, moments: Tensor, before: Tensor, partial: Tensor) -> None:
    """Write `moments` and the M-step of the first iteration: triton_first.py."""
    from torchcaps.ops.em.triton_first import first_chunk, input_moments

    (n_batch, n_in), (rows, d_in) = problem.gates.shape, problem.poses.shape[2:]
    n_chunks = max(1, ceil_div(n_in, MOMENT_STEPS * MOMENT_INPUTS))
    parts = moments.new_empty(n_batch, n_chunks, moments.shape[1])
    launch(input_moments, (n_batch * n_chunks,))(
        problem.gates, problem.packed, parts, n_in, n_chunks,
        R=rows, D=d_in, STEPS=MOMENT_STEPS, BLOCK=MOMENT_INPUTS, num_warps=1,
    )  # fmt: skip
    torch.sum(parts, 1, out=moments)
    parameters = problem.weight, problem.bias, problem.beta_use, problem.beta_ignore
    launch(first_chunk, (len(problem.gates) * ceil_div(problem.n_out, FIRST_OUTPUTS),))(
        moments, *parameters, before, partial,
        J=problem.n_out, R=rows, D=d_in, E=problem.d_out, BIAS=problem.has_bias, BLOCK=FIRST_OUTPUTS, num_warps=1,
    )  # fmt: skip


def backward(
    problem: Problem,
    incoming: list[Tensor],
    outputs: tuple[Tensor, ...],
    models: Tensor,
    stats: Tensor,
    softmax: Tensor,
    moments: Tensor,
) -> tuple[Tensor, Tensor]:
    """Write the gradients of scores, poses and of parameters that pairs have for themselves.

    For shared parameters return their parts: of the weight [b chunk d·e j], of bias and betas [t b r·e+2 j].
    """
    from torchcaps.ops.em import triton_backward as kernels
    from torchcaps.ops.em import triton_inputs as of_inputs

    (n_batch, n_in), (n_out, n) = problem.gates.shape, (problem.n_out, problem.numbers)
    n_iters, later = len(models), len(models) - 1
    summed = torch.empty_like(problem.gates), problem.new(later, *problem.poses.shape)
    slopes, tallies = (problem.new(n_iters, n_batch, rows, n_out) for rows in (3 * n + 2, n + 2))
    expected = problem.new(n_iters, n_batch, n_in)
    lanes, piece = problem.lanes(GRADIENT_OUTPUTS), problem.slice()
    n_chunks, length = problem.cut(GRADIENT_OUTPUTS, GRADIENT_PROGRAMS)
    slices = 1 if problem.pairs else ceil_div(problem.poses.shape[3], piece)
    whole = n_out <= lanes["BLOCK"] and slices == 1  # a slice of many has no register to spare
    grid = n_batch * n_chunks * ceil_div(n_out, lanes["BLOCK"]), slices
    merge_grid, merge = problem.merging(n_chunks)
    partial = problem.new(n_batch, n_chunks, 2 * n + 1, n_out)
    closed = problem.closed_first
    # without any walk the gradient of the weight is one chunk
    chunks = 1 if closed and n_iters == 1 else n_chunks
    grad_weight = partial if problem.pairs else problem.new(n_batch, chunks, len(problem.weight), n_out)
    for t in range(n_iters - 1, -1, -1):
        first, last = t == 0, t == n_iters - 1
        launch(kernels.slopes_of, merge_grid)(
            *incoming, partial, stats[t + 1], stats[t], models[t if last else t + 1],
            slopes[t], tallies[t], n_chunks, EPS, LAST=last, **merge,
        )  # fmt: skip
        seen = models[t], softmax[t], slopes[t], expected[t]
        if first and closed:
            _first_gradients(problem, moments, stats[1], slopes[0], grad_weight, *summed, *outputs[:2], later=later)
            break
        if first:
            written = models[t], slopes[t], expected[t], *summed, *outputs[:2]
            problem.over_inputs(of_inputs.first_gradients, FIRST_GRADIENT_LANES, *written, n_batch, LATER=later)
        elif not whole:
            problem.over_inputs(of_inputs.expectations, EXPECTATION_LANES, *seen, summed[0], ADD=not last)
        if not (first and problem.pairs):
            flags = {"FIRST": first, "ADD": not last, "WHOLE": whole, "SLICE": piece}
            inputs = problem.inputs(*seen, summed[0], partial, grad_weight)
            launch(kernels.chunk_gradients, grid)(
                *inputs, n_in, n_chunks, length, **problem.constants, **flags, **lanes
            )
        if t == 1:
            seen = models[1:], softmax[1:], slopes[1:], expected[1:]
            problem.over_inputs(of_inputs.pose_gradients, POSE_GRADIENT_LANES, *seen, summed[1], n_batch, times=later)
    if problem.pairs:
        _pair_gradients(problem, models, softmax, slopes, expected, outputs[2:])
    return grad_weight, tallies


def _first_gradients(problem: Problem, moments, stats, slopes, grad_weight, *written: Tensor, later: int) -> None:
    """Finish the backward pass without a walk over pairs: triton_first.py."""
    from torchcaps.ops.em import triton_first as kernels

    (n_batch, n_in), (rows, d_in), n_out = problem.gates.shape, problem.poses.shape[2:], problem.n_out
    sums = problem.new(n_batch, 2 + rows * d_in * (d_in + 1))
    launch(kernels.first_sums, (n_batch, d_in))(
        moments, problem.weight, problem.beta_use, problem.beta_ignore, stats, slopes, sums, grad_weight,
        grad_weight.shape[1], J=n_out, R=rows, D=d_in, E=problem.d_out, ADD=later > 0, BLOCK=FIRST_OUTPUTS, num_warps=1,
    )  # fmt: skip
    if problem.packed.dtype == torch.int64:  # lanes are rows apart: each load or store of many costs the same
        grad_gates, grad_poses, out_scores, out_poses = written
        written = grad_gates, grad_poses.view(torch.int64), out_scores, out_poses.view(torch.int64)
    block, warps = FIRST_INPUT_LANES
    launch(kernels.first_inputs, (n_batch * ceil_div(n_in, block),))(
        problem.gates, problem.packed, moments, sums, *written, n_batch, n_in,
        J=n_out, R=rows, D=d_in, LATER=later, BLOCK=block, num_warps=warps,
    )  # fmt: skip


def _pair_gradients(problem: Problem, models, softmax, slopes, expected, outputs) -> None:
    from torchcaps.ops.em.triton_pairs import pair_gradients

    n_batch, n_in = problem.gates.shape
    block, piece = problem.lanes(GRADIENT_OUTPUTS)["BLOCK"], problem.slice()
    samples = min(next_power_of_2(max(1, n_batch)), max(1, PAIR_LANES // block))
    tile = {"SLICE": piece, "SAMPLES": samples, "BLOCK": block, "num_warps": max(1, samples * block // 32)}
    grid = n_in, ceil_div(problem.n_out, block), ceil_div(problem.poses.shape[3], piece)
    constants = {name: x for name, x in problem.constants.items() if name != "PAIRS"}
    inputs = problem.inputs(models, softmax, slopes, expected, *outputs)
    launch(pair_gradients, grid)(*inputs, n_batch, n_in, **constants, N_ITERS=len(models), **tile)
