"""Judge a fast implementation by a budget calibrated by plain PyTorch in the same dtype, not by a fixed tolerance.

Used by the tests and by `torchcaps bench`, which prints no speed-up on red.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Margin(NamedTuple):
    """Error of one result, and the largest error allowed."""

    error: float
    budget: float


def max_err(got: Tensor, exact: Tensor) -> float:
    """Largest absolute difference. Equal infinities do not differ; a NaN on one side makes it NaN."""
    if got.numel() == 0:
        return 0.0
    got, exact = got.detach().double(), exact.detach().double().to(got.device)
    return (got - exact).abs().masked_fill(got == exact, 0.0).max().item()


def assert_within_budget(name: str, fast: Tensor, plain: Tensor, exact: Tensor, times: float = 1.0) -> Margin:
    """Assert that `fast` errs at most three times as much as `plain` PyTorch in the same dtype; `exact` is float64.

    `times` multiplies what is allowed.
    The further 8 eps max|exact| are for the case that plain PyTorch happens to hit the exact answer. (Twice its error
    fails now and then between two equally good methods.)
    """
    assert fast.shape == plain.shape == exact.shape, f"{name}: shape {list(fast.shape)}, expected {list(exact.shape)}"
    assert fast.dtype == plain.dtype, f"{name}: dtype {fast.dtype}, expected {plain.dtype}"
    assert exact.dtype == torch.float64, f"{name}: the exact answer must be float64, got {exact.dtype}"
    largest = max_err(torch.where(exact.isfinite(), exact, 0.0), torch.zeros_like(exact))
    budget = times * (3 * max_err(plain, exact) + 8 * torch.finfo(fast.dtype).eps * largest)
    assert budget < float("inf"), (
        f"{name} {list(exact.shape)}: plain PyTorch itself is not finite here, so it allows no comparison"
    )
    error = max_err(fast, exact)
    # written so that a NaN fails
    assert error <= budget, f"{name} {list(fast.shape)}: off by {error:.1e}, allowed {budget:.1e}"
    return Margin(error, budget)


def compare_routing(
    op: Callable, args: dict, *, backend: str, dtype: torch.dtype = torch.float32, seed: int = 0, times: float = 1.0
) -> dict[str, Margin]:
    """Assert that `op(**args, backend=backend)` is right in `dtype`: every output, the gradient of every float input.

    The op returns a tensor or a NamedTuple of tensors. Its inputs are rounded to `dtype` first, so that all three
    computations (the backend, the reference in `dtype`, the reference in float64) start from the same numbers. Returns
    the margins by name: `poses` for an output, `grad weight` for a gradient.
    """
    if dtype == torch.float64:
        raise ValueError(
            "compare_routing: nothing is more exact than float64 to compare it with; use float32 or bfloat16"
        )
    rounded = {name: x.to(dtype) if _is_float(x) else x for name, x in args.items()}
    fast = _outputs_and_gradients(op, rounded, backend, dtype, seed)
    plain = _outputs_and_gradients(op, rounded, "reference", dtype, seed)
    exact = _outputs_and_gradients(op, rounded, "reference", torch.float64, seed)
    assert fast.keys() == plain.keys(), f"{backend}: outputs {', '.join(fast)}, expected {', '.join(plain)}"
    margins = {}
    for name, wanted in exact.items():
        if wanted is None or fast[name] is None:
            assert wanted is fast[name], (
                f"{backend}: {name} is {'missing' if fast[name] is None else 'there, but the reference has none'}"
            )
            continue
        margins[name] = assert_within_budget(f"{backend}: {name}", fast[name], plain[name], wanted, times)
    return margins


def _outputs_and_gradients(
    op: Callable, args: dict, backend: str, dtype: torch.dtype, seed: int
) -> dict[str, Tensor | None]:
    args = {name: x.detach().to(dtype).requires_grad_() if _is_float(x) else x for name, x in args.items()}
    result = op(**args, backend=backend)
    if isinstance(result, Tensor):
        outputs = {"output": result}
    else:
        outputs = {name: x for name, x in result._asdict().items() if _is_float(x)}
    rng = torch.Generator().manual_seed(seed)
    total = 0.0
    for x in outputs.values():
        # a random direction, rounded alike for every dtype; a plain sum would hide errors that cancel
        direction = torch.randn(x.shape, generator=rng).to(torch.bfloat16).to(x)
        total = total + (x * direction).sum() if x.requires_grad else total
    leaves = {name: x for name, x in args.items() if _is_float(x)}
    gradients = [None] * len(leaves)
    if isinstance(total, Tensor):
        gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return outputs | {f"grad {name}": gradient for name, gradient in zip(leaves, gradients, strict=True)}


def _is_float(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
