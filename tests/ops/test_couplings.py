from math import log

import pytest
import torch
from torch.autograd import gradcheck

from torchcaps.ops import COUPLINGS, dynamic_routing
from torchcaps.ops.couplings import FIXED, coupling_rule

NOBODY = -torch.inf
RULES = ["softmax", "leaky", "max-min", "uniform", "random"]


def test_these_are_all():
    assert list(COUPLINGS) == RULES
    assert FIXED == ("uniform", "random")


@pytest.mark.parametrize(
    ("name", "logits", "expected"),
    [
        ("softmax", [0, log(3)], [1 / 4, 3 / 4]),
        ("softmax", [0, NOBODY, log(3)], [1 / 4, 0, 3 / 4]),
        ("random", [log(2), log(6)], [1 / 4, 3 / 4]),  # the softmax of a prior that is drawn elsewhere
        ("random", [log(2), NOBODY, log(6)], [1 / 4, 0, 3 / 4]),
        ("leaky", [0, log(2)], [1 / 4, 2 / 4]),  # the last quarter goes to nobody
        ("leaky", [0, NOBODY, log(2)], [1 / 4, 0, 2 / 4]),
        ("leaky", [NOBODY, NOBODY], [0, 0]),  # the orphan takes all
        ("max-min", [1, 3, 2], [0.01, 1, 0.01 + 0.99 / 2]),
        ("max-min", [1, NOBODY, 3, 2], [0.01, 0, 1, 0.01 + 0.99 / 2]),
        ("max-min", [2, 2, 2], [1 / 3, 1 / 3, 1 / 3]),  # as in the first pass
        ("max-min", [2, NOBODY, 2], [1 / 2, 0, 1 / 2]),
        ("max-min", [5], [1]),
        ("uniform", [7, -7, 0, 1], [1 / 4] * 4),
        ("uniform", [7, NOBODY, 0], [1 / 2, 0, 1 / 2]),
    ],
)
def test_by_hand(name, logits, expected):
    logits = torch.tensor(logits, dtype=torch.float64)
    torch.testing.assert_close(coupling_rule(name).share(logits), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("name", RULES)
def test_leading_axes_are_shared_out_one_by_one(name, rng):
    logits = torch.randn(2, 3, 4, generator=rng)
    logits[0, 0, 1] = NOBODY
    rows = torch.stack([coupling_rule(name).share(row) for row in logits.flatten(0, 1)]).view(2, 3, 4)
    torch.testing.assert_close(coupling_rule(name).share(logits), rows)


@pytest.mark.parametrize("name", ["softmax", "uniform", "random"])
def test_a_child_spends_exactly_one_vote(name, rng):
    logits = 5 * torch.randn(50, 7, generator=rng)
    logits[:, 2] = NOBODY
    torch.testing.assert_close(coupling_rule(name).share(logits).sum(-1), torch.ones(50))


def test_leaky_keeps_less_than_one_vote_and_more_when_parents_agree():
    spent = coupling_rule("leaky").share(torch.tensor([[-5.0, -5.0], [0.0, 0.0], [5.0, 5.0]])).sum(-1)
    assert (spent.diff() > 0).all()
    assert spent.max() < 1


@pytest.mark.parametrize("name", RULES)
def test_gradient_is_the_slope(name, rng):
    logits = torch.randn(3, 5, dtype=torch.float64, generator=rng, requires_grad=True)
    assert gradcheck(coupling_rule(name).share, logits)


@pytest.mark.parametrize("name", RULES)
def test_gradient_is_the_slope_with_parents_missing(name, rng):
    there = torch.tensor([[True, True, False, True], [False, True, True, True]])
    logits = torch.randn(2, 4, dtype=torch.float64, generator=rng, requires_grad=True)
    assert gradcheck(lambda x: coupling_rule(name).share(x.masked_fill(~there, NOBODY)), logits)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    "logits", [[0.0, 0.0, 0.0], [1.0, 1.0, NOBODY], [1e4, -1e4, 0.0]], ids=["equal", "equal-or-missing", "huge"]
)
def test_value_and_gradient_are_finite_at_ties_and_extremes(name, logits):
    logits = torch.tensor(logits, requires_grad=True)
    couplings = coupling_rule(name).share(logits)
    (couplings * torch.arange(3.0)).sum().backward()
    assert couplings.isfinite().all()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("size", [1e-4, 1e-8, 1e-11, 3e-12, 1e-12, 1e-13, 1e-15, 1e-25])
def test_max_min_has_finite_gradients_for_tiny_poses(size):
    for seed in range(5):
        rng = torch.Generator().manual_seed(seed)
        poses = (size * torch.randn(2, 6, 4, generator=rng)).requires_grad_()
        weight = torch.randn(6, 3, 4, 5, generator=rng).requires_grad_()
        routed = dynamic_routing(poses, weight, couplings="max-min", backend="reference").poses
        routed.sum().backward()
        assert all(numbers.isfinite().all() for numbers in (routed, poses.grad, weight.grad))


def test_max_min_makes_no_decision_of_rounding(rng):
    """One transform for all parents: their logits are equal but for rounding, which must not become 0.01 and 1."""
    logits = 1 + torch.randint(-4, 5, (50, 8), generator=rng) * torch.finfo(torch.float32).eps
    torch.testing.assert_close(coupling_rule("max-min").share(logits), torch.full((50, 8), 1 / 8))
    apart = coupling_rule("max-min").share(torch.tensor([1.0, 1.0001]))
    torch.testing.assert_close(apart, torch.tensor([0.01, 1.0]))


@pytest.mark.parametrize("name", RULES)
def test_without_parents_there_are_no_couplings(name):
    assert coupling_rule(name).share(torch.zeros(2, 0)).shape == (2, 0)


def test_unknown_name_lists_the_names():
    with pytest.raises(
        ValueError, match="couplings must be one of softmax, leaky, max-min, uniform, random; got 'sparsemax'"
    ):
        coupling_rule("sparsemax")
