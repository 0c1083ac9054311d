"""Dynamic routing on CUDA without the votes: the op that torch sees, forward and backward a few kernels per iteration.

Kept between forward and backward: the sums before squash and the sums of poses [t b j e], and two numbers per image,
input and iteration, the bounds of its softmax. Where outputs are so few that kernels walk over the inputs
(triton_walk.py), these are found again. Gradients go through all iterations. Nothing is added up by atomics, so the
same inputs give the same bits. Where the poses are bfloat16 or autocast says so, the operands of matrix products are
bfloat16: weights (a copy is kept for the backward pass unless it is large), sums of poses, gradients of sums, couplings
times poses. Softmax, sums and squash are float32. Float32 poses get products of float32 accuracy, three of TF32 each.
"""

from math import prod

import torch
from torch import Tensor

from torchcaps.ops.backend import INTERPRETED, cannot_multiply, cannot_span_devices, is_exporting
from torchcaps.ops.couplings import coupling_rule
from torchcaps.ops.dynamic import triton_launch, triton_walks_launch
from torchcaps.ops.dynamic.triton_launch import LARGEST_GRID
from torchcaps.ops.dynamic.triton_walks_launch import walks
from torchcaps.ops.kernel_op import kernel_op
from torchcaps.ops.votes import has_transform_per_pair, n_outputs

LARGEST = 64  # dimensions of a pose: beyond it a tile of transforms does not fit
# Below it, in float32 with a transform per pair, the compiled reference is expected to be faster. The rule is taken
# from the shape that was measured slower (batch 32, 4608 inputs: 4608x8 -> 10x16 took 0.961 ms, compiled 0.627) and one
# that was not: batch 128 of 1152x8, as many votes, 0.681 and 0.696 (bench/h200-ops.txt, both directions). No shape
# between them was recorded.
FULL_TILE = 64  # images
FEW_VOTES = 128 << 20  # bytes of votes that the compiled reference may store; it was measured with 90 MiB
NARROW_BYTES = 64 << 20  # a weight up to this many bytes is converted once, a larger one tile by tile, again and again


def refuses(poses: Tensor, weight: Tensor, bias, n_iters: int, prior, couplings: str, detach: bool) -> str | None:
    """Say why the Triton backend cannot run these arguments, or None."""
    if reason := cannot_multiply(poses):
        return reason
    tensors = [x for x in (poses, weight, bias) if x is not None]
    if reason := cannot_span_devices(tensors):
        return reason
    if detach:
        return "passes gradients through every iteration; leave out detach=True"
    if couplings not in ("softmax", "leaky", "uniform") or prior is not None:
        found = couplings if prior is None else f"{couplings} and a prior"
        return f"knows softmax, leaky and uniform couplings without prior logits, got {found}"
    if wide := {x.dtype for x in tensors} - {torch.float32, torch.bfloat16}:
        return f"computes in float32 or bfloat16, got {', '.join(map(str, wide))}; convert the input"
    if poses.dtype != weight.dtype and not torch.is_autocast_enabled(poses.device.type):
        return f"needs poses and weight of one type outside autocast, got {poses.dtype} and {weight.dtype}; convert one"
    if max(weight.shape[-2:]) > LARGEST or 0 in poses.shape or 0 in weight.shape:
        return f"takes poses of 1 to {LARGEST} dimensions, got {list(poses.shape)} and a weight {list(weight.shape)}"
    n_out = n_outputs(weight, bias, prior)
    return f"takes up to {LARGEST_GRID:,} outputs, got {n_out:,}; use fewer" if n_out > LARGEST_GRID else None


def loses(poses: Tensor, weight: Tensor, bias, n_iters: int, prior, couplings: str, detach: bool) -> bool:
    """Whether the compiled reference should be faster on arguments that are not refused, with few votes to store."""
    wanted = any(x is not None and x.requires_grad for x in (poses, weight, bias))
    trains = torch.is_grad_enabled() and wanted
    if not trains or poses.dtype != torch.float32 or torch.is_autocast_enabled(poses.device.type):
        return False
    if not has_transform_per_pair(poses, weight) or n_iters == 1 or coupling_rule(couplings).fixed:
        return False
    if is_exporting():  # for any batch
        return False
    n_images = prod(poses.shape[:-2])
    return n_images < FULL_TILE and n_images * weight.shape[0] * weight.shape[1] * weight.shape[3] * 4 <= FEW_VOTES


