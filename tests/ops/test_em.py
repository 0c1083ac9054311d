"""EM routing: what it computes, and its gradients."""

from functools import partial
from math import exp, log, pi, sqrt

import pytest
import torch
from em_problems import D_IN, D_OUT, INF, N_IN, N_OUT, ROWS, WEIGHTS, gradients, problem
from torch.autograd import gradcheck as full_gradcheck

from torchcaps.ops import em_routing, em_routing_steps
from torchcaps.ops.em import EMRouted
from torchcaps.ops.em.densities import EPS

gradcheck = partial(full_gradcheck, fast_mode=True)  # along random directions: the full Jacobian takes a minute here


def test_two_passes_by_hand():
    """Two inputs, two outputs, poses of one number, both inputs there for certain: every step is school arithmetic."""
    votes = [[2.0, 1.0], [1.0, -3.0]]
    use, ignore = [0.5, 0.25], [0.1, 0.2]

    def maximize(probabilities):
        found = []
        for j in (0, 1):
            used = [probabilities[i][j] for i in (0, 1)]
            score = use[j] * sum(used) - ignore[j] * (2 - sum(used))
            mean = sum(used[i] * votes[i][j] for i in (0, 1)) / (sum(used) + EPS)
            variance = sum(used[i] * (votes[i][j] - mean) ** 2 for i in (0, 1)) / (sum(used) + EPS) + EPS
            found.append((score, mean, variance))
        return found

    first = maximize([[0.5, 0.5], [0.5, 0.5]])
    # the paper's own equation, with its factor of 2 pi and without logarithms
    density = [
        [exp(-((votes[i][j] - m) ** 2) / (2 * v)) / sqrt(2 * pi * v) for j, (_, m, v) in enumerate(first)]
        for i in (0, 1)
    ]
    joint = [[density[i][j] / (1 + exp(-first[j][0])) for j in (0, 1)] for i in (0, 1)]
    probabilities = [[joint[i][j] / sum(joint[i]) for j in (0, 1)] for i in (0, 1)]
    second = maximize(probabilities)

    args = {
        "scores": torch.full((2,), INF).double(),
        "poses": torch.tensor([1.0, -1.0]).double().reshape(2, 1, 1),
        "weight": torch.tensor([[2.0, 1.0], [-1.0, 4.0]]).double().reshape(2, 2, 1, 1),
        "bias": torch.tensor([[0.0, 0.0], [0.0, 1.0]]).double().reshape(2, 2, 1, 1),
        "beta_use": torch.tensor([use, use]).double(),
        "beta_ignore": torch.tensor([ignore, ignore]).double(),
        "n_iters": 2,
    }
    steps = list(em_routing_steps(**args))
    torch.testing.assert_close(steps[0].probabilities.tolist(), [[0.5, 0.5], [0.5, 0.5]])
    torch.testing.assert_close(steps[1].probabilities.tolist(), probabilities)
    for step, wanted in zip(steps, (first, second), strict=True):
        torch.testing.assert_close(
            [list(x) for x in zip(*[part.flatten().tolist() for part in step[3:]], strict=True)],
            [list(x) for x in wanted],
        )
    torch.testing.assert_close(em_routing(**args).poses.flatten().tolist(), [mean for _, mean, _ in second])


def test_the_first_pass_gives_every_output_the_same_share_of_every_vote():
    args = problem("ijde")
    gates = args["scores"].sigmoid()  # [b i]
    votes = torch.einsum("bird,ijde->bijre", args["poses"], args["weight"]) + args["bias"]
    total = gates.sum(1)[:, None, None, None] / N_OUT + EPS
    mean = torch.einsum("bi,bijre->bjre", gates / N_OUT, votes) / total
    spread = torch.einsum("bi,bijre->bjre", gates / N_OUT, (votes - mean[:, None]).square()) / total + EPS
    score = torch.einsum("bi,ij->bj", gates / N_OUT, args["beta_use"]) - torch.einsum(
        "bi,ij->bj", gates * (1 - 1 / N_OUT), args["beta_ignore"]
    )
    torch.testing.assert_close(em_routing(**args, n_iters=1), EMRouted(score, mean, spread))


@pytest.mark.parametrize("n_iters", [1, 2, 4])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_op_is_the_last_step(weight, n_iters):
    *_, last = steps = list(em_routing_steps(**problem(weight), n_iters=n_iters))
    assert len(steps) == n_iters
    assert all(torch.equal(a, b) for a, b in zip(em_routing(**problem(weight), n_iters=n_iters), last[3:], strict=True))


@pytest.mark.parametrize("weight", ["jde", "de"])
def test_order_of_input_capsules_does_not_matter(weight, rng):
    args, order = problem(weight), torch.randperm(N_IN, generator=rng)
    shuffled = args | {"poses": args["poses"][:, order], "scores": args["scores"][:, order]}
    torch.testing.assert_close(em_routing(**shuffled), em_routing(**args))


