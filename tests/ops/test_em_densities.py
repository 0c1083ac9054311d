"""EM routing with every model of the votes, with a prior, and with padding."""

from functools import partial
from math import exp, inf, sqrt

import pytest
import torch
from em_problems import N_IN, N_OUT, WEIGHTS, gradients, problem
from torch.autograd import gradcheck

from torchcaps.ops import DENSITIES, em_routing, em_routing_steps, own_output_prior
from torchcaps.ops.em.densities import EPS


def test_the_table_holds_what_the_paper_proposes():
    assert set(DENSITIES) == {"gaussian", "student-t", "laplace", "k-means"}


# Every model by school arithmetic: poses of one number, two outputs, three inputs that are there for certain.

VOTES = [[2.0, 1.0], [1.0, -3.0], [0.5, 0.0]]
USE, IGNORE = [0.5, 0.25], [0.1, 0.2]


def density_by_hand(name, off, var):
    """Density of one vote, without the factor that all outputs share."""
    if name == "gaussian":
        return exp(-(off**2) / (2 * var)) / sqrt(var)
    if name == "student-t":
        scale = var / 2  # 4 degrees of freedom: the variance is 4 / (4 - 2) times s²
        return (1 + off**2 / (4 * scale)) ** -2.5 / sqrt(scale)
    if name == "laplace":
        return exp(-abs(off) / sqrt(var / 2)) / sqrt(var / 2)
    return exp(-(off**2) / 2)


def maximize_by_hand(name, used, votes, before):
    """One output: pose and variance, from what it uses of three votes and its model of the pass before."""
    trust = [1.0] * 3
    if before and name == "student-t":
        trust = [5 / (4 + (v - before[0]) ** 2 / (before[1] / 2)) for v in votes]
    if before and name == "laplace":
        trust = [sqrt(before[1] / 2) / sqrt((v - before[0]) ** 2 + EPS) for v in votes]
    weights = [d * u for d, u in zip(used, trust, strict=True)]
    mean = sum(w * v for w, v in zip(weights, votes, strict=True)) / (sum(weights) + EPS)
    if name == "laplace":
        scale = sum(d * abs(v - mean) for d, v in zip(used, votes, strict=True)) / (sum(used) + EPS)
        return mean, 2 * scale**2 + EPS
    squares = sum(w * (v - mean) ** 2 for w, v in zip(weights, votes, strict=True)) / (sum(used) + EPS)
    return mean, (2 if before and name == "student-t" else 1) * squares + EPS


@pytest.mark.parametrize("name", DENSITIES)
def test_three_passes_by_hand(name):
    args = {
        "scores": torch.full((3,), inf).double(),
        "poses": torch.ones(3, 1, 1).double(),
        "weight": torch.tensor(VOTES).double().reshape(3, 2, 1, 1),
        "bias": None,
        "beta_use": torch.tensor([USE] * 3).double(),
        "beta_ignore": torch.tensor([IGNORE] * 3).double(),
    }
    probabilities, models = [[0.5, 0.5]] * 3, [None, None]
    for step in em_routing_steps(**args, density=name):
        torch.testing.assert_close(step.probabilities.tolist(), probabilities)
        used = [[row[j] for row in probabilities] for j in (0, 1)]
        models = [maximize_by_hand(name, used[j], [row[j] for row in VOTES], models[j]) for j in (0, 1)]
        scores = [USE[j] * sum(used[j]) - IGNORE[j] * (3 - sum(used[j])) for j in (0, 1)]
        torch.testing.assert_close(step.scores.tolist(), scores)
        torch.testing.assert_close(step.poses.flatten().tolist(), [mean for mean, _ in models])
        torch.testing.assert_close(step.variances.flatten().tolist(), [var for _, var in models])
        joint = [
            [density_by_hand(name, row[j] - models[j][0], models[j][1]) / (1 + exp(-scores[j])) for j in (0, 1)]
            for row in VOTES
        ]
        probabilities = [[p / sum(row) for p in row] for row in joint]


