"""The helper that judges problems together, given wrong answers."""

import pytest
import torch
from problems import judge_together

BUDGET = 8 * torch.finfo(torch.float32).eps  # for an answer of 1 that plain PyTorch hits
SIZES = (1.0, 2.0**-10, 2.0**-11)  # of the answers of three problems


def judge(*errors):
    """Judge answers of which the first, the largest, is off by as many budgets as `errors` begins with, and so on."""

    def op(x, backend, n_iters):
        size = x.detach().max().item()
        return x + (errors[SIZES.index(size)] * BUDGET * size if backend == "triton" else 0.0)

    judge_together(lambda seed: {"x": torch.full((4,), SIZES[seed])}, seeds=3, op=op, most=2, every=10)


@pytest.mark.parametrize("errors", [(0, 0, 0), (0.5, 1, 2), (0, 9, 0), (1, 0, 0)])
def test_problems_that_are_right_together_pass(errors):
    judge(*errors)


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        ((2, 0, 0), "off by .* by seed"),
        ((0, 11, 0), "off by"),
        ((0, 3, 3), "wanted most problems within 2 budgets, the worst errors are 0.00, 3.00, 3.00"),
    ],
)
def test_problems_that_are_wrong_do_not(errors, words):
    """Small answers weigh little in a mean of squares."""
    with pytest.raises(AssertionError, match=words):
        judge(*errors)
