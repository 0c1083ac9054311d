"""Dynamic routing on a CPU with the votes of one block at a time: never all of [b i j e] in memory unless they are few.

Images do not influence each other, so a block is a few images and all iterations: the votes stay in cache between them.
Where the votes of a single image are too many, a block is a few inputs and one iteration: the logits of an iteration
are prior + votes · (sum of the output poses so far), so nothing of a block is kept. The backward pass computes each
block's votes again; second derivatives and batched gradients take the plain form, which has all votes. Votes lie as
[b j i e]: then the weighted sum and the agreement are matrix products. Where votes would take a library call for each
input, as on ARM, cpu_pairs.py does without them.
"""

from collections.abc import Iterator
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.ops.autograd import full_precision, gradients_of_plain_form, plain_form_wanted
from torchcaps.ops.by_images import add_gradients, by_images, cannot_be_cut, leaf, zeros_where_wanted
from torchcaps.ops.couplings import coupling_rule
from torchcaps.ops.dynamic import cpu_pairs, reference
from torchcaps.ops.dynamic.cpu_pairs import Settings, sums_that_are_constant
from torchcaps.ops.squash import squash
from torchcaps.ops.votes import has_transform_per_pair, n_outputs, votes_of

BLOCK_BYTES = 9 << 19  # votes made at once, 4.5 MiB: a few times the second-level cache
LARGEST_BLOCK_BYTES = 48 << 20  # beyond it the inputs are cut too, at the price of making the votes in every iteration
IMAGES_OF_A_BLOCK_OF_INPUTS = 16  # enough that a transform, once read, is used often


def refuses(poses: Tensor, detach: bool, **args) -> str | None:
    """Say why the blocked backend cannot run these arguments, or None."""
    if detach:
        return "passes gradients through every iteration; leave out detach=True"
    return cannot_be_cut(poses)


