"""EM routing on CUDA without the votes: two passes over all pairs per iteration forward, two backward, as Triton kernels.

Neither votes [b i j r e] nor probabilities [b i j] are written to memory. Kept for the backward pass: per iteration what every output
was and needed [t b . j], and one number per input, the log of the denominator of its probabilities [t b i]. Sums over the
inputs are taken in chunks and then put together in a fixed order, without atomics: the same inputs give the same bits.
All arithmetic is float32 whatever the inputs are. Variances are running sums of squares about running means, so that a
common offset of the votes does not cancel.
"""

import os
from importlib.util import find_spec
from math import log
from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor

from torchcaps.ops.em import EPS

# lanes that are inputs: (inputs, warps) of a program
NORMALIZER_LANES = 64, 1
INPUT_GRADIENT_LANES = 64, 1
# lanes that are outputs: at most so many of a program, one per thread
STATISTICS_OUTPUTS = 64
GRADIENT_OUTPUTS = 64
PROGRAMS = 1056  # at least, that the chunks of inputs shall make in those kernels: 8 for each of an H200's 132 multiprocessors
LEAST_INPUTS = 16  # of a chunk, where there are so many
MERGED_OUTPUTS, MERGED_NUMBERS, MERGE_WARPS = 8, 2048, 4  # of a program that puts chunks together; numbers of its tile
SLICE_NUMBERS = 64  # of a weight's gradient that a program sums at once
LARGEST = 64  # numbers of an input pose, of an output pose: they lie in registers
LARGEST_WEIGHT, LARGEST_PRODUCT = 256, 1024  # numbers of a transform; multiplications of a vote, which are all written out


def refuses(scores, poses, weight, bias, beta_use, beta_ignore, n_iters) -> str | None:
    """Why the Triton backend cannot run these arguments, or None."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    tensors = [x for x in (scores, poses, weight, bias, beta_use, beta_ignore) if x is not None]
    elsewhere = [x.device.type for x in tensors if x.device.type != "cuda"]
    if elsewhere and not interpreted:
        return f"needs CUDA tensors, got one on {elsewhere[0]}; move the input"
    if find_spec("triton") is None:
        return "needs the package triton, and it is not installed; install it"
    if wide := {x.dtype for x in tensors} - {torch.float32, torch.bfloat16, torch.float16}:
        return f"computes in float32, got {', '.join(map(str, wide))}; convert the input"
    rows, d_in, d_out = *poses.shape[-2:], weight.shape[-1]
    if max(rows * d_in, rows * d_out) > LARGEST or d_in * d_out > LARGEST_WEIGHT or rows * d_in * d_out > LARGEST_PRODUCT:
        return (
            f"keeps a pose and a transform in registers: at most {LARGEST} numbers of a pose, {LARGEST_WEIGHT} of a transform, "
            f"{LARGEST_PRODUCT} multiplications of a vote, got poses {rows}x{d_in} -> {rows}x{d_out}; make them smaller"
        )
    if 0 in (rows, d_in, d_out):
        return f"needs poses that are not empty, got {rows}x{d_in} -> {rows}x{d_out}; give them a number"
    if not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None:
        return "does not run inside torch.func transforms; leave them"
    return None


def routed(scores, poses, weight, bias, beta_use, beta_ignore, n_iters) -> tuple[Tensor, Tensor, Tensor]:
    """Output scores, poses and variances, like the reference."""
    if weight.ndim == 2:
        n_out = len(beta_use)
        weight = weight.expand(n_out, *weight.shape)
        bias = None if bias is None else bias.expand(n_out, *bias.shape)
    n_in, rows, d_in = poses.shape[-3:]
    n_batch = scores.shape[:-1].numel()
    flat = scores.reshape(n_batch, n_in), poses.reshape(n_batch, n_in, rows, d_in)
    found = route(*flat, weight, bias, beta_use, beta_ignore, n_iters)[:3]
    return tuple(x.reshape(*scores.shape[:-1], *x.shape[1:]) for x in found)


class Problem(NamedTuple):
    """The inputs as the kernels want them, and how they are cut."""

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
        """Of an output pose."""
        return self.poses.shape[2] * self.d_out

    @property
    def sizes(self) -> tuple[int, int]:
        return self.poses.shape[1], self.n_out

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return self.weight, self.bias, self.beta_use, self.beta_ignore

    @property
    def constants(self) -> dict[str, int | bool]:
        rows, d_in = self.poses.shape[2:]
        return {"J": self.n_out, "R": rows, "D": d_in, "E": self.d_out, "PAIRS": self.pairs, "BIAS": self.pairs and self.has_bias}

    def lanes(self, most: int) -> dict[str, int]:
        block = min(most, _power(self.n_out))
        return {"BLOCK": block, "num_warps": max(1, block // 32)}

    def cut(self, most: int) -> tuple[int, int]:
        """Chunks of inputs, and the inputs of each: a power of two, so that few programs are compiled where their number varies."""
        n_batch, n_in = self.gates.shape
        wanted = n_batch * n_in * _up(self.n_out, min(most, _power(self.n_out))) // PROGRAMS
        length = min(max(LEAST_INPUTS, _power(wanted + 1) // 2), _power(max(1, n_in)))
        return max(1, _up(n_in, length)), length

    def merging(self, n_chunks: int) -> tuple[tuple[int], dict[str, int]]:
        """Grid and sizes of a kernel that puts chunks together."""
        block, numbers = min(MERGED_OUTPUTS, _power(self.n_out)), _power(self.numbers)
        chunks = min(_power(n_chunks), max(1, MERGED_NUMBERS // (block * numbers)))
        tile = {"STEPS": _power(_up(n_chunks, chunks)), "CHUNKS": chunks, "NUMBERS": numbers, "BLOCK": block}
        return (len(self.gates) * _up(self.n_out, block),), {"J": self.n_out, "RE": self.numbers, **tile, "num_warps": MERGE_WARPS}

    def slice(self) -> int:
        return max(1, min(self.poses.shape[3], SLICE_NUMBERS // self.d_out))

    def new(self, *shape: int) -> Tensor:
        return self.gates.new_empty(shape)


def _up(n: int, size: int) -> int:
    return -(-n // size)


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


@torch.library.custom_op("torchcaps::em_routing", mutates_args=())
def route(
    scores: Tensor, poses: Tensor, weight: Tensor, bias: Tensor | None, beta_use: Tensor, beta_ignore: Tensor, n_iters: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output scores, poses and variances; for the backward pass models [t b . j], stats [t b . j] and log normalizers [t b i]."""
    from torchcaps.ops import em_forward_triton as kernels

    outputs = _outputs(scores, poses, weight, bias, beta_use, beta_ignore, n_iters)
    models, stats, normalizers = outputs[3:]
    problem = Problem.of(scores, poses, weight, bias, beta_use, beta_ignore)
    n_in, n_out = problem.sizes
    shared_bias = problem.has_bias and not problem.pairs
    _first_model(problem, models[0], shared_bias)
    normalizers[0] = 0
    block, warps = NORMALIZER_LANES
    n_chunks, length = problem.cut(STATISTICS_OUTPUTS)
    lanes = problem.lanes(STATISTICS_OUTPUTS)
    grid = (len(scores) * n_chunks * _up(n_out, lanes["BLOCK"]),)
    merge_grid, merge = problem.merging(n_chunks)
    partial = problem.new(len(scores), n_chunks, 2 * problem.numbers + 3, n_out)
    for t in range(n_iters):
        if t > 0:
            inputs = problem.gates, problem.poses, *problem.parameters, models[t], normalizers[t]
            kernels.log_normalizers[(len(scores) * _up(n_in, block),)](
                *inputs, n_in, **problem.constants, BLOCK=block, num_warps=warps
            )  # fmt: skip
        inputs = problem.gates, problem.poses, *problem.parameters, models[t], normalizers[t], partial
        kernels.chunk_statistics[grid](*inputs, n_in, n_chunks, **problem.constants, FIRST=t == 0, LENGTH=length, **lanes)
        last = t == n_iters - 1
        kernels.statistics[merge_grid](
            partial, problem.bias, stats[max(t - 1, 0)], stats[t], models[t if last else t + 1], *outputs[:3], n_chunks, EPS,
            BIAS=shared_bias, FIRST=t == 0, LAST=last, **merge,
        )  # fmt: skip
    return outputs


