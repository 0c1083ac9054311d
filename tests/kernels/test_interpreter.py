"""The interpreter that the other tests run is a quicker one than Triton's."""

import pytest
import torch
from problems import INTERPRETED, arguments, em_problem

from torchcaps.ops import dynamic_routing, em_routing


def outputs_and_gradients(op, problem):
    leaves = [x.detach().clone().requires_grad_() for x in problem.values()]
    found = op(**dict(zip(problem, leaves, strict=True)), backend="triton")
    return [found.poses, *torch.autograd.grad(found.poses.square().sum(), leaves)]


@pytest.mark.skipif(not INTERPRETED, reason="is about the interpreter")
@pytest.mark.parametrize("op", [dynamic_routing, em_routing])
def test_the_quick_interpreter_computes_what_tritons_own_does(op, rng, quick, monkeypatch):
    problem = arguments(rng, "cpu") if op is dynamic_routing else em_problem()
    found = outputs_and_gradients(op, problem)
    for owner, name, original in quick:
        assert getattr(owner, name) is not original
        monkeypatch.setattr(owner, name, original)
    wanted = outputs_and_gradients(op, problem)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, wanted, strict=True))
