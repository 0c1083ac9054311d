"""Self-attention routing (Mazzia 2021)."""

from math import exp, hypot, sqrt

import pytest
import torch
from torch.autograd import gradcheck

from torchcaps.ops import self_attention_routing, self_attention_routing_steps


def problem(batch=(2,), i=6, j=3, d=4, e=5, dtype=torch.float64):
    rng = torch.Generator().manual_seed(0)
    shapes = {"poses": (*batch, i, d), "weight": (i, j, d, e), "prior": (i, j)}
    return {
        name: torch.randn(shape, generator=rng, dtype=torch.float64).mul(0.5).to(dtype)
        for name, shape in shapes.items()
    }


def with_attention(poses, weight, prior):
    """The paper's equations with the attention [j i i'] in the open."""
    votes = torch.einsum("...id,ijde->...jie", poses, weight)
    attention = votes @ votes.transpose(-1, -2) / weight.shape[-1] ** 0.5
    couplings = attention.sum(-1).softmax(-2)  # [*b j i], over j
    total = ((couplings + prior.T).unsqueeze(-1) * votes).sum(-2)
    n = total.norm(dim=-1, keepdim=True)
    return (1 - (-n).exp()) * total / n


def test_by_hand():
    """Two inputs agree on output 0 and disagree on output 1."""
    votes = torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[1.0, 0.0], [0.0, -1.0]]]).double()
    (step,) = self_attention_routing_steps(torch.ones(2, 1).double(), votes.unsqueeze(-2))
    # sums of votes: (2, 0) and (0, 1)
    logits = [[2 / sqrt(2), 2 / sqrt(2)], [2 / sqrt(2), -1 / sqrt(2)]]
    torch.testing.assert_close(step.logits.tolist(), logits)
    share = 1 / (1 + exp(-3 / sqrt(2)))  # of the second input for output 0
    torch.testing.assert_close(step.couplings.tolist(), [[0.5, 0.5], [share, 1 - share]])
    first, second = 0.5 + share, 2 * 0.5 - (1 - share)
    torch.testing.assert_close(step.poses.tolist(), [[1 - exp(-first), 0.0], [0.0, 1 - exp(-second)]])
    # a prior is added after the softmax
    prior = torch.tensor([[0.1, 0.0], [-0.2, 0.0]]).double()
    found = self_attention_routing(torch.ones(2, 1).double(), votes.unsqueeze(-2), prior)
    assert hypot(*found[0].tolist()) == pytest.approx(1 - exp(-(first - 0.1)))


def test_attention_that_is_never_formed_counts_as_if_it_were():
    args = problem(batch=(2, 3))
    torch.testing.assert_close(self_attention_routing(**args), with_attention(**args))


def test_gradient_is_the_slope():
    args = [x.requires_grad_() for x in problem(batch=(1,)).values()]
    assert gradcheck(self_attention_routing, args, fast_mode=True)


def test_every_input_spends_one_vote_and_the_prior_and_order_does_not_matter(rng):
    args, order = problem(), torch.randperm(6, generator=rng)
    (step,) = self_attention_routing_steps(**args)
    torch.testing.assert_close((step.couplings - args["prior"]).sum(-1), torch.ones(2, 6).double())
    shuffled = {"poses": args["poses"][:, order], "weight": args["weight"][order], "prior": args["prior"][order]}
    torch.testing.assert_close(self_attention_routing(**shuffled), step.poses)


@pytest.mark.parametrize(
    "sizes", [{"i": 1}, {"j": 1}, {"i": 1, "j": 1, "d": 1, "e": 1}, {"batch": ()}, {"batch": (0,)}]
)
def test_odd_sizes_and_zeros(sizes):
    args = problem(**sizes)
    args["poses"] = torch.zeros_like(args["poses"]).requires_grad_()
    found = self_attention_routing(**args)
    found.sum().backward()
    assert (found == 0).all() and args["poses"].grad.isfinite().all()


def test_bfloat16_is_summed_in_float32():
    args = problem(dtype=torch.bfloat16)
    found = self_attention_routing(**args)
    assert found.dtype == torch.bfloat16
    exact = self_attention_routing(**{name: x.double() for name, x in args.items()})
    torch.testing.assert_close(found.double(), exact, rtol=0.05, atol=0.05)
    cast = problem(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert self_attention_routing(**cast).dtype == torch.float32


@pytest.mark.slow
def test_it_compiles_whole(fresh_dynamo):
    args = problem()
    compiled = torch.compile(self_attention_routing, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(**args), self_attention_routing(**args))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"weight": torch.ones(4, 3, 4, 5)},
            r"expects poses \[\*b i d\] and a weight \[i j d e\], .*; got \[2, 6, 4\] and",
        ),
        ({"prior": torch.ones(6, 1)}, r"the prior must be \[6, 3\], got \[6, 1\]"),
    ],
)
def test_what_would_broadcast_in_silence_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        self_attention_routing(**problem(dtype=torch.float32) | change)