def routed(poses, weight, bias, n_iters: int, prior, couplings: str, detach: bool) -> tuple[Tensor, Tensor]:
    """Compute output poses and their sum over all iterations but the last, like the reference."""
    n_out, rule = n_outputs(weight, bias, prior), coupling_rule(couplings)
    if 0 in (*poses.shape, *weight.shape, n_out):  # nothing to cut into blocks
        return reference.routed(poses, weight, bias, n_iters, prior, couplings, detach)
    settings = Settings(n_out, 1 if rule.fixed else n_iters, rule)
    # the reference takes a prior and a bias of any dtype; a matrix product does not
    bias, prior = (None if tensor is None else tensor.to(poses.dtype) for tensor in (bias, prior))
    flat = poses.reshape(-1, *poses.shape[-2:])
    bytes_per_input = n_out * weight.shape[-1] * poses.element_size()
    bytes_per_image = bytes_per_input * poses.shape[-2]
    # every block of images reads the whole weight and adds to its whole gradient: blocks much smaller than the weight
    # cost more than they save
    block_bytes = max(BLOCK_BYTES, 3 * weight.nbytes // 4)
    if cpu_pairs.suits(flat, weight, settings, LARGEST_BLOCK_BYTES):
        outputs = cpu_pairs.by_pairs(flat, weight, bias, prior, settings, LARGEST_BLOCK_BYTES)
    elif bytes_per_image * len(flat) <= min(block_bytes, LARGEST_BLOCK_BYTES):
        outputs = route(flat, weight, bias, prior, settings)
    elif max(bytes_per_image, block_bytes) <= LARGEST_BLOCK_BYTES:
        n_images, constant = max(block_bytes // bytes_per_image, 1), sums_that_are_constant(settings)
        outputs = by_images(partial(route, settings=settings), n_images, [flat], [weight, bias, prior], constant)
    else:
        outputs = _by_inputs(flat, weight, bias, prior, settings, bytes_per_input)
    return tuple(part.reshape(*poses.shape[:-2], *part.shape[-2:]) for part in outputs)


def route(poses: Float[Tensor, "b i d"], weight, bias, prior, settings: Settings) -> tuple[Tensor, Tensor]:
    """Route with all votes at once: the plain form that is fastest on a CPU."""
    votes = votes_of(poses, weight, settings.n_out).transpose(-3, -2).contiguous()  # [b j i e]
    logits = votes.new_zeros(votes.shape[1:-1]) if prior is None else prior.T  # [j i], then [b j i]
    pose_sum = votes.new_zeros(len(poses), settings.n_out, votes.shape[-1])
    for t in range(settings.n_iters):
        couplings = settings.rule.share(logits, dim=-2)
        total = (couplings.unsqueeze(-2) @ votes).squeeze(-2)
        parents = squash(total if bias is None else total + bias)
        if t < settings.n_iters - 1:
            pose_sum = pose_sum + parents
            logits = logits + (votes @ parents.unsqueeze(-1)).squeeze(-1)
    return parents, pose_sum


def _by_inputs(poses, weight, bias, prior, settings: Settings, bytes_per_input: int) -> tuple[Tensor, Tensor]:
    """Route iteration by iteration, each over blocks of inputs."""
    pose_sum = None
    for t in range(settings.n_iters):
        total = _Iteration.apply(poses, weight, prior, pose_sum, settings, bytes_per_input)
        parents = squash(total if bias is None else total + bias)
        if t < settings.n_iters - 1:
            pose_sum = parents if pose_sum is None else pose_sum + parents
    return parents, torch.zeros_like(parents) if pose_sum is None else pose_sum


class _Iteration(torch.autograd.Function):
    """One iteration: [b i d] and the output poses so far -> the weighted sum of votes [b j e], block by block."""

    @staticmethod
    def forward(ctx, poses, weight, prior, pose_sum, settings: Settings, bytes_per_input: int):
        ctx.save_for_backward(poses, weight, prior, pose_sum)
        ctx.settings, ctx.bytes_per_input = settings, bytes_per_input
        total = poses.new_zeros(len(poses), settings.n_out, weight.shape[-1])
        for images, inputs, rows in _blocks(poses, weight, bytes_per_input):
            total[images] += _weighted_sum(*_cut(poses, weight, prior, pose_sum, images, inputs, rows), settings)
        return total

    @staticmethod
    def backward(ctx, grad):
        with full_precision():
            return *_Iteration._gradients(ctx, grad), None, None

    @staticmethod
    def _gradients(ctx, grad):
        wanted, tensors = ctx.needs_input_grad[:4], ctx.saved_tensors
        if plain_form_wanted([grad]):
            return gradients_of_plain_form(lambda *x: [_weighted_sum(*x, ctx.settings)], tensors, [grad], wanted)
        totals = zeros_where_wanted(tensors, wanted)
        for images, inputs, rows in _blocks(tensors[0], tensors[1], ctx.bytes_per_input):
            parts = _cut(*tensors, images, inputs, rows)
            block = [leaf(x, needed) for x, needed in zip(parts, wanted, strict=True)]
            with torch.enable_grad():
                total = _weighted_sum(*block, ctx.settings)
            add_gradients([total], [grad[images]], block, wanted, _cut(*totals, images, inputs, rows))
        return totals


def _weighted_sum(poses, weight, prior, pose_sum, settings: Settings) -> Float[Tensor, "b j e"]:
    votes = votes_of(poses, weight, settings.n_out).transpose(-3, -2).contiguous()  # [b j i e]
    logits = votes.new_zeros(votes.shape[:-1]) if prior is None else prior.T.expand(votes.shape[:-1])
    if pose_sum is not None and not settings.rule.fixed:
        logits = logits + (votes @ pose_sum.unsqueeze(-1)).squeeze(-1)
    couplings = settings.rule.share(logits, dim=-2)
    return (couplings.unsqueeze(-2) @ votes).squeeze(-2)


def _blocks(poses: Tensor, weight: Tensor, bytes_per_input: int) -> Iterator[tuple[slice, slice, slice]]:
    """Yield images, inputs, and the rows of the weight for those inputs. A block of inputs never spans two types."""
    n_images = min(len(poses), IMAGES_OF_A_BLOCK_OF_INPUTS)
    n_inputs, size = poses.shape[-2], max(1, BLOCK_BYTES // (bytes_per_input * n_images))
    per_pair = has_transform_per_pair(poses, weight)
    places = n_inputs // weight.shape[0] if weight.ndim == 4 and not per_pair else n_inputs
    for first in range(0, n_inputs, places):
        of_type = slice(first // places, first // places + 1) if weight.ndim == 4 else slice(None)
        for start in range(first, first + places, size):
            inputs = slice(start, min(start + size, first + places))
            for image in range(0, len(poses), n_images):
                yield slice(image, image + n_images), inputs, inputs if per_pair else of_type


def _cut(poses, weight, prior, pose_sum, images: slice, inputs: slice, rows: slice) -> tuple:
    """Take the parts of each tensor that a block touches, as views."""
    parts = (poses, (images, inputs)), (weight, (rows,)), (prior, (inputs,)), (pose_sum, (images,))
    return tuple(None if tensor is None else tensor[where] for tensor, where in parts)
