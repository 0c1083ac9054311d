"""Bug 9 of ports, in EM routing: competition over positions, parents with a single child, sums that are not divided.

As in test_known_bugs, each check passes on ours and is shown to fail on a wrong variant.
"""

import pytest
import torch

from torchcaps.ops import em_routing_steps

INF = float("inf")


def fails(check, wrong) -> None:
    """A check that cannot fail checks nothing."""
    with pytest.raises(AssertionError):
        check(wrong)


def ours(scores, votes, n_iters=3):
    """Probabilities, poses and variances of the last pass, for votes [i j e] as they are."""
    weight = votes.unsqueeze(-2)  # of a pose of one number, which is 1
    beta = torch.full(votes.shape[:2], 0.5, dtype=votes.dtype)
    *_, last = em_routing_steps(scores, torch.ones_like(votes[:, :1, :1]), weight, None, beta, beta, n_iters)
    return last.probabilities, last.poses[:, 0], last.variances[:, 0]


def mistake(scores, votes, n_iters=3, *, compete="outputs", eps=1e-5, divide=True):
    """The same algorithm, with one thing wrong at a time."""
    gates, n_out = scores.sigmoid()[:, None], votes.shape[1]
    probabilities = torch.full(votes.shape[:2], 1 / n_out, dtype=votes.dtype)
    for t in range(n_iters):
        if t > 0:
            density = -((votes - means).square() / (2 * variances)).sum(-1) - variances.log().sum(-1) / 2
            paid = (used - gates[..., None] / 2).sum((0, -1))  # both betas are 1/2
            probabilities = (paid.sigmoid().log() + density).softmax(-1 if compete == "outputs" else 0)
        used = (gates * probabilities)[..., None]
        total = used.sum(0) + eps if divide else torch.ones_like(used.sum(0))
        means = (used * votes).sum(0) / total
        variances = (used * (votes - means).square()).sum(0) / total + eps
    return probabilities, means, variances


def votes_of(n_in=7, n_out=3, d_out=4):
    return torch.randn(n_in, n_out, d_out, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_9_the_mistakes_are_made_in_an_algorithm_that_is_otherwise_ours():
    scores = torch.linspace(-1, 2, 7).double()
    torch.testing.assert_close(mistake(scores, votes_of()), ours(scores, votes_of()))


# 9a. Competition over positions: the outputs must compete for each input, not the inputs for each output.


def check_outputs_compete_for_every_input(route) -> None:
    """`route`: scores, votes -> probabilities [i j]. No input is shared out twice, and none is left over."""
    for n_iters in (1, 2, 3):
        probabilities = route(torch.zeros(7).double(), votes_of(), n_iters)[0]
        torch.testing.assert_close(probabilities.sum(-1), torch.ones(7).double())


def test_9_outputs_compete_for_every_input():
    check_outputs_compete_for_every_input(ours)
    fails(check_outputs_compete_for_every_input, lambda *args: mistake(*args, compete="inputs"))


# 9b. Parents with a single child: its vote is the mean, the variance is 0, and the density has no end.


def check_a_single_child_is_shared_out_soberly(route) -> None:
    """Only one input is there: every output fits it perfectly, so none has a better claim than another."""
    scores, votes = torch.full((7,), -INF).double(), votes_of() * 10
    scores[4] = INF
    votes.requires_grad_()
    probabilities, poses, variances = route(scores, votes)
    assert all(x.isfinite().all() for x in (probabilities, poses, variances))
    torch.testing.assert_close(probabilities[4], torch.full((3,), 1 / 3).double(), rtol=0.1, atol=0)
    torch.testing.assert_close(poses, votes[4], rtol=1e-3, atol=0)
    assert torch.autograd.grad(poses.sum() + variances.sum(), votes)[0].isfinite().all()


def test_9_a_single_child_is_shared_out_soberly():
    check_a_single_child_is_shared_out_soberly(ours)
    fails(check_a_single_child_is_shared_out_soberly, lambda *args: mistake(*args, eps=0.0))


# 9c. Sums that are not divided by the data they are made of.


def check_twice_the_same_inputs_say_the_same(route) -> None:
    """Every input twice over, in the pass that shares all of them out evenly: the same poses, the same variances."""
    scores, votes = torch.linspace(-1, 2, 7).double(), votes_of()
    _, poses, variances = route(scores, votes, 1)
    _, poses_of_two, variances_of_two = route(scores.repeat(2), votes.repeat(2, 1, 1), 1)
    torch.testing.assert_close(poses_of_two, poses, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(variances_of_two, variances, rtol=1e-4, atol=1e-4)


def test_9_sums_are_divided_by_the_data_used():
    check_twice_the_same_inputs_say_the_same(ours)
    fails(check_twice_the_same_inputs_say_the_same, lambda *args: mistake(*args, divide=False))
