"""Helpers for autograd functions that write their own backward pass."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def full_precision() -> torch.autocast:
    """Switch autocast off for a backward pass whose forward pass ran in full precision."""
    return torch.autocast("cpu", enabled=False)


def plain_form_wanted(grads: Sequence[Tensor]) -> bool:
    """Whether gradients are differentiated again, or batched (`is_grads_batched`): only plain operations take that."""
    batched = torch._C._functorch.is_legacy_batchedtensor  # torch has no public name for it
    return torch.is_grad_enabled() or any(map(batched, grads))


def gradients_of_plain_form(
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    grads: Sequence[Tensor],
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """Compute the gradients of the plain form, uncut; with create_graph=True they can be differentiated once more."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # aliases: one input may itself depend on another, and that path is not this function's
        inputs = [None if x is None else x.view_as(x) for x in inputs]
        outputs = function(*inputs)
    live = [x for x, needed in zip(inputs, wanted, strict=True) if needed]
    connected = [(output, grad) for output, grad in zip(outputs, grads, strict=True) if output.requires_grad]
    outputs, grads = zip(*connected, strict=True)
    found = iter(torch.autograd.grad(outputs, live, grads, create_graph=again, allow_unused=True))
    return [next(found) if needed else None for needed in wanted]


def with_pull(function: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Compute the value, and a function from its gradient to that of `at`."""
    with torch.enable_grad():
        at = at.detach().requires_grad_()
        value = function(at)
    return value.detach(), lambda grad: torch.autograd.grad(value, at, grad)[0]