@pytest.mark.parametrize("name", DENSITIES)
def test_agreement_wins_whatever_the_model(name):
    """All inputs vote alike for output 0 and every which way for output 1, so they route to output 0."""
    poses = torch.eye(6).reshape(6, 1, 6) * 4
    weight = torch.stack([torch.full((6, 1), 0.5), torch.tensor([3.0, -2.0, 1.0, -1.0, 2.0, -3.0])[:, None]])
    first, *_, last = em_routing_steps(
        torch.full((6,), inf), poses, weight, None, torch.ones(2), torch.ones(2), density=name
    )
    assert (first.probabilities == 0.5).all()
    assert (last.probabilities[:, 0] > 0.9).all()
    assert last.scores[0] > 4 and last.scores[1] < -4


def test_heavy_tails_stay_with_the_crowd():
    """Nine votes near 0 and one at 20, for a single output: the models with heavy tails believe the nine."""
    votes = torch.tensor([-0.4, -0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.4, 20.0]).double()
    zeros, certain = torch.zeros(1).double(), torch.full((10,), inf).double()
    poses = {
        name: em_routing(
            certain, votes.reshape(10, 1, 1), zeros.new_ones(1, 1, 1), None, zeros, zeros, 10, density=name
        ).poses.item()
        for name in DENSITIES
    }
    assert poses["gaussian"] == pytest.approx(2, rel=1e-4) and poses["k-means"] == pytest.approx(2, rel=1e-4)
    assert abs(poses["student-t"]) < 0.1 and abs(poses["laplace"]) < 0.1


def test_k_means_does_not_look_at_the_spread():
    """With nothing to gain or lose, an input goes by its distance alone."""
    args = problem("ijde", batch=(), j=2, r=1, e=1) | {
        "beta_use": torch.zeros(6, 2).double(),
        "beta_ignore": torch.zeros(6, 2).double(),
    }
    first, second = em_routing_steps(**args, density="k-means", n_iters=2)
    votes = torch.einsum("ird,ijde->ijre", args["poses"], args["weight"]) + args["bias"]
    distance = (votes - first.poses).square().sum((-2, -1))
    torch.testing.assert_close(second.probabilities, (-distance / 2).softmax(-1))


# The invariants, for every model.


@pytest.mark.parametrize("name", DENSITIES)
def test_nothing_of_an_input_is_lost(name):
    """R sums to one over the outputs (section 3.4); used, ignored and gated off make one capsule (Eq. 7), and the first
    two are paid.
    """
    args = problem("ijde")
    gates = args["scores"].sigmoid()[..., None]
    for step in em_routing_steps(**args, density=name, prior=torch.randn(N_IN, N_OUT).double()):
        torch.testing.assert_close(step.probabilities.sum(-1), torch.ones(2, N_IN).double())
        torch.testing.assert_close(step.used, gates * step.probabilities)
        assert (step.used >= 0).all() and (step.ignored >= 0).all()
        torch.testing.assert_close(step.used + step.ignored + (1 - gates), torch.ones(2, N_IN, N_OUT).double())
        torch.testing.assert_close(
            step.scores, (args["beta_use"] * step.used - args["beta_ignore"] * step.ignored).sum(1)
        )


@pytest.mark.parametrize("name", DENSITIES)
def test_the_op_is_the_last_step_and_has_the_slope_it_says(name):
    args = {key: x.requires_grad_() for key, x in problem(batch=(1,)).items()}
    *_, last = em_routing_steps(**args, density=name)
    assert all(torch.equal(a, b) for a, b in zip(em_routing(**args, density=name), last[3:], strict=True))
    assert gradcheck(lambda *inputs: em_routing(*inputs, density=name), tuple(args.values()), fast_mode=True)


@pytest.mark.parametrize("name", DENSITIES)
def test_order_of_input_capsules_does_not_matter(name, rng):
    args, order = problem("jde"), torch.randperm(N_IN, generator=rng)
    shuffled = args | {"poses": args["poses"][:, order], "scores": args["scores"][:, order]}
    torch.testing.assert_close(em_routing(**shuffled, density=name), em_routing(**args, density=name))


def assert_nearly_equal(found, wanted, context=""):
    assert found.shape == wanted.shape
    error = (found - wanted).abs().max() / wanted.abs().max()
    assert error <= 1e-12, f"{context}: relative error {error:.1e}"


