"""EM routing in every dtype, under autocast, compiled, exported, and by a named backend."""

from functools import partial

import pytest
import torch
from em_problems import WEIGHTS, problem

from torchcaps.ops import em as em_module
from torchcaps.ops import em_routing, em_routing_steps
from torchcaps.ops.testing import compare_routing


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4), (torch.bfloat16, 0.3)])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_dtype_is_kept_and_close_to_float64(weight, dtype, tolerance):
    args = problem(weight, dtype=dtype)
    routed, exact = em_routing(**args), em_routing(**{name: x.double() for name, x in args.items()})
    for x, wanted in zip(routed, exact, strict=True):
        assert x.dtype == dtype
        torch.testing.assert_close(x.double(), wanted, rtol=tolerance, atol=tolerance)


def test_bfloat16_is_routed_in_float32_and_scores_keep_their_own_dtype():
    args = problem(dtype=torch.bfloat16)
    step = next(em_routing_steps(**args | {"scores": args["scores"].float()}))
    assert step.probabilities.dtype == step.scores.dtype == torch.float32
    assert step.poses.dtype == step.variances.dtype == torch.bfloat16


def test_the_variance_does_not_cancel():
    """Votes of 1000 with a spread of 0.1, in float32: the spread survives."""
    args = problem(dtype=torch.float32, i=50)
    args = args | {"poses": args["poses"] * 0.1, "bias": args["bias"] + 1e3}
    exact = em_routing(**{name: x.double() for name, x in args.items()}, n_iters=1).variances
    torch.testing.assert_close(em_routing(**args, n_iters=1).variances.double(), exact, rtol=1e-3, atol=0)


def test_autocast_keeps_float32_at_both_ends():
    args = {name: x.requires_grad_() for name, x in problem(dtype=torch.float32).items()}
    with torch.autocast("cpu", torch.bfloat16):
        routed = em_routing(**args, n_iters=2)
    plain = em_routing(**args, n_iters=2)
    assert all(x.dtype == torch.float32 for x in routed)
    torch.testing.assert_close(routed.poses, plain.poses, rtol=0, atol=0.1)
    assert not torch.equal(routed.poses, plain.poses)  # the votes did go through bfloat16
    for gradient, x in zip(torch.autograd.grad(routed.poses.sum(), tuple(args.values())), args.values(), strict=True):
        assert gradient.dtype == x.dtype
        assert gradient.isfinite().all()


@pytest.mark.slow  # two of the three are compiled by default too, in the networks' tests
def test_compiles_whole_for_every_weight(fresh_dynamo):
    def routed(problems):
        return [x for args in problems for x in em_routing(**args, n_iters=2)]

    problems = [{name: x.requires_grad_() for name, x in problem(weight).items()} for weight in WEIGHTS]
    results = [op(problems) for op in (torch.compile(routed, fullgraph=True, backend="aot_eager"), routed)]
    torch.testing.assert_close(*results)
    leaves = [x for args in problems for x in args.values()]
    torch.testing.assert_close(*(torch.autograd.grad(sum(x.sin().sum() for x in found), leaves) for found in results))


class Routing(torch.nn.Module):
    def __init__(self, weight, bias, beta_use, beta_ignore):
        super().__init__()
        for name, x in {"weight": weight, "bias": bias, "beta_use": beta_use, "beta_ignore": beta_ignore}.items():
            self.register_buffer(name, x)

    def forward(self, scores, poses):
        return em_routing(scores, poses, self.weight, self.bias, self.beta_use, self.beta_ignore)


def test_is_exported_for_any_number_of_inputs():
    args = problem(dtype=torch.float32)
    scores, poses = args.pop("scores"), args.pop("poses")
    batch, count = torch.export.Dim("batch"), torch.export.Dim("count")
    shapes = ({0: batch, 1: count}, {0: batch, 1: count})
    exported = torch.export.export(Routing(**args), (scores, poses), dynamic_shapes=shapes).module()
    other = problem(dtype=torch.float32, i=11, batch=(3,), seed=1)
    scores, poses = other["scores"], other["poses"]
    torch.testing.assert_close(exported(scores, poses), em_routing(scores, poses, **args))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_compiled_is_right(fresh_dynamo, monkeypatch, dtype):
    """With the compiler that needs no C++."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    em_module._compiled.cache_clear()
    margins = compare_routing(
        partial(em_routing, n_iters=2), problem("ijde", dtype=dtype), backend="compiled", dtype=dtype
    )
    em_module._compiled.cache_clear()
    assert set(margins) == {*em_module.EMRouted._fields, *(f"grad {name}" for name in problem())}


def test_triton_is_not_replaced_in_silence(monkeypatch):
    monkeypatch.setattr("torchcaps.ops.backend.INTERPRETED", False)
    with pytest.raises(ValueError, match=r"em_routing: backend 'triton' needs .*, or use backend='reference'"):
        em_routing(**problem(dtype=torch.float32), backend="triton")


def test_float16_votes_and_sums_are_float32(rng):
    """Votes of 1e5 overflow float16; scores and gates must come out as if computed in float64."""
    scores, beta = torch.randn(2, 6, generator=rng).half(), torch.randn(6, 3, generator=rng).half()
    poses = (1e4 * torch.randn(2, 6, 2, 4, generator=rng)).half()
    weight = (10 * torch.randn(6, 3, 4, 5, generator=rng)).half()
    found = em_routing(scores, poses, weight, None, beta, beta)
    exact = em_routing(*(x.double() for x in (scores, poses, weight)), None, beta.double(), beta.double())
    assert found.scores.dtype == torch.float16
    torch.testing.assert_close(found.scores.double(), exact.scores, rtol=2e-3, atol=2e-3)
