"""Inverted dot-product attention routing (Tsai 2020)."""

import pytest
import torch
from torch.autograd import gradcheck

from torchcaps.ops import inverted_routing, inverted_routing_steps


def problem(batch=(2,), i=6, j=3, d=4, e=5, dtype=torch.float64):
    rng = torch.Generator().manual_seed(0)
    shapes = {"poses": (*batch, i, d), "weight": (i, j, d, e), "scale": (e,), "bias": (e,)}
    return {name: torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype) for name, shape in shapes.items()}


def test_two_iterations_by_hand():
    """Poses of two numbers: a layer norm leaves 1 and -1, the larger number positive."""
    votes = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.5], [0.0, 3.0]]]).double()
    first, second = inverted_routing_steps(torch.ones(2, 1).double(), votes.unsqueeze(-2), 2)
    # half of each vote: (0.5, 0.25) and (0, 2)
    assert (first.couplings == 0.5).all()
    torch.testing.assert_close(first.poses.tolist(), [[1.0, -1.0], [-1.0, 1.0]], atol=1e-3, rtol=0)
    torch.testing.assert_close(second.logits.tolist(), [[1.0, 1.0], [-0.5, 3.0]], atol=2e-3, rtol=0)
    torch.testing.assert_close(second.couplings.sum(-1), torch.ones(2).double())
    assert second.couplings[1, 1] == pytest.approx(1 / (1 + 2.718281828**-3.5), abs=1e-3)


def test_gradient_is_the_slope():
    args = [x.requires_grad_() for x in problem(batch=(1,)).values()]
    assert gradcheck(
        lambda poses, weight, scale, bias: inverted_routing(poses, weight, 3, scale=scale, bias=bias),
        args,
        fast_mode=True,
    )


def test_going_on_from_the_poses_of_one_iteration_is_the_next():
    args = problem()
    one, two, three = inverted_routing_steps(**args, n_iters=3)
    torch.testing.assert_close(inverted_routing(**args, n_iters=1, start=one.poses), two.poses)
    torch.testing.assert_close(inverted_routing(**args, n_iters=2, start=one.poses), three.poses)
    assert not torch.allclose(one.poses, two.poses)


def test_a_pose_of_rows_is_a_matrix_times_the_weight(rng):
    poses, weight = torch.randn(2, 6, 8, generator=rng).double(), torch.randn(6, 3, 4, 5, generator=rng).double()
    whole = torch.zeros(6, 3, 8, 10).double()  # the same weight for the first and the second row
    whole[:, :, :4, :5] = whole[:, :, 4:, 5:] = weight
    torch.testing.assert_close(inverted_routing(poses, weight, rows=2), inverted_routing(poses, whole))
    with pytest.raises(ValueError, match="poses of 8 dimensions do not form matrices of 3 rows"):
        inverted_routing(poses, weight, rows=3)


def test_outputs_are_normalised_and_order_does_not_matter(rng):
    args, order = problem(), torch.randperm(6, generator=rng)
    plain = inverted_routing(args["poses"], args["weight"])
    torch.testing.assert_close(plain.mean(-1), torch.zeros(2, 3).double())
    torch.testing.assert_close(plain.var(-1, correction=0), torch.ones(2, 3).double(), atol=1e-3, rtol=0)
    torch.testing.assert_close(inverted_routing(args["poses"][:, order], args["weight"][order]), plain)


@pytest.mark.parametrize(
    "sizes", [{"i": 1}, {"j": 1}, {"i": 1, "j": 1, "d": 1, "e": 2}, {"batch": ()}, {"batch": (0,)}]
)
def test_odd_sizes_and_zeros(sizes):
    args = problem(**sizes)
    args["poses"] = torch.zeros_like(args["poses"]).requires_grad_()
    found = inverted_routing(**args)
    found.square().sum().backward()
    assert found.isfinite().all() and args["poses"].grad.isfinite().all()


def test_autocast_keeps_the_dtype_of_the_poses():
    args = problem(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = inverted_routing(**args)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, inverted_routing(**args), atol=0.3, rtol=0)


@pytest.mark.slow
def test_it_compiles_whole(fresh_dynamo):
    args = problem()
    compiled = torch.compile(inverted_routing, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(**args), inverted_routing(**args))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_iters": 0}, "needs at least one iteration, got n_iters=0"),
        (
            {"weight": torch.ones(4, 3, 4, 5)},
            r"expects poses \[\*b i d\] and a weight \[i j d e\], .*; got \[2, 6, 4\] and",
        ),
        ({"scale": torch.ones(1)}, r"scale must be \[5\], got \[1\]"),
        ({"start": torch.ones(2, 1, 5)}, r"start must be \[2, 3, 5\], got \[2, 1, 5\]"),
        ({"weight": torch.ones(6, 3, 4, 1)}, "layer norm leaves nothing of one number"),
    ],
    ids=str,
)
def test_what_would_broadcast_in_silence_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        inverted_routing(**problem(dtype=torch.float32) | change)