@pytest.mark.parametrize("name", DENSITIES)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_padding_with_masked_capsules_changes_nothing(weight, name):
    """Five capsules more, masked and full of NaN: values and gradients stay within 1e-12 of what they were, in
    float64.
    """
    longer = problem(weight, i=N_IN + 5)
    per_input = ("weight", "bias", "beta_use", "beta_ignore") if weight == "ijde" else ()
    longer["scores"][:, N_IN:] = -inf
    longer["poses"][:, N_IN:] = float("nan")
    short = {
        key: x[:, :N_IN] if key in ("scores", "poses") else x[:N_IN] if key in per_input else x
        for key, x in longer.items()
    }
    for padded, plain in zip(em_routing(**longer, density=name), em_routing(**short, density=name), strict=True):
        assert_nearly_equal(padded, plain)
    padded, plain = gradients(longer, density=name), gradients(short, density=name)
    for key in short:
        found = (
            padded[key][:, :N_IN]
            if key in ("scores", "poses")
            else padded[key][:N_IN]
            if key in per_input
            else padded[key]
        )
        assert_nearly_equal(found, plain[key], key)
    with pytest.raises(AssertionError, match="relative error"):
        assert_nearly_equal(padded["weight"] * (1 + 1e-11), padded["weight"])


@pytest.mark.parametrize("name", DENSITIES)
def test_a_fractional_score_is_so_much_of_a_capsule(name):
    """Two halves of a capsule are one whole: scores log(x / (1 - x)) with x = 1/2 are 0."""
    args = problem()
    args["scores"][:, 0] = inf
    halves = args | {
        "scores": args["scores"]
        .index_select(1, torch.tensor([0, *range(N_IN)]))
        .index_fill(1, torch.tensor([0, 1]), 0.0)
    }
    halves["poses"] = args["poses"].index_select(1, torch.tensor([0, *range(N_IN)]))
    torch.testing.assert_close(em_routing(**halves, density=name), em_routing(**args, density=name))


@pytest.mark.parametrize("name", DENSITIES)
def test_extremes_stay_finite(name):
    for scale in (0.0, 1e4):
        args = problem(dtype=torch.float32)
        args = args | {"poses": args["poses"] * scale, "beta_use": args["beta_use"] * 1e3}
        args["scores"][0] = -inf
        found = em_routing(**args, density=name), gradients(args, density=name).values()
        assert all(x.isfinite().all() for part in found for x in part)
        assert (found[0].poses[0] == 0).all() and (found[0].variances[0] == EPS).all()


def test_betas_are_tied_by_passing_one_tensor():
    """Section 3.5.1. Its gradient is then the sum of both."""
    args = problem("ijde")
    apart = gradients(args | {"beta_ignore": args["beta_use"].clone()})
    beta = args["beta_use"].requires_grad_()
    tied = {key: x for key, x in args.items() if not key.startswith("beta")}
    routed = em_routing(**tied, beta_use=beta, beta_ignore=beta)
    gates = args["scores"].sigmoid()
    # with equal betas a score is the benefit of twice what is used, less that of all there is
    *_, last = em_routing_steps(**tied, beta_use=beta, beta_ignore=beta)
    torch.testing.assert_close(routed.scores, (beta * (2 * last.used - gates[..., None])).sum(1))
    generator = torch.Generator().manual_seed(7)
    total = sum((x * torch.randn(x.shape, generator=generator).to(x)).sum() for x in routed)
    torch.testing.assert_close(torch.autograd.grad(total, beta)[0], apart["beta_use"] + apart["beta_ignore"])


# One transform for everything, as many outputs as inputs (section 3.1.1).


def symmetric(n=N_IN, **options):
    """Nothing tells the outputs apart."""
    return problem("de", i=n, j=n, **options) | {
        "beta_use": torch.full((n,), 0.3).double(),
        "beta_ignore": torch.full((n,), -0.2).double(),
    }


def apart(x):
    """How much the outputs [b j ...] differ."""
    return (x - x[:, :1]).abs().max()


@pytest.mark.parametrize("name", DENSITIES)
def test_without_a_prior_all_outputs_are_the_same(name):
    for step in em_routing_steps(**symmetric(), density=name):  # rounding alone grows tenfold from pass to pass
        assert all(apart(x) < 1e-12 for x in (step.scores, step.poses, step.variances))


