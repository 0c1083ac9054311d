"""EM routing on CUDA without the votes: the op that torch sees, its kernels started by triton_launch.py.

Every iteration walks over all pairs once forward and twice backward, once more each where there are more outputs than a
program has lanes; the first iteration with shared transforms of few dimensions needs no walk (triton_first.py).
Neither votes [b i j r e] nor probabilities [b i j] are written to memory. Kept for the backward pass, per iteration:
the model and the statistics of every output [t b . j], and two numbers per input, the denominator of its probabilities
[t b i 2]; moments of the inputs [b .] where the first iteration needs no walk. Sums over the inputs are taken in chunks
and then put together in a fixed order, without atomics: the same inputs give the same bits. All arithmetic is float32
whatever the inputs are, moments apart, which are float64. Variances are running sums of squares about running means, so
that a common offset of the votes does not cancel.
"""

from math import prod

import torch
from torch import Tensor

from torchcaps.ops.backend import cannot_run_kernels, cannot_span_devices
from torchcaps.ops.em.reference import over_inputs
from torchcaps.ops.em.triton_launch import Problem, backward, forward, n_moments
from torchcaps.ops.kernel_op import kernel_op, launch
from torchcaps.ops.tiles import ceil_div, next_power_of_2

LARGEST = 64  # dimensions of an input pose, of an output pose: they lie in registers
LARGEST_PRODUCT = 128  # multiplications of a vote: all are written out, and with 256 compiling takes minutes


def refuses(scores, poses, weight, bias, beta_use, beta_ignore, n_iters, density, prior) -> str | None:
    """Say why the Triton backend cannot run these arguments, or None."""
    if density != "gaussian":
        return f"knows the Gaussian model of the votes only, got density={density!r}; use density='gaussian'"
    if prior is not None:
        return "starts from equal probabilities only, got a prior; leave it out"
    if reason := cannot_run_kernels(poses):
        return reason
    tensors = [x for x in (scores, poses, weight, bias, beta_use, beta_ignore) if x is not None]
    if reason := cannot_span_devices(tensors):
        return reason
    if wide := {x.dtype for x in tensors} - {torch.float32, torch.bfloat16, torch.float16}:
        return f"computes in float32, got {', '.join(map(str, wide))}; convert the input"
    rows, d_in, d_out = *poses.shape[-2:], weight.shape[-1]
    if max(rows * d_in, rows * d_out) > LARGEST or rows * d_in * d_out > LARGEST_PRODUCT:
        return (
            f"keeps poses and transforms in registers: at most {LARGEST} pose dimensions "
            f"and {LARGEST_PRODUCT} multiplications of a vote, got poses {rows}x{d_in} -> {rows}x{d_out}; "
            "make them smaller"
        )
    if 0 in (rows, d_in, d_out):
        return f"needs poses that are not empty, got {rows}x{d_in} -> {rows}x{d_out}; give them a number"
    return None