def routed(poses, weight, bias, n_iters, prior, couplings, detach) -> tuple[Tensor, Tensor]:
    """Compute output poses and their sum over all iterations but the last, like the reference."""
    n_out = n_outputs(weight, bias, prior)
    flat = poses.reshape(-1, *poses.shape[-2:])
    low = poses.dtype == torch.bfloat16 or torch.is_autocast_enabled(poses.device.type)
    n_iters = 1 if coupling_rule(couplings).fixed else n_iters
    outputs = route(flat, weight, bias, n_out, n_iters, couplings == "leaky", low)
    return tuple(part.reshape(*poses.shape[:-2], *part.shape[-2:]) for part in outputs[:2])


def _low(asked: bool) -> bool:
    """Whether products are taken in bfloat16, which the interpreter gets wrong."""
    return asked and not INTERPRETED


def _outputs(poses, weight, bias, n_out, n_iters, leaky, low):
    n_batch, n_in, _ = poses.shape
    shape = n_batch, n_out, weight.shape[-1]
    dtype = torch.bfloat16 if _low(low) else torch.float32
    new = lambda *shape, dtype=torch.float32: poses.new_empty(shape, dtype=dtype)  # noqa: E731
    bounds = new(0) if walks(weight, n_out, _low(low)) else new(n_iters - 1, 2, n_batch, n_in)
    converted = weight.dtype != dtype and weight.numel() * dtype.itemsize <= NARROW_BYTES
    narrow = new(*(weight.shape if converted else (0,)), dtype=dtype)
    return (
        poses.new_empty(shape),
        poses.new_empty(shape),
        new(n_iters, *shape),
        new(n_iters - 1, *shape, dtype=dtype),
        bounds,
        narrow,
    )


@kernel_op("torchcaps::dynamic_routing", _outputs)
def route(
    poses: Tensor, weight: Tensor, bias: Tensor | None, n_out: int, n_iters: int, leaky: bool, low: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute output poses, their sum, and the tensors of the backward pass.

    These are totals and sums of poses [t b j e], bounds of the softmax [t 2 b i] (none for walks), and the weight as
    bfloat16 if it had to be converted.
    """
    outputs = _outputs(poses, weight, bias, n_out, n_iters, leaky, low)
    launches = triton_walks_launch if walks(weight, n_out, _low(low)) else triton_launch
    launches.forward(poses.contiguous(), weight.contiguous(), bias, n_out, leaky, _low(low), outputs)
    return outputs


def _gradients(grad_poses_out, grad_pose_sum, poses, weight, totals, pose_sums, bounds, narrow, leaky, of_weight):
    grad_weight = weight.new_empty(weight.shape if of_weight else (0,))
    return poses.new_empty(poses.shape), grad_weight, totals.new_empty(totals.shape[-2:])


@kernel_op("torchcaps::dynamic_routing_backward", _gradients)
def route_backward(
    grad_poses_out: Tensor, grad_pose_sum: Tensor | None, poses: Tensor, weight: Tensor,
    totals: Tensor, pose_sums: Tensor, bounds: Tensor, narrow: Tensor, leaky: bool, of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of poses, weight (empty unless wanted), and of the bias in float32."""
    grads = grad_poses_out.contiguous(), None if grad_pose_sum is None else grad_pose_sum.contiguous()
    inputs = *grads, poses.contiguous(), weight.contiguous(), totals, pose_sums
    if walks(weight, totals.shape[2], pose_sums.dtype == torch.bfloat16):
        return triton_walks_launch.backward(*inputs, narrow, leaky, of_weight)
    return triton_launch.backward(*inputs, bounds, narrow, leaky, of_weight)


def _keep(ctx, inputs, output) -> None:
    poses, weight, bias, *_, leaky, _ = inputs
    ctx.save_for_backward(poses, weight, *output[2:])
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.leaky = leaky
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_poses_out, grad_pose_sum, *never):
    if grad_poses_out is None:
        grad_poses_out = torch.zeros_like(ctx.saved_tensors[2][-1])
    of_weight = ctx.needs_input_grad[1]
    grads = route_backward(grad_poses_out, grad_pose_sum, *ctx.saved_tensors, ctx.leaky, of_weight)
    grad_bias = None if ctx.bias_dtype is None else grads[2].to(ctx.bias_dtype)
    return grads[0], grads[1] if of_weight else None, grad_bias, None, None, None, None


def _refuse_second(ctx, *grads):
    raise RuntimeError(
        "dynamic_routing: the triton backend has no second derivatives; "
        "use backend='reference', or torchcaps.ops.without_kernels()"
    )


route.register_autograd(_backward, setup_context=_keep)
route_backward.register_autograd(_refuse_second)
