"""The helpers that judge problems, given wrong answers."""

from typing import NamedTuple

import pytest
import torch
from problems import judge, judge_together
from torch import Tensor

BUDGET = 8 * torch.finfo(torch.float32).eps  # for an answer of 1 that plain PyTorch hits


class Answers(NamedTuple):
    scores: Tensor
    poses: Tensor
    variances: Tensor


def answering(*errors):
    """Return problems and an op, whose answer to each is off by as many budgets."""

    def op(x, backend, n_iters):
        size = x.detach().max().item()
        wrong = errors[round(-torch.tensor(size).log2().item())] * BUDGET * size if backend == "triton" else 0.0
        return Answers(x + wrong, x * 2, x * 3)

    return lambda seed: {"x": torch.full((4,), 2.0**-seed)}, op


@pytest.mark.parametrize("errors", [(0, 0, 0), (0.5, 9, 9), (9, 0.9, 0.9)])
@pytest.mark.parametrize("on_gpu", [True, False])
def test_one_problem_within_its_budget_is_enough_for_the_interpreter_and_most_for_a_gpu(errors, on_gpu, monkeypatch):
    monkeypatch.setattr("problems.ON_GPU", on_gpu)
    make, op = answering(*errors)
    if on_gpu and errors[2] > 1:
        with pytest.raises(AssertionError, match="wanted 2 seeds within the budget"):
            judge(make, seeds=range(3), op=op)
    else:
        judge(make, seeds=range(3), op=op)


@pytest.mark.parametrize(
    ("errors", "words"),
    [((2, 3, 2), "within the budget; the worst of each, in budgets: scores 2.00, scores 3.00"), ((11, 0, 0), "off by")],
)
def test_problems_that_are_wrong_do_not_pass(errors, words):
    make, op = answering(*errors)
    with pytest.raises(AssertionError, match=words):
        judge(make, seeds=range(3), op=op)


def test_small_answers_weigh_little_where_problems_are_judged_together(monkeypatch):
    for errors, right in (((0.5, 1, 2), True), ((2, 0, 0), False)):
        make, op = answering(*errors)
        monkeypatch.setattr("problems.em_routing", op)
        if right:
            judge_together(make, seeds=3)
            continue
        with pytest.raises(AssertionError, match=r"off by .* by seed"):
            judge_together(make, seeds=3)