def test_order_of_input_capsules_does_not_matter_if_their_weights_move_along(rng):
    args, order = problem("ijde"), torch.randperm(N_IN, generator=rng)
    moved = {name: x[:, order] if name in ("poses", "scores") else x[order] for name, x in args.items()}
    torch.testing.assert_close(em_routing(**moved), em_routing(**args))
    assert not torch.allclose(
        em_routing(**args | {"poses": moved["poses"], "scores": moved["scores"]}).poses, em_routing(**args).poses
    )


def test_output_capsules_are_told_apart_by_their_parameters_only(rng):
    args, order = problem(), torch.randperm(N_OUT, generator=rng)
    shuffled = {name: x if name in ("poses", "scores") else x[order] for name, x in args.items()}
    for moved, x in zip(em_routing(**shuffled), em_routing(**args), strict=True):
        torch.testing.assert_close(moved, x[:, order])


def test_shared_parameters_equal_the_same_written_out():
    args = problem("jde")
    full = {name: x if name in ("poses", "scores") else x.expand(N_IN, *x.shape) for name, x in args.items()}
    torch.testing.assert_close(em_routing(**full), em_routing(**args))
    args = problem("ijde")
    shared = {
        name: x if name in ("poses", "scores") else x[:2] for name, x in args.items()
    }  # two types of three places
    full = {name: x if name in ("poses", "scores") else x.repeat_interleave(3, 0) for name, x in shared.items()}
    torch.testing.assert_close(em_routing(**full), em_routing(**shared))
    alone = problem("de")
    full = alone | {name: alone[name].expand(N_OUT, *alone[name].shape) for name in ("weight", "bias")}
    torch.testing.assert_close(em_routing(**full), em_routing(**alone))


def test_one_transform_for_all_makes_all_outputs_the_same():
    """Nothing tells the outputs apart: every input stays shared out evenly in every iteration."""
    args = problem("de") | {
        "beta_use": torch.full((N_OUT,), 0.3).double(),
        "beta_ignore": torch.full((N_OUT,), -0.2).double(),
    }
    for step in em_routing_steps(**args):
        torch.testing.assert_close(step.probabilities, torch.full((2, N_IN, N_OUT), 1 / N_OUT).double())
        for x in step[3:]:
            torch.testing.assert_close(x, x[:, :1].expand_as(x))


@pytest.mark.parametrize("weight", WEIGHTS)
def test_no_bias_is_a_bias_of_zero(weight):
    args = problem(weight)
    torch.testing.assert_close(
        em_routing(**args | {"bias": None}), em_routing(**args | {"bias": torch.zeros_like(args["bias"])})
    )


@pytest.mark.parametrize("batch", [(), (1,), (5,), (2, 3), (0,)])
def test_any_leading_batch_axes(batch):
    args = problem(batch=batch)
    routed = em_routing(**args)
    assert routed.scores.shape == (*batch, N_OUT)
    assert routed.poses.shape == routed.variances.shape == (*batch, N_OUT, ROWS, D_OUT)
    flat = zip(args["scores"].reshape(-1, N_IN), args["poses"].reshape(-1, N_IN, ROWS, D_IN), strict=True)
    rows = [em_routing(**args | {"scores": scores, "poses": poses}).poses for scores, poses in flat]
    if rows:
        torch.testing.assert_close(routed.poses.reshape(-1, N_OUT, ROWS, D_OUT), torch.stack(rows))


@pytest.mark.parametrize(
    "sizes",
    [{"i": 1}, {"j": 1}, {"i": 1, "j": 1, "r": 1, "d": 1, "e": 1}, {"i": 7, "j": 13, "r": 3, "d": 1, "e": 2}],
    ids=str,
)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_odd_sizes(weight, sizes):
    args = problem(weight, **sizes)
    for x in (*em_routing(**args), *gradients(args).values()):
        assert x.isfinite().all()


def test_a_single_output_gets_everything():
    """One output leaves nothing to choose: more iterations change nothing."""
    args = problem(j=1)
    torch.testing.assert_close(em_routing(**args, n_iters=1), em_routing(**args, n_iters=4))


@pytest.mark.parametrize("n_iters", [1, 2, 3])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_gradient_is_the_slope(weight, n_iters):
    args = {name: x.requires_grad_() for name, x in problem(weight, batch=(1,)).items()}
    assert gradcheck(lambda *inputs: em_routing(*inputs, n_iters), tuple(args.values()))


def test_gradient_is_the_slope_without_bias():
    args = {name: x.requires_grad_() for name, x in problem(batch=()).items() if name != "bias"}
    assert gradcheck(
        lambda scores, poses, weight, *betas: em_routing(scores, poses, weight, None, *betas), tuple(args.values())
    )


def test_the_inputs_are_left_alone():
    args = problem()
    args["scores"][0, 0] = -INF
    args["poses"][0, 0] = log(2)
    copies = {name: x.clone() for name, x in args.items()}
    em_routing(**args)
    assert all(torch.equal(args[name], copies[name]) for name in args)
