"""Self-routing (Hahn 2019)."""

from math import exp, log

import pytest
import torch
from torch.autograd import gradcheck

from torchcaps.ops import self_routing, self_routing_steps


def problem(batch=(2,), i=6, j=3, d=4, e=5, dtype=torch.float64):
    rng = torch.Generator().manual_seed(0)
    shapes = {"poses": (*batch, i, d), "weight": (i, j, d, e), "route": (i, d, j)}
    drawn = {name: torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype) for name, shape in shapes.items()}
    return {"activity": torch.rand(*batch, i, generator=rng, dtype=torch.float64).to(dtype)} | drawn


def test_by_hand():
    """Two inputs of activity 0.9 and 0.3; the first goes to output 0 with 3/4, the second to both alike."""
    activity, poses = torch.tensor([0.9, 0.3]).double(), torch.ones(2, 1).double()
    votes = torch.tensor([[1.0, 2.0], [3.0, -4.0]]).double()
    route = torch.tensor([[[log(3.0), 0.0]], [[0.0, 0.0]]]).double()
    (step,) = self_routing_steps(activity, poses, votes[:, :, None, None], route)
    torch.testing.assert_close(step.couplings.tolist(), [[0.75, 0.25], [0.5, 0.5]])
    arriving = [[0.9 * 0.75, 0.9 * 0.25], [0.3 * 0.5, 0.3 * 0.5]]
    wanted = [sum(parts) / 1.2 for parts in zip(*arriving, strict=True)]
    assert [exp(x) for x in step.log_activity.tolist()] == pytest.approx(wanted)
    first = (arriving[0][0] * 1 + arriving[1][0] * 3) / (arriving[0][0] + arriving[1][0])
    second = (arriving[0][1] * 2 - arriving[1][1] * 4) / (arriving[0][1] + arriving[1][1])
    assert step.poses.flatten().tolist() == pytest.approx([first, second])


def test_a_bias_moves_every_input_of_its_type_alike():
    """The first type prefers output 0 by 3 to 1 whatever the poses, the second neither."""
    activity, poses = torch.tensor([0.9, 0.6, 0.3]).double(), torch.zeros(3, 1).double()
    weight, route = torch.ones(3, 2, 1, 1).double(), torch.ones(3, 1, 2).double()
    bias = torch.tensor([[log(3.0), 0.0], [log(3.0), 0.0], [0.0, 0.0]]).double()
    (step,) = self_routing_steps(activity, poses, weight, route, bias)
    torch.testing.assert_close(step.couplings.tolist(), [[0.75, 0.25], [0.75, 0.25], [0.5, 0.5]])
    assert step.log_activity.exp()[0].item() == pytest.approx((0.75 * 1.5 + 0.5 * 0.3) / 1.8)
    shared = {"weight": torch.ones(2, 2, 1, 1).double(), "route": torch.ones(2, 1, 2).double()}
    found = self_routing(torch.ones(4).double(), torch.zeros(4, 1).double(), bias=bias[1:], **shared)
    torch.testing.assert_close(found.log_activity.exp().tolist(), [0.625, 0.375])


def test_gradient_is_the_slope():
    args = [x.requires_grad_() for x in (*problem(batch=(1,)).values(), torch.rand(6, 3).double())]
    assert gradcheck(lambda *args: tuple(self_routing(*args)), args, fast_mode=True)


def test_activities_sum_to_one_and_only_their_ratio_counts(rng):
    args, order = problem(), torch.randperm(6, generator=rng)
    found = self_routing(**args)
    torch.testing.assert_close(found.log_activity.exp().sum(-1), torch.ones(2).double())
    torch.testing.assert_close(self_routing(**args | {"activity": args["activity"] / 7}), found)
    shuffled = {name: x[:, order] if name in ("activity", "poses") else x[order] for name, x in args.items()}
    torch.testing.assert_close(self_routing(**shuffled), found)


def test_an_inactive_input_is_as_good_as_not_there():
    args = problem(i=8)
    args["activity"][:, 6:] = 0
    cut = {name: x[:, :6] if name in ("activity", "poses") else x[:6] for name, x in args.items()}
    torch.testing.assert_close(self_routing(**args), self_routing(**cut))


def test_a_class_that_nothing_routes_to_still_learns():
    """In float32 its activity is exp(-200), which is zero; its logarithm and gradient are not."""
    args = problem(j=2, dtype=torch.float32)
    route = torch.zeros(6, 4, 2)
    route[:, :, 0] = 200
    args |= {"poses": torch.full((2, 6, 4), 0.25), "route": route.requires_grad_()}
    found = self_routing(**args)
    torch.testing.assert_close(found.log_activity[:, 1], torch.full((2,), -200.0))
    found.log_activity[:, 1].sum().backward()
    assert route.grad.isfinite().all() and route.grad.any()


@pytest.mark.parametrize(
    "sizes", [{"i": 1}, {"j": 1}, {"i": 1, "j": 1, "d": 1, "e": 1}, {"batch": ()}, {"batch": (0,)}]
)
def test_odd_sizes_and_inputs_that_are_all_inactive(sizes):
    args = problem(**sizes)
    args["activity"] = torch.zeros_like(args["activity"]).requires_grad_()
    found = self_routing(**args)
    (found.poses.sum() + found.log_activity.sum()).backward()
    assert all(x.isfinite().all() for x in (*found, args["activity"].grad))


def test_bfloat16_is_summed_in_float32():
    args = problem(dtype=torch.bfloat16)
    found = self_routing(**args)
    assert found.poses.dtype == torch.bfloat16 and found.log_activity.dtype == torch.float32
    exact = self_routing(**{name: x.double() for name, x in args.items()})
    torch.testing.assert_close(found.log_activity.double(), exact.log_activity, rtol=0.05, atol=0.05)


@pytest.mark.slow
def test_it_compiles_whole(fresh_dynamo):
    args = problem()
    compiled = torch.compile(self_routing, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(**args), self_routing(**args))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"weight": torch.ones(4, 3, 4, 5)},
            r"expects poses \[\*b i d\] and a weight \[i j d e\], .*; got \[2, 6, 4\] and",
        ),
        ({"activity": torch.ones(2, 1)}, r"activity must be \[2, 6\] for poses \[2, 6, 4\] and .* got \[2, 1\]"),
        ({"route": torch.ones(6, 4, 1)}, r"route must be \[6, 4, 3\] for poses .* got \[6, 4, 1\]"),
        ({"bias": torch.ones(6, 1)}, r"bias must be \[6, 3\] for poses .* got \[6, 1\]"),
    ],
)
def test_what_would_broadcast_in_silence_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        self_routing(**problem(dtype=torch.float32) | change)
