"""A function of images that do not influence each other, run for a few of them at a time.

Its intermediate numbers stay near the cache and are never all in memory; the backward pass makes them again. Second
derivatives and batched gradients take the function as it is, for all images at once.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchcaps.ops.autograd import full_precision, gradients_of_plain_form, plain_form_wanted
from torchcaps.ops.backend import inside_transform


def cannot_be_cut(poses: Tensor) -> str | None:
    """Say why a function of such poses cannot run here for a few images at a time, or None."""
    if poses.device.type != "cpu":
        return f"needs tensors on the CPU, got one on {poses.device.type}; move the input"
    if poses.dtype not in (torch.float32, torch.float64):
        return f"computes in float32 or float64, got {poses.dtype}; convert the input"
    if torch.is_autocast_enabled("cpu"):
        return "does not run under autocast; leave the region"
    if inside_transform():
        return "does not run inside torch.func transforms; leave them"
    if forward_ad._current_level >= 0:  # torch has no public name for it
        return "has no forward-mode derivatives; leave torch.autograd.forward_ad"
    return "cannot be traced by torch.jit; use torch.export" if torch.jit.is_tracing() else None


def by_images(
    function: Callable[..., tuple[Tensor, ...]],
    n_images: int,
    of_images: Sequence[Tensor],
    shared: Sequence[Tensor | None],
    constant: Sequence[int] = (),
) -> tuple[Tensor, ...]:
    """Return `function(*of_images, *shared)`, whose outputs of the numbers `constant` have no gradient."""
    return _ByImages.apply(function, n_images, len(of_images), constant, *of_images, *shared)


class _ByImages(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, n_images: int, n_split: int, constant: Sequence[int], *inputs):
        ctx.save_for_backward(*inputs)
        ctx.function, ctx.n_images, ctx.n_split = function, n_images, n_split
        of_images, shared = inputs[:n_split], inputs[n_split:]
        blocks = [function(*parts, *shared) for parts in zip(*(x.split(n_images) for x in of_images), strict=True)]
        outputs = tuple(torch.cat(parts) for parts in zip(*blocks, strict=True))
        ctx.mark_non_differentiable(*(outputs[number] for number in constant))
        return outputs

    @staticmethod
    def backward(ctx, *grads):
        with full_precision():
            return None, None, None, None, *_ByImages._gradients(ctx, grads)

    @staticmethod
    def _gradients(ctx, grads) -> list[Tensor | None]:
        inputs = ctx.saved_tensors  # asked for once: `torch.utils.checkpoint` makes them once
        wanted, n = ctx.needs_input_grad[4:], ctx.n_split
        if plain_form_wanted(grads):
            return gradients_of_plain_form(ctx.function, inputs, grads, wanted)
        shared = [leaf(x, needed) for x, needed in zip(inputs[n:], wanted[n:], strict=True)]
        totals = zeros_where_wanted((*inputs[:n], *shared), wanted)
        for start in range(0, len(inputs[0]), ctx.n_images):
            images = slice(start, start + ctx.n_images)
            block = [leaf(x[images], needed) for x, needed in zip(inputs[:n], wanted[:n], strict=True)]
            with torch.enable_grad():
                outputs = ctx.function(*block, *shared)
            parts = [None if total is None else total[images] for total in totals[:n]]
            add_gradients(outputs, [grad[images] for grad in grads], [*block, *shared], wanted, [*parts, *totals[n:]])
        return totals


def leaf(tensor: Tensor | None, needed: bool) -> Tensor | None:
    """Cut a tensor off from what made it; it wants a gradient if that is needed."""
    return None if tensor is None else tensor.detach().requires_grad_(needed)


def zeros_where_wanted(tensors, wanted) -> list[Tensor | None]:
    return [torch.zeros_like(tensor) if needed else None for tensor, needed in zip(tensors, wanted, strict=True)]


def add_gradients(outputs, grads, inputs, wanted, totals) -> None:
    """Add the gradient of every input that is wanted to its total."""
    live = [(x, total) for x, total, needed in zip(inputs, totals, wanted, strict=True) if needed]
    connected = [(output, grad) for output, grad in zip(outputs, grads, strict=True) if output.requires_grad]
    outputs, grads = zip(*connected, strict=True)
    found = torch.autograd.grad(outputs, [x for x, _ in live], grads, allow_unused=True)
    for (_, total), gradient in zip(live, found, strict=True):
        if gradient is not None:
            total += gradient
