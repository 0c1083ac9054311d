"""EM routing of what is masked, extreme or of a wrong shape."""

import pytest
import torch
from em_problems import D_IN, D_OUT, INF, N_IN, N_OUT, ROWS, WEIGHTS, gradients, problem

from torchcaps.ops import em_routing, em_routing_steps
from torchcaps.ops.em.densities import EPS


@pytest.mark.parametrize("padding", [0.0, 1e30, INF, float("nan")])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_masked_input_is_as_good_as_removed(weight, padding):
    args, keep = problem(weight), [0, 2, 5]
    gone = [1, 3, 4]
    args["scores"][:, gone] = -INF
    args["poses"][:, gone] = padding
    per_input = () if weight != "ijde" else ("weight", "bias", "beta_use", "beta_ignore")
    cut = {
        name: x[:, keep] if name in ("scores", "poses") else x[keep] if name in per_input else x
        for name, x in args.items()
    }
    torch.testing.assert_close(em_routing(**args), em_routing(**cut))
    whole, part = gradients(args), gradients(cut)
    for name in args:
        found = whole[name]
        if name in ("scores", "poses"):
            assert (found[:, gone] == 0).all()
            found = found[:, keep]
        elif name in per_input:
            assert (found[gone] == 0).all()
            found = found[keep]
        torch.testing.assert_close(found, part[name])


@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_sample_that_is_all_mask_gives_nothing_and_harms_nobody(weight):
    args = problem(weight)
    args["scores"][0] = -INF
    args["poses"][0] = float("nan")
    routed = em_routing(**args)
    assert (routed.scores[0] == 0).all() and (routed.poses[0] == 0).all() and (routed.variances[0] == EPS).all()
    alone = args | {"scores": args["scores"][1:], "poses": args["poses"][1:]}
    torch.testing.assert_close([x[1:] for x in routed], list(em_routing(**alone)))
    found = gradients(args)
    assert all(x.isfinite().all() for x in found.values())
    assert (found["scores"][0] == 0).all() and (found["poses"][0] == 0).all()


def test_a_single_child_is_shared_out_soberly(rng):
    """Its vote is the mean, so that the variance is 0 and the density has no end; every output fits it, and none has
    the better claim.
    """
    votes = (
        10 * torch.randn(7, 3, 1, 4, generator=rng, dtype=torch.float64)
    ).requires_grad_()  # of a pose of one number, which is 1
    scores, beta = torch.full((7,), -INF).double(), torch.full((7, 3), 0.5).double()
    scores[4] = INF
    *_, last = em_routing_steps(scores, torch.ones(7, 1, 1).double(), votes, None, beta, beta)
    torch.testing.assert_close(last.probabilities[4], torch.full((3,), 1 / 3).double(), rtol=0.1, atol=0)
    torch.testing.assert_close(last.poses, votes[4], rtol=1e-3, atol=0)
    assert torch.autograd.grad(last.poses.sum() + last.variances.sum(), votes)[0].isfinite().all()


def test_a_score_of_plus_infinity_is_a_very_large_score():
    args = problem()
    certain = args | {"scores": torch.full_like(args["scores"], INF)}
    torch.testing.assert_close(
        em_routing(**certain), em_routing(**args | {"scores": torch.full_like(args["scores"], 50.0)})
    )
    found = gradients(certain)
    assert all(x.isfinite().all() for x in found.values())
    assert (found["scores"] == 0).all() and found["poses"].abs().min() > 0


@pytest.mark.parametrize("scale", [0.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_poses_and_scores_stay_finite(dtype, scale):
    args = problem(dtype=dtype)
    args = args | {
        "poses": args["poses"] * scale,
        "beta_use": args["beta_use"] * 1e3,
        "scores": args["scores"] * max(scale, 1.0),
    }
    assert all(x.isfinite().all() for x in (*em_routing(**args), *gradients(args).values()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"poses": torch.ones(2, 1, ROWS, D_IN), "scores": torch.ones(2, 1)},
            r"the weight \[6, 3, 4, 5\] is for 6 capsules, or types of as many each, and got 1; share it",
        ),
        (
            {"poses": torch.ones(2, N_IN, ROWS, 5)},
            r"the weight \[6, 3, 4, 5\] takes poses with rows of 4 dimensions, got 5",
        ),
        (
            {"poses": torch.ones(ROWS, D_IN)},
            r"expects poses \[\*b i r d\] and a weight .* got \[2, 4\] and \[6, 3, 4, 5\]",
        ),
        ({"weight": torch.ones(D_IN)}, r"expects poses \[\*b i r d\] and a weight .* got \[2, 6, 2, 4\] and \[4\]"),
        ({"scores": torch.ones(2, 1)}, r"poses \[2, 6, 2, 4\] need scores \[2, 6\], got \[2, 1\]"),
        ({"scores": torch.ones(N_IN)}, r"poses \[2, 6, 2, 4\] need scores \[2, 6\], got \[6\]"),
        ({"bias": torch.ones(N_OUT, ROWS, D_OUT)}, r"bias must be \[6, 3, 2, 5\] for this weight, got \[3, 2, 5\]"),
        (
            {"bias": torch.ones(N_IN, N_OUT, 1, D_OUT)},
            r"bias must be \[6, 3, 2, 5\] for this weight, got \[6, 3, 1, 5\]",
        ),
        ({"beta_use": torch.ones(N_OUT)}, r"beta_use must be \[6, 3\] for this weight, got \[3\]"),
        ({"beta_ignore": torch.ones(1, N_OUT)}, r"beta_ignore must be \[6, 3\] for this weight, got \[1, 3\]"),
        (
            {"weight": torch.ones(D_IN, D_OUT), "bias": None, "beta_use": torch.tensor(1.0)},
            r"beta_use must be \[j\] for this weight, got \[\]",
        ),
        (
            {"weight": torch.ones(D_IN, D_OUT), "bias": None, "beta_use": torch.ones(3)},
            r"beta_ignore must be \[3\] for this weight, got \[6, 3\]",
        ),
        (
            {"weight": torch.ones(D_IN, D_OUT), "bias": torch.ones(3, ROWS, D_OUT)},
            r"bias must be \[2, 5\] for this weight, got \[3, 2, 5\]",
        ),
        (
            {
                "weight": torch.ones(0, D_IN, D_OUT),
                "bias": None,
                "beta_use": torch.ones(0),
                "beta_ignore": torch.ones(0),
            },
            "needs at least one output capsule",
        ),
        ({"n_iters": 0}, "needs at least one iteration, got n_iters=0"),
    ],
    ids=lambda x: "+".join(x) if isinstance(x, dict) else "",
)
def test_what_would_broadcast_in_silence_is_refused(change, message):
    args = problem("ijde", dtype=torch.float32) | change
    with pytest.raises(ValueError, match=message):
        em_routing(**args)
    with pytest.raises(ValueError, match=message):
        next(em_routing_steps(**args))