def _first_model(problem: Problem, model: Tensor, shared_bias: bool) -> None:
    """Before the first pass: every output fits every vote alike."""
    n = problem.numbers
    model.zero_()
    if shared_bias:
        model[:, :n] = problem.bias
    model[:, 2 * n] = -log(problem.n_out)


@route.register_fake
def _outputs(scores, poses, weight, bias, beta_use, beta_ignore, n_iters):
    n_batch, n_in, rows, _ = poses.shape
    n_out, _, d_out = weight.shape[-3:]
    new = lambda *shape: poses.new_empty(shape, dtype=torch.float32)  # noqa: E731
    results = scores.new_empty(n_batch, n_out), poses.new_empty(n_batch, n_out, rows, d_out), poses.new_empty(n_batch, n_out, rows, d_out)
    n = rows * d_out
    return *results, new(n_iters, n_batch, 2 * n + 1, n_out), new(n_iters, n_batch, 2 * n + 3, n_out), new(n_iters, n_batch, n_in)


@torch.library.custom_op("torchcaps::em_routing_backward", mutates_args=())
def route_backward(
    grad_scores: Tensor, grad_poses: Tensor, grad_variances: Tensor,
    scores: Tensor, poses: Tensor, weight: Tensor, bias: Tensor | None, beta_use: Tensor, beta_ignore: Tensor,
    models: Tensor, stats: Tensor, normalizers: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of scores, poses, weight, bias (empty where there is none) and betas."""
    from torchcaps.ops import em_backward_triton as kernels

    problem = Problem.of(scores, poses, weight, bias, beta_use, beta_ignore)
    incoming = [x.contiguous() for x in (grad_scores, grad_poses, grad_variances)]
    n_iters, (n_in, n_out), n = len(stats), problem.sizes, problem.numbers
    outputs = _gradients(*incoming, scores, poses, weight, bias, beta_use, beta_ignore)
    summed = torch.empty_like(problem.gates), torch.empty_like(problem.poses, dtype=torch.float32)
    slopes, tallies = problem.new(n_iters, len(scores), 3 * n + 2, n_out), problem.new(n_iters, len(scores), n + 2, n_out)
    expected = torch.empty_like(normalizers)
    block, warps = INPUT_GRADIENT_LANES
    n_chunks, length = problem.cut(GRADIENT_OUTPUTS)
    lanes, piece = problem.lanes(GRADIENT_OUTPUTS), problem.slice()
    slices = 1 if problem.pairs else _up(poses.shape[3], piece)
    grid = len(scores) * n_chunks * _up(n_out, lanes["BLOCK"]), slices
    merge_grid, merge = problem.merging(n_chunks)
    partial = problem.new(len(scores), n_chunks, 2 * n + 1, n_out)
    grad_weight = partial if problem.pairs else problem.new(len(scores), n_chunks, weight[0].numel(), n_out)
    for t in range(n_iters - 1, -1, -1):
        first, last = t == 0, t == n_iters - 1
        kernels.slopes_of[merge_grid](
            *incoming, partial, stats[t], stats[max(t - 1, 0)], models[t if last else t + 1], slopes[t], tallies[t], n_chunks, EPS,
            FIRST=first, LAST=last, **merge,
        )  # fmt: skip
        inputs = problem.gates, problem.poses, *problem.parameters, models[t], normalizers[t], slopes[t], expected[t]
        kernels.input_gradients[(len(scores) * _up(n_in, block),)](
            *inputs, *summed, *(outputs[:2] if first else summed), n_in,
            **problem.constants, FIRST=first, ADD=not last, BLOCK=block, num_warps=warps,
        )  # fmt: skip
        if not (first and problem.pairs):
            kernels.chunk_gradients[grid](
                *inputs, partial, grad_weight, n_in, n_chunks,
                **problem.constants, FIRST=first, ADD=not last, LENGTH=length, SLICE=piece, **lanes,
            )  # fmt: skip
    if problem.pairs:
        _pair_gradients(problem, models, normalizers, slopes, expected, outputs[2:])
        return outputs
    return *outputs[:2], *_shared_gradients(problem, grad_weight, tallies, weight, bias, beta_use, beta_ignore)


def _pair_gradients(problem: Problem, models, normalizers, slopes, expected, outputs) -> None:
    from torchcaps.ops.em_pairs_triton import pair_gradients

    n_in, n_out = problem.sizes
    lanes, piece = problem.lanes(GRADIENT_OUTPUTS), problem.slice()
    grid = n_in, _up(n_out, lanes["BLOCK"]), _up(problem.poses.shape[3], piece)
    constants = {name: x for name, x in problem.constants.items() if name != "PAIRS"}
    pair_gradients[grid](
        problem.gates, problem.poses, *problem.parameters, models, normalizers, slopes, expected, *outputs,
        len(problem.gates), n_in, **constants, PASSES=len(models), SLICE=piece, **lanes,
    )  # fmt: skip


def _shared_gradients(problem: Problem, grad_weight, tallies, weight, bias, beta_use, beta_ignore) -> tuple[Tensor, ...]:
    """Gradients of parameters that inputs share, from the sums of every chunk and pass."""
    n = problem.numbers
    tally = tallies.sum((0, 1))  # [r·e+2 j]
    grad_bias = tally.new_empty(0) if bias is None else rearrange(tally[:n], "(r e) j -> j r e", e=problem.d_out).to(bias.dtype)
    grad_weight = rearrange(grad_weight.sum((0, 1)), "(d e) j -> j d e", e=problem.d_out).to(weight.dtype)
    return (
        grad_weight.contiguous(),
        grad_bias.contiguous(),
        tally[n].to(beta_use.dtype, copy=True),
        tally[n + 1].to(beta_ignore.dtype, copy=True),
    )


@route_backward.register_fake
def _gradients(grad_scores, grad_poses, grad_variances, scores, poses, weight, bias, beta_use, beta_ignore, *rest):
    like = lambda x: x.new_empty(x.shape)  # noqa: E731
    grad_bias = weight.new_empty(0) if bias is None else like(bias)
    return like(scores), like(poses), like(weight), grad_bias, like(beta_use), like(beta_ignore)


def _keep(ctx, inputs, output) -> None:
    *tensors, _ = inputs
    ctx.save_for_backward(*tensors, *output[3:])
    ctx.shape = output[0].shape, output[1].shape


def _backward(ctx, grad_scores, grad_poses, grad_variances, *never):
    grads = route_backward(grad_scores, grad_poses, grad_variances, *ctx.saved_tensors)
    return *grads[:3], None if ctx.saved_tensors[3] is None else grads[3], *grads[4:], None


def _refuse_second(ctx, *grads):
    raise RuntimeError("em_routing: the triton backend has no second derivatives; use backend='reference'")


route.register_autograd(_backward, setup_context=_keep)
route_backward.register_autograd(_refuse_second)