def routed(
    scores, poses, weight, bias, beta_use, beta_ignore, n_iters, density, prior
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute output scores, poses and variances, like the reference."""
    if weight.ndim == 2:
        n_out = len(beta_use)
        weight = weight.expand(n_out, *weight.shape)
        bias = None if bias is None else bias.expand(n_out, *bias.shape)
    n_in, rows, d_in = poses.shape[-3:]
    weight, bias, beta_use, beta_ignore = over_inputs(n_in, weight, bias, beta_use, beta_ignore)
    n_batch = prod(scores.shape[:-1])  # `numel` would make a constant of a size that is free
    flat = scores.reshape(n_batch, n_in), poses.reshape(n_batch, n_in, rows, d_in)
    found = route(*flat, weight, bias, beta_use, beta_ignore, n_iters)[:3]
    return tuple(x.reshape(*scores.shape[:-1], *x.shape[1:]) for x in found)


def _outputs(scores, poses, weight, bias, beta_use, beta_ignore, n_iters):
    n_batch, n_in, rows, _ = poses.shape
    n_out, _, d_out = weight.shape[-3:]
    new = lambda *shape: poses.new_empty(shape, dtype=torch.float32)  # noqa: E731
    found = scores.new_empty(n_batch, n_out)
    means, variances = (poses.new_empty(n_batch, n_out, rows, d_out) for _ in range(2))
    n = rows * d_out
    models, stats = new(n_iters, n_batch, 2 * n + 1, n_out), new(n_iters + 1, n_batch, 3 * n + 3, n_out)
    moments = poses.new_empty(n_batch, n_moments(poses, weight.ndim == 4), dtype=torch.float64)
    return found, means, variances, models, stats, new(n_iters, n_batch, n_in, 2), moments


@kernel_op("torchcaps::em_routing", _outputs)
def route(
    scores: Tensor,
    poses: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    beta_use: Tensor,
    beta_ignore: Tensor,
    n_iters: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute output scores, poses, variances.

    For the backward pass models, stats [t b . j], softmax [t b i 2], moments [b .].
    """
    outputs = _outputs(scores, poses, weight, bias, beta_use, beta_ignore, n_iters)
    forward(Problem.of(scores, poses, weight, bias, beta_use, beta_ignore), outputs[:3], *outputs[3:])
    return outputs


def _gradients(grad_scores, grad_poses, grad_variances, scores, poses, weight, bias, beta_use, beta_ignore, *rest):
    like = lambda x: x.new_empty(x.shape)  # noqa: E731
    grad_bias = weight.new_empty(0) if bias is None else like(bias)
    return like(scores), like(poses), like(weight), grad_bias, like(beta_use), like(beta_ignore)


@kernel_op("torchcaps::em_routing_backward", _gradients)
def route_backward(
    grad_scores: Tensor, grad_poses: Tensor, grad_variances: Tensor,
    scores: Tensor, poses: Tensor, weight: Tensor, bias: Tensor | None, beta_use: Tensor, beta_ignore: Tensor,
    models: Tensor, stats: Tensor, softmax: Tensor, moments: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of scores, poses, weight, bias (empty where there is none) and betas."""
    problem = Problem.of(scores, poses, weight, bias, beta_use, beta_ignore)
    incoming = [x.contiguous() for x in (grad_scores, grad_poses, grad_variances)]
    outputs = _gradients(*incoming, scores, poses, weight, bias, beta_use, beta_ignore)
    grad_weight, tallies = backward(problem, incoming, outputs, models, stats, softmax, moments)
    if not problem.pairs:
        _add_up(problem, grad_weight, tallies, outputs[2:])
    return outputs


def _add_up(problem: Problem, grad_weight: Tensor, tallies: Tensor, outputs: tuple[Tensor, ...]) -> None:
    """Write the gradients of shared parameters from parts of every sample: weight [b . d·e j], others [t b r·e+2 j]."""
    from torchcaps.ops.em.triton_pairs import parameter_gradients

    block, rows = min(64, next_power_of_2(problem.n_out)), (len(problem.weight), problem.numbers)
    n_parts = [parts.shape[0] * parts.shape[1] for parts in (grad_weight, tallies)]
    launch(parameter_gradients, (sum(rows) + 2, ceil_div(problem.n_out, block)))(
        grad_weight, tallies, *outputs, *n_parts,
        J=problem.n_out, DE=rows[0], RE=rows[1], BIAS=problem.has_bias, ROWS=64, BLOCK=block, num_warps=8,
    )  # fmt: skip


def _keep(ctx, inputs, output) -> None:
    *tensors, _ = inputs
    ctx.save_for_backward(*tensors, *output[3:])
    ctx.set_materialize_grads(False)  # or zeros would be made for what only this file sees


def _backward(ctx, *incoming):
    like = _outputs(*ctx.saved_tensors[:6], 1)[:3]
    incoming = [torch.zeros_like(x) if grad is None else grad for grad, x in zip(incoming[:3], like, strict=True)]
    grads = route_backward(*incoming, *ctx.saved_tensors)
    return *grads[:3], None if ctx.saved_tensors[3] is None else grads[3], *grads[4:], None


def _refuse_second(ctx, *grads):
    raise RuntimeError(
        "em_routing: the triton backend has no second derivatives; "
        "use backend='reference', or torchcaps.ops.without_kernels()"
    )


route.register_autograd(_backward, setup_context=_keep)
route_backward.register_autograd(_refuse_second)