@pytest.mark.parametrize("n", [2, 3, N_IN])
@pytest.mark.parametrize("name", DENSITIES)
def test_a_prior_for_the_own_output_tells_them_apart(name, n):
    args = symmetric(n)
    prior = own_output_prior(args["scores"])
    first, *_, last = em_routing_steps(**args, prior=prior, density=name)
    own = torch.diagonal(first.probabilities, dim1=-2, dim2=-1)
    torch.testing.assert_close(own, torch.full_like(own, n / (2 * n - 1)))
    assert apart(first.poses) > 1e-2 and apart(last.poses) > 1e-2
    assert all(x.isfinite().all() for x in gradients(args, prior=prior, density=name).values())


@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_prior_of_zeros_is_none(weight):
    torch.testing.assert_close(
        em_routing(**problem(weight), prior=torch.zeros(N_IN, N_OUT)), em_routing(**problem(weight))
    )


def test_padding_changes_nothing_where_it_makes_outputs_too():
    longer = symmetric(N_IN + 3)
    longer["scores"][:, N_IN:] = -inf
    short = {
        key: x[:, :N_IN] if key in ("scores", "poses") else x[:N_IN] if "beta" in key else x
        for key, x in longer.items()
    }
    routed = [em_routing(**args, prior=own_output_prior(args["scores"])) for args in (longer, short)]
    for padded, plain in zip(*routed, strict=True):
        assert_nearly_equal(padded[:, :N_IN], plain)


def test_a_closed_pair_stays_closed():
    prior = torch.zeros(2, N_IN, N_OUT)
    prior[0, 2, 1] = prior[1, :, 0] = -inf
    for step in em_routing_steps(**problem(), prior=prior):
        assert ((step.probabilities == 0) == (prior == -inf)).all()
    assert all(x.isfinite().all() for x in gradients(problem(), prior=prior).values())


def test_a_sample_that_is_all_mask_has_a_prior_too():
    args = symmetric()
    args["scores"][0] = -inf
    assert all(x.isfinite().all() for x in em_routing(**args, prior=own_output_prior(args["scores"])))


# Options of the reference alone.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"density": "laplace"},
            "knows the Gaussian model of the votes only, got density='laplace'; use density='gaussian', or use",
        ),
        (
            {"prior": torch.zeros(N_IN, N_OUT)},
            "starts from equal probabilities only, got a prior; leave it out, or use",
        ),
    ],
    ids=["density", "prior"],
)
def test_the_kernels_refuse_with_the_reason_and_auto_goes_on(options, message, monkeypatch):
    args = problem(dtype=torch.float32)
    with pytest.raises(ValueError, match=f"em_routing: backend 'triton' {message}"):
        em_routing(**args, **options, backend="triton")
    monkeypatch.setattr("torchcaps.ops.backend.AUTO", {"cpu": ("triton",)})  # as on a GPU: the kernels are asked first
    wanted = em_routing(**args, **options, backend="reference")
    assert all(torch.equal(a, b) for a, b in zip(em_routing(**args, **options), wanted, strict=True))


@pytest.mark.slow
def test_every_model_compiles_whole(fresh_dynamo):
    def routed(args, prior):
        return [x for name in DENSITIES for x in em_routing(**args, density=name, prior=prior, n_iters=2)]

    prior = torch.zeros(N_IN, N_OUT).index_fill(1, torch.tensor([1]), -inf)
    torch.testing.assert_close(
        torch.compile(routed, fullgraph=True, backend="aot_eager")(problem(), prior), routed(problem(), prior)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"density": "cauchy"}, "density must be one of gaussian, student-t, laplace, k-means; got 'cauchy'"),
        ({"prior": torch.zeros(1, N_OUT)}, r"prior logits must be \[6, 3\], or that for every sample, got \[1, 3\]"),
        (
            {"prior": torch.zeros(3, N_IN, N_OUT)},
            r"prior logits must be \[6, 3\], or that for every sample, got \[3, 6, 3\]",
        ),
    ],
    ids=["density", "prior", "batch"],
)
def test_what_cannot_be_is_refused(options, message):
    for op in (em_routing, lambda **args: next(em_routing_steps(**args))):
        with pytest.raises(ValueError, match=message):
            partial(op, **problem())(**options)
