"""The helper that judges fast implementations, given wrong answers."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from torchcaps.ops.testing import assert_within_budget, compare_routing, max_err


class Result(NamedTuple):
    value: Tensor
    extra: Tensor


def op_with(fast):
    """An op whose reference is the matrix product and whose fast backend is `fast`."""

    def op(x, y, backend):
        return fast(x, y) if backend == "fast" else Result(x @ y, x.sum(-1))

    return op


def judge(fast, dtype=torch.float32):
    rng = torch.Generator().manual_seed(0)
    args = {"x": torch.randn(5, 4, generator=rng), "y": torch.randn(4, 3, generator=rng)}
    return compare_routing(op_with(fast), args, backend="fast", dtype=dtype)


def by_hand(x, y):
    """The same product, summed in another order."""
    return (x.unsqueeze(-1) * y).flip(1).sum(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_right_answer_passes_and_the_margins_are_told(dtype):
    margins = judge(lambda x, y: Result(by_hand(x, y), x.flip(-1).sum(-1)), dtype)
    assert set(margins) == {"value", "extra", "grad x", "grad y"}
    assert all(0 <= margin.error <= margin.budget for margin in margins.values())


WRONG = {
    "a little off": (
        lambda x, y: Result(by_hand(x, y) * (1 + 1e-4), x.sum(-1)),
        r"fast: value \[5, 3\]: off by .*, allowed",
    ),
    "one number off": (
        lambda x, y: Result(x @ y + 1e-3 * torch.eye(5, 3), x.sum(-1)),
        r"fast: value \[5, 3\]: off by 1.0e-03, allowed",
    ),
    "second output off": (lambda x, y: Result(x @ y, x.sum(-1) + 1e-3), r"fast: extra \[5\]: off by"),
    "NaN": (lambda x, y: Result((x @ y).log(), x.sum(-1)), "fast: value .* off by nan"),
    "infinite": (lambda x, y: Result(x @ y / 0, x.sum(-1)), "fast: value .* off by (inf|nan)"),
    "shape": (lambda x, y: Result((x @ y)[:1], x.sum(-1)), r"fast: value: shape \[1, 3\], expected \[5, 3\]"),
    "dtype": (
        lambda x, y: Result((x @ y).double(), x.sum(-1)),
        "fast: value: dtype torch.float64, expected torch.float32",
    ),
    "no gradient of one input": (lambda x, y: Result(x @ y.detach(), x.sum(-1)), "fast: grad y is missing"),
    "no gradient at all": (lambda x, y: Result((x @ y).detach(), x.sum(-1).detach()), "fast: grad x is missing"),
    "gradient off": (
        lambda x, y: Result(x @ y + 1e-3 * (x - x.detach()).sum(), x.sum(-1)),
        r"fast: grad x \[5, 4\]: off by",
    ),
    "gradient NaN": (
        lambda x, y: Result(x @ y + 0 * (x - x.detach()).abs().sqrt().sum(), x.sum(-1)),
        "fast: grad x .* off by nan",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_fails(name):
    fast, message = WRONG[name]
    with pytest.raises(AssertionError, match=message):
        judge(fast)


def test_an_extra_gradient_fails():
    op = lambda x, y, backend: x @ (y if backend == "fast" else y.detach())  # noqa: E731
    with pytest.raises(AssertionError, match="fast: grad y is there, but the reference has none"):
        compare_routing(op, {"x": torch.ones(2, 2), "y": torch.ones(2, 2)}, backend="fast")


def test_other_outputs_fail():
    op = lambda x, backend: x * 2 if backend == "fast" else Result(x * 2, x)  # noqa: E731
    with pytest.raises(AssertionError, match="fast: outputs output, grad x, expected value, extra, grad x"):
        compare_routing(op, {"x": torch.ones(2)}, backend="fast")


def test_the_reference_must_be_usable_itself():
    op = lambda x, backend: x.log()  # noqa: E731
    with pytest.raises(AssertionError, match="plain PyTorch itself is not finite here"):
        compare_routing(op, {"x": -torch.ones(2)}, backend="fast")


def test_float64_has_nothing_to_be_compared_with():
    with pytest.raises(ValueError, match="nothing is more exact than float64"):
        judge(by_hand, torch.float64)


def test_the_budget_is_three_times_plain_and_eight_eps():
    exact = torch.tensor([2.0, -4.0], dtype=torch.float64)
    plain = exact.float() + torch.tensor([0.25, 0.0])
    allowed = 3 * 0.25 + 8 * 2**-23 * 4
    assert assert_within_budget("x", exact.float() - 0.75, plain, exact) == (0.75, allowed)
    with pytest.raises(AssertionError, match=r"x \[2\]: off by 7.6e-01, allowed 7.5e-01"):
        assert_within_budget("x", exact.float() - 0.76, plain, exact)


def test_equal_infinities_do_not_differ():
    """Scores of -inf mark padding."""
    exact = torch.tensor([1.0, -torch.inf], dtype=torch.float64)
    assert_within_budget("scores", exact.float(), exact.float(), exact)
    assert max_err(torch.tensor([torch.inf]), torch.tensor([-torch.inf])) == torch.inf
    with pytest.raises(AssertionError, match="off by inf"):
        assert_within_budget(
            "scores", torch.tensor([1.0, -1e30]).where(torch.tensor([True, False]), torch.inf), exact.float(), exact
        )


def test_nothing_to_compare_is_no_error():
    assert max_err(torch.zeros(0, 3), torch.zeros(0, 3)) == 0
