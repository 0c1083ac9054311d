from functools import partial
from math import exp, log, pi, sqrt

import pytest
import torch
from torch.autograd import gradcheck as full_gradcheck

from torchcaps.ops import em as em_module
from torchcaps.ops import em_routing, em_routing_steps
from torchcaps.ops.em_densities import EPS
from torchcaps.testing import compare_routing

N_IN, N_OUT, ROWS, D_IN, D_OUT = 6, 3, 2, 4, 5
gradcheck = partial(full_gradcheck, fast_mode=True)  # along random directions: the full Jacobian takes a minute here
WEIGHTS = ("ijde", "jde", "de")
INF = float("inf")


def problem(weight="jde", batch=(2,), dtype=torch.float64, seed=0, i=N_IN, j=N_OUT, r=ROWS, d=D_IN, e=D_OUT):
    """All inputs of a small routing, all different. One letter of the weight's shape names one size."""
    rng = torch.Generator().manual_seed(seed)
    sizes = {"i": i, "j": j, "r": r, "d": d, "e": e}
    shapes = {
        "scores": (*batch, i),
        "poses": (*batch, i, r, d),
        "weight": [sizes[x] for x in weight],
        "bias": [sizes[x] for x in weight.replace("d", "r")],
        "beta_use": [sizes[x] for x in weight.removesuffix("de") or "j"],
        "beta_ignore": [sizes[x] for x in weight.removesuffix("de") or "j"],
    }
    return {name: torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype) for name, shape in shapes.items()}


def gradients(args, **options):
    """Of a random direction in all outputs, by name."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in args.items()}
    routed = em_routing(**leaves, **options)
    rng = torch.Generator().manual_seed(7)
    total = sum((x * torch.randn(x.shape, generator=rng).to(x)).sum() for x in routed)
    return dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))


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
    density = [[exp(-((votes[i][j] - m) ** 2) / (2 * v)) / sqrt(2 * pi * v) for j, (_, m, v) in enumerate(first)] for i in (0, 1)]
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
            [list(x) for x in zip(*[part.flatten().tolist() for part in step[3:]], strict=True)], [list(x) for x in wanted]
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
    torch.testing.assert_close(em_routing(**args, n_iters=1), em_module.EMRouted(score, mean, spread))


def test_every_input_is_shared_out_whole():
    """R sums to one over the outputs; used + ignored + gated off is one capsule, and the scores are paid from the first two."""
    args = problem("ijde")
    gates = args["scores"].sigmoid()[..., None]
    for step in em_routing_steps(**args):
        torch.testing.assert_close(step.probabilities.sum(-1), torch.ones(2, N_IN).double())
        torch.testing.assert_close(step.used, gates * step.probabilities)
        assert (step.used >= 0).all() and (step.ignored >= 0).all()
        torch.testing.assert_close(step.used + step.ignored + (1 - gates), torch.ones(2, N_IN, N_OUT).double())
        torch.testing.assert_close(step.scores, (args["beta_use"] * step.used - args["beta_ignore"] * step.ignored).sum(1))


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
    assert not torch.allclose(em_routing(**args | {"poses": moved["poses"], "scores": moved["scores"]}).poses, em_routing(**args).poses)


def test_output_capsules_are_told_apart_by_their_parameters_only(rng):
    args, order = problem(), torch.randperm(N_OUT, generator=rng)
    shuffled = {name: x if name in ("poses", "scores") else x[order] for name, x in args.items()}
    for moved, x in zip(em_routing(**shuffled), em_routing(**args), strict=True):
        torch.testing.assert_close(moved, x[:, order])


def test_shared_parameters_equal_the_same_written_out():
    args = problem("jde")
    full = {name: x if name in ("poses", "scores") else x.expand(N_IN, *x.shape) for name, x in args.items()}
    torch.testing.assert_close(em_routing(**full), em_routing(**args))
    alone = problem("de")
    full = alone | {name: alone[name].expand(N_OUT, *alone[name].shape) for name in ("weight", "bias")}
    torch.testing.assert_close(em_routing(**full), em_routing(**alone))


def test_one_transform_for_all_makes_all_outputs_the_same():
    """Nothing tells the outputs apart: every input stays shared out evenly, pass after pass."""
    args = problem("de") | {"beta_use": torch.full((N_OUT,), 0.3).double(), "beta_ignore": torch.full((N_OUT,), -0.2).double()}
    for step in em_routing_steps(**args):
        torch.testing.assert_close(step.probabilities, torch.full((2, N_IN, N_OUT), 1 / N_OUT).double())
        for x in step[3:]:
            torch.testing.assert_close(x, x[:, :1].expand_as(x))


@pytest.mark.parametrize("weight", WEIGHTS)
def test_no_bias_is_a_bias_of_zero(weight):
    args = problem(weight)
    torch.testing.assert_close(em_routing(**args | {"bias": None}), em_routing(**args | {"bias": torch.zeros_like(args["bias"])}))


def test_agreement_wins():
    """All inputs vote alike for output 0 and every which way for output 1, so they route to output 0."""
    poses = torch.eye(6).reshape(6, 1, 6) * 4
    weight = torch.stack([torch.full((6, 1), 0.5), torch.tensor([3.0, -2.0, 1.0, -1.0, 2.0, -3.0])[:, None]])
    first, *_, last = em_routing_steps(torch.full((6,), INF), poses, weight, None, torch.ones(2), torch.ones(2))
    assert (first.probabilities == 0.5).all()
    assert (last.probabilities[:, 0] > 0.9).all()
    assert last.scores[0] > 4 and last.scores[1] < -4


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
    "sizes", [{"i": 1}, {"j": 1}, {"i": 1, "j": 1, "r": 1, "d": 1, "e": 1}, {"i": 7, "j": 13, "r": 3, "d": 1, "e": 2}], ids=str
)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_odd_sizes(weight, sizes):
    args = problem(weight, **sizes)
    for x in (*em_routing(**args), *gradients(args).values()):
        assert x.isfinite().all()


def test_a_single_output_gets_everything():
    """With one output there is nothing to choose: more passes change nothing."""
    args = problem(j=1)
    torch.testing.assert_close(em_routing(**args, n_iters=1), em_routing(**args, n_iters=4))


# Masks.


@pytest.mark.parametrize("padding", [0.0, 1e30, INF, float("nan")])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_a_masked_input_is_as_good_as_removed(weight, padding):
    args, keep = problem(weight), [0, 2, 5]
    gone = [1, 3, 4]
    args["scores"][:, gone] = -INF
    args["poses"][:, gone] = padding
    per_input = () if weight != "ijde" else ("weight", "bias", "beta_use", "beta_ignore")
    cut = {name: x[:, keep] if name in ("scores", "poses") else x[keep] if name in per_input else x for name, x in args.items()}
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


def test_a_score_of_plus_infinity_is_a_very_large_score():
    args = problem()
    certain = args | {"scores": torch.full_like(args["scores"], INF)}
    torch.testing.assert_close(em_routing(**certain), em_routing(**args | {"scores": torch.full_like(args["scores"], 50.0)}))
    found = gradients(certain)
    assert all(x.isfinite().all() for x in found.values())
    assert (found["scores"] == 0).all() and found["poses"].abs().min() > 0


@pytest.mark.parametrize("scale", [0.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_poses_and_scores_stay_finite(dtype, scale):
    args = problem(dtype=dtype)
    args = args | {"poses": args["poses"] * scale, "beta_use": args["beta_use"] * 1e3, "scores": args["scores"] * max(scale, 1.0)}
    assert all(x.isfinite().all() for x in (*em_routing(**args), *gradients(args).values()))


# Gradients.


@pytest.mark.parametrize("n_iters", [1, 2, 3])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_gradient_is_the_slope(weight, n_iters):
    args = {name: x.requires_grad_() for name, x in problem(weight, batch=(1,)).items()}
    assert gradcheck(lambda *inputs: em_routing(*inputs, n_iters), tuple(args.values()))


def test_gradient_is_the_slope_without_bias():
    args = {name: x.requires_grad_() for name, x in problem(batch=()).items() if name != "bias"}
    assert gradcheck(lambda scores, poses, weight, *betas: em_routing(scores, poses, weight, None, *betas), tuple(args.values()))


# Dtypes, compilers, backends.


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


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_compiled_is_right(fresh_dynamo, monkeypatch, dtype):
    """With the compiler that needs no C++."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    em_module._compiled.cache_clear()
    margins = compare_routing(em_routing, problem("ijde", dtype=dtype), backend="compiled", dtype=dtype)
    em_module._compiled.cache_clear()
    assert set(margins) == {*em_module.EMRouted._fields, *(f"grad {name}" for name in problem())}


def test_triton_is_not_replaced_in_silence(monkeypatch):
    monkeypatch.setattr("torchcaps.ops.backend.INTERPRETED", False)
    with pytest.raises(ValueError, match=r"em_routing: backend 'triton' needs .*, or use backend='reference'"):
        em_routing(**problem(dtype=torch.float32), backend="triton")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"poses": torch.ones(2, 1, ROWS, D_IN), "scores": torch.ones(2, 1)},
            r"the weight \[6, 3, 4, 5\] is for 6 capsules, got 1; share it",
        ),
        ({"poses": torch.ones(2, N_IN, ROWS, 5)}, r"the weight \[6, 3, 4, 5\] takes poses with rows of 4 numbers, got 5"),
        ({"poses": torch.ones(ROWS, D_IN)}, r"expects poses \[\*b i r d\] and a weight .* got \[2, 4\] and \[6, 3, 4, 5\]"),
        ({"weight": torch.ones(D_IN)}, r"expects poses \[\*b i r d\] and a weight .* got \[2, 6, 2, 4\] and \[4\]"),
        ({"scores": torch.ones(2, 1)}, r"poses \[2, 6, 2, 4\] need scores \[2, 6\], got \[2, 1\]"),
        ({"scores": torch.ones(N_IN)}, r"poses \[2, 6, 2, 4\] need scores \[2, 6\], got \[6\]"),
        ({"bias": torch.ones(N_OUT, ROWS, D_OUT)}, r"bias must be \[6, 3, 2, 5\] for this weight, got \[3, 2, 5\]"),
        ({"bias": torch.ones(N_IN, N_OUT, 1, D_OUT)}, r"bias must be \[6, 3, 2, 5\] for this weight, got \[6, 3, 1, 5\]"),
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
            {"weight": torch.ones(0, D_IN, D_OUT), "bias": None, "beta_use": torch.ones(0), "beta_ignore": torch.ones(0)},
            "needs at least one output capsule",
        ),
        ({"n_iters": 0}, "needs at least one pass, got n_iters=0"),
    ],
    ids=lambda x: "+".join(x) if isinstance(x, dict) else "",
)
def test_what_would_broadcast_in_silence_is_refused(change, message):
    args = problem("ijde", dtype=torch.float32) | change
    with pytest.raises(ValueError, match=message):
        em_routing(**args)
    with pytest.raises(ValueError, match=message):
        next(em_routing_steps(**args))


def test_the_inputs_are_left_alone():
    args = problem()
    args["scores"][0, 0] = -INF
    args["poses"][0, 0] = log(2)
    copies = {name: x.clone() for name, x in args.items()}
    em_routing(**args)
    assert all(torch.equal(args[name], copies[name]) for name in args)
