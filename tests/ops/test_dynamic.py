from functools import partial
from math import exp, log

import pytest
import torch
from torch.autograd import gradcheck as full_gradcheck

from torchcaps.ops import COUPLINGS, dynamic_routing, dynamic_routing_steps, recover_couplings, squash
from torchcaps.ops.couplings import FIXED

N_IN, N_OUT, D_IN, D_OUT, N_TYPES = 6, 3, 2, 4, 2
gradcheck = partial(full_gradcheck, fast_mode=True)  # along random directions: the full Jacobian takes a minute here
WEIGHTS = {
    "ijde": (N_IN, N_OUT, D_IN, D_OUT),
    "njde": (N_TYPES, N_OUT, D_IN, D_OUT),
    "jde": (N_OUT, D_IN, D_OUT),
    "de": (D_IN, D_OUT),
}


def problem(weight="ijde", batch=(2,), dtype=torch.float64, seed=0):
    """Poses, weight, bias and prior of a small routing, all different."""
    rng = torch.Generator().manual_seed(seed)
    shapes = {"poses": (*batch, N_IN, D_IN), "weight": WEIGHTS[weight], "bias": (N_OUT, D_OUT), "prior": (N_IN, N_OUT)}
    return {name: torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype) for name, shape in shapes.items()}


def expanded(weight):
    """The transform of every pair, written out."""
    if weight.ndim == 4:
        return weight.repeat_interleave(N_IN // weight.shape[0], dim=0)  # capsules of one type stand together
    return weight.expand(N_IN, N_OUT, D_IN, D_OUT)


def test_two_passes_by_hand():
    """Two children, two parents, poses of one number: every step is school arithmetic."""
    votes = [[2.0, 1.0], [1.0, -3.0]]

    def squashed(s):
        return s * abs(s) / (1 + s * s)

    # pass 1: every child gives one half to each parent
    first = [squashed(0.5 * 2 + 0.5 * 1), squashed(0.5 * 1 + 0.5 * -3)]
    # pass 2: what agreed counts more
    logits = [[votes[i][j] * first[j] for j in (0, 1)] for i in (0, 1)]
    share = [[exp(logits[i][j]) / (exp(logits[i][0]) + exp(logits[i][1])) for j in (0, 1)] for i in (0, 1)]
    second = [squashed(share[0][j] * votes[0][j] + share[1][j] * votes[1][j]) for j in (0, 1)]

    poses = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    weight = torch.tensor([[[[2.0]], [[1.0]]], [[[-1.0]], [[3.0]]]], dtype=torch.float64)
    routed = dynamic_routing(poses, weight, n_iters=2)
    torch.testing.assert_close(routed.poses[:, 0].tolist(), second)
    torch.testing.assert_close(routed.pose_sum[:, 0].tolist(), first)
    steps = list(dynamic_routing_steps(poses, weight, n_iters=2))
    torch.testing.assert_close([s.couplings.tolist() for s in steps], [[[0.5, 0.5], [0.5, 0.5]], share])
    torch.testing.assert_close([s.logits.tolist() for s in steps], [[[0.0, 0.0], [0.0, 0.0]], logits])


def test_bias_and_prior_by_hand():
    """One child gives 1/4 of its vote 4 to parent 0 and 3/4 to parent 1, whose bias adds 1: squash of 1 and of 3 +
    1.
    """
    prior, bias = torch.tensor([[0.0, log(3)]]), torch.tensor([[0.0], [1.0]])
    routed = dynamic_routing(torch.ones(1, 1), torch.full((1, 2, 1, 1), 4.0), bias, n_iters=1, prior=prior)
    torch.testing.assert_close(routed.poses[:, 0].tolist(), [1 / 2, 16 / 17], rtol=1e-6, atol=0.0)
    assert (routed.pose_sum == 0).all()


def test_each_input_capsule_spends_exactly_one_vote():
    for step in dynamic_routing_steps(**problem()):
        torch.testing.assert_close(step.couplings.sum(-1), torch.ones(2, N_IN, dtype=torch.float64))


def test_order_of_input_capsules_does_not_matter(rng):
    args, order = problem(), torch.randperm(N_IN, generator=rng)
    shuffled = args | {"poses": args["poses"][:, order], "weight": args["weight"][order], "prior": args["prior"][order]}
    torch.testing.assert_close(dynamic_routing(**shuffled), dynamic_routing(**args))


def test_output_capsules_are_told_apart_by_their_weights_only(rng):
    args, order = problem(), torch.randperm(N_OUT, generator=rng)
    shuffled = args | {
        "weight": args["weight"][:, order],
        "bias": args["bias"][order],
        "prior": args["prior"][:, order],
    }
    torch.testing.assert_close(dynamic_routing(**shuffled).poses, dynamic_routing(**args).poses[:, order])


def test_turning_all_votes_turns_the_outputs(rng):
    """Agreement is a scalar product: no direction is special."""
    args = problem()
    turn = torch.linalg.qr(torch.randn(D_OUT, D_OUT, dtype=torch.float64, generator=rng)).Q
    turned = args | {"weight": args["weight"] @ turn, "bias": args["bias"] @ turn}
    torch.testing.assert_close(dynamic_routing(**turned).poses, dynamic_routing(**args).poses @ turn)


def test_agreement_wins():
    """Two capsules agree on output 0 and disagree on output 1, so they route to output 0."""
    weight = torch.eye(2).expand(2, 2, 2, 2).clone()
    weight[1, 1] = -torch.eye(2)
    poses = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
    first, *_, last = dynamic_routing_steps(poses, weight, n_iters=3)
    assert (first.couplings == 0.5).all()
    assert (last.couplings[:, 0] > 0.9).all()
    assert last.poses[0].norm() > first.poses[0].norm()
    assert (last.poses[1] == 0).all()


@pytest.mark.parametrize("batch", [(), (1,), (5,), (2, 3), (0,)])
def test_any_leading_batch_axes(batch):
    args = problem(batch=batch)
    routed = dynamic_routing(**args)
    assert routed.poses.shape == routed.pose_sum.shape == (*batch, N_OUT, D_OUT)
    rows = [dynamic_routing(**args | {"poses": row}).poses for row in args["poses"].reshape(-1, N_IN, D_IN)]
    if rows:
        torch.testing.assert_close(routed.poses.reshape(-1, N_OUT, D_OUT), torch.stack(rows))


@pytest.mark.parametrize("couplings", COUPLINGS)
def test_a_batch_of_one_equals_the_row_of_a_batch(couplings):
    args = problem(batch=(4,))
    alone = dynamic_routing(**args | {"poses": args["poses"][2:3]}, couplings=couplings)
    torch.testing.assert_close(alone.poses[0], dynamic_routing(**args, couplings=couplings).poses[2])


@pytest.mark.parametrize("couplings", COUPLINGS)
@pytest.mark.parametrize("shape", ["njde", "jde", "de"])
def test_shared_weights_equal_the_same_weights_written_out(shape, couplings):
    args = problem(shape)
    full = args | {"weight": expanded(args["weight"])}
    torch.testing.assert_close(
        dynamic_routing(**args, couplings=couplings), dynamic_routing(**full, couplings=couplings)
    )


@pytest.mark.parametrize("couplings", COUPLINGS)
@pytest.mark.parametrize("shape", WEIGHTS)
def test_couplings_are_recovered_from_the_pose_sum(shape, couplings):
    args = problem(shape)
    *_, last = dynamic_routing_steps(**args, couplings=couplings)
    poses, weight, prior = args["poses"], args["weight"], args["prior"]
    recovered = recover_couplings(
        poses, weight, dynamic_routing(**args, couplings=couplings).pose_sum, prior=prior, couplings=couplings
    )
    torch.testing.assert_close(recovered, last.couplings)


@pytest.mark.parametrize("couplings", FIXED)
def test_fixed_couplings_are_recovered_whatever_the_poses_were(couplings):
    args = problem()
    recovered = recover_couplings(
        args["poses"], args["weight"], torch.ones(2, N_OUT, D_OUT), prior=args["prior"], couplings=couplings
    )
    torch.testing.assert_close(recovered, next(dynamic_routing_steps(**args, couplings=couplings)).couplings)


@pytest.mark.parametrize("n_iters", [1, 2, 4])
@pytest.mark.parametrize("couplings", ["softmax", "leaky", "max-min"])
def test_the_op_is_the_last_step_and_the_sum_of_the_others(couplings, n_iters):
    args = problem()
    *earlier, last = (step.poses for step in dynamic_routing_steps(**args, n_iters=n_iters, couplings=couplings))
    routed = dynamic_routing(**args, n_iters=n_iters, couplings=couplings)
    torch.testing.assert_close(routed.poses, last)
    torch.testing.assert_close(routed.pose_sum, sum(earlier, torch.zeros_like(last)))


@pytest.mark.parametrize("couplings", FIXED)
def test_couplings_that_ignore_agreement_need_one_pass_only(couplings):
    args = problem()
    once, often = (dynamic_routing(**args, n_iters=n, couplings=couplings, backend="reference") for n in (1, 7))
    assert torch.equal(once.poses, often.poses)
    assert (often.pose_sum == 0).all()
    steps = list(dynamic_routing_steps(**args, n_iters=3, couplings=couplings))
    assert len(steps) == 3
    assert all(torch.equal(step.poses, once.poses) for step in steps)


def test_uniform_ignores_the_prior_and_random_is_the_prior():
    args = problem()
    torch.testing.assert_close(
        next(dynamic_routing_steps(**args, couplings="uniform")).couplings,
        torch.full((2, N_IN, N_OUT), 1 / N_OUT).double(),
    )
    torch.testing.assert_close(
        next(dynamic_routing_steps(**args, couplings="random")).couplings,
        args["prior"].softmax(-1).expand(2, N_IN, N_OUT),
    )


@pytest.mark.parametrize("couplings", COUPLINGS)
@pytest.mark.parametrize("shape", WEIGHTS)
def test_gradient_is_the_slope(shape, couplings):
    args = {name: x.requires_grad_() for name, x in problem(shape, batch=(1,)).items()}
    op = lambda *inputs: dynamic_routing(**dict(zip(args, inputs, strict=True)), couplings=couplings)  # noqa: E731
    assert gradcheck(op, tuple(args.values()))


@pytest.mark.parametrize("couplings", ["softmax", "leaky", "max-min"])
@pytest.mark.parametrize("shape", ["ijde", "njde", "jde"])
def test_gradient_is_the_slope_without_bias_and_prior(shape, couplings):
    args = problem(shape, batch=())
    assert gradcheck(
        lambda p, w: dynamic_routing(p, w, couplings=couplings),
        (args["poses"].requires_grad_(), args["weight"].requires_grad_()),
    )


@pytest.mark.parametrize("couplings", COUPLINGS)
def test_detach_gives_the_gradient_of_the_last_pass_only(couplings):
    """Without a bias and a learnt prior the last pass's couplings are constants."""
    args = {name: x.requires_grad_(name in ("poses", "weight")) for name, x in problem().items()} | {"bias": None}
    inputs = args["poses"], args["weight"]
    detached = dynamic_routing(**args, couplings=couplings, detach=True)
    *_, last = dynamic_routing_steps(**args, couplings=couplings)
    votes = torch.einsum("bid,ijde->bije", *inputs)
    by_hand = squash(torch.einsum("bij,bije->bje", last.couplings.detach(), votes))
    torch.testing.assert_close(detached.poses, by_hand)
    weighted = [(x * torch.linspace(-1, 1, x.numel()).view_as(x)).sum() for x in (detached.poses, by_hand)]
    torch.testing.assert_close(*(torch.autograd.grad(x, inputs) for x in weighted))
    assert not detached.pose_sum.requires_grad


def test_detach_still_teaches_bias_and_prior_through_every_pass():
    """Only the votes are cut off: against the three passes written out."""
    args = {name: x.requires_grad_() for name, x in problem().items()}
    votes = torch.einsum("bid,ijde->bije", args["poses"], args["weight"])
    logits = args["prior"].expand(2, N_IN, N_OUT)
    for t in range(3):
        passed = votes if t == 2 else votes.detach()
        parents = squash((logits.softmax(-1)[..., None] * passed).sum(1) + args["bias"])
        logits = logits + (passed * parents[:, None]).sum(-1)
    detached = dynamic_routing(**args, detach=True).poses
    torch.testing.assert_close(detached, parents)
    weighted = [(x * torch.linspace(-1, 1, x.numel()).view_as(x)).sum() for x in (detached, parents)]
    torch.testing.assert_close(*(torch.autograd.grad(x, tuple(args.values())) for x in weighted))


def test_detach_changes_the_gradient_but_not_the_result():
    args = problem()
    weight = args["weight"].requires_grad_()
    whole, cut = (dynamic_routing(**args, detach=detach, backend="reference").poses for detach in (False, True))
    assert torch.equal(whole, cut)
    assert not torch.allclose(*(torch.autograd.grad(x.sum(), weight)[0] for x in (whole, cut)))


@pytest.mark.parametrize("couplings", ["softmax", "leaky", "max-min", "random"])
def test_a_learnt_prior_gets_a_gradient(couplings):
    args = problem()
    prior = args["prior"].requires_grad_()
    dynamic_routing(**args, couplings=couplings).poses.square().sum().backward()
    assert prior.grad.abs().min() > 0


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.03)]
)
@pytest.mark.parametrize("shape", WEIGHTS)
def test_dtype_is_kept_and_close_to_float64(shape, dtype, tolerance):
    args = problem(shape, dtype=dtype)
    routed, exact = dynamic_routing(**args), dynamic_routing(**{name: x.double() for name, x in args.items()})
    assert routed.poses.dtype == routed.pose_sum.dtype == dtype
    torch.testing.assert_close(routed.poses.double(), exact.poses, rtol=0, atol=tolerance)


def test_bfloat16_is_shared_out_in_float32():
    step = next(dynamic_routing_steps(**problem(dtype=torch.bfloat16)))
    assert step.couplings.dtype == step.logits.dtype == torch.float32
    assert step.poses.dtype == torch.bfloat16


def test_autocast_keeps_float32_at_both_ends():
    args = {name: x.requires_grad_() for name, x in problem(dtype=torch.float32).items()}
    with torch.autocast("cpu", torch.bfloat16):
        routed = dynamic_routing(**args)
    plain = dynamic_routing(**args)
    assert routed.poses.dtype == torch.float32
    torch.testing.assert_close(routed.poses, plain.poses, rtol=0, atol=0.03)
    assert not torch.equal(routed.poses, plain.poses)  # the votes did go through bfloat16
    for gradient, x in zip(torch.autograd.grad(routed.poses.sum(), tuple(args.values())), args.values(), strict=True):
        assert gradient.dtype == x.dtype
        assert gradient.isfinite().all()


def test_compiles_whole_for_every_rule_and_weight(fresh_dynamo):
    cases = [(shape, couplings) for shape, couplings in zip([*WEIGHTS, "ijde"], COUPLINGS, strict=True)]

    def routed(weights, poses, bias, prior):
        return sum(
            dynamic_routing(poses, w, bias, 2, prior=prior, couplings=c).poses
            for w, (_, c) in zip(weights, cases, strict=True)
        )

    weights = [problem(shape)["weight"].requires_grad_() for shape, _ in cases]
    args = problem()
    rest = tuple(args[name].requires_grad_() for name in ("poses", "bias", "prior"))
    results = [op(weights, *rest) for op in (torch.compile(routed, fullgraph=True, backend="aot_eager"), routed)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(x.square().sum(), (*weights, *rest)) for x in results))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"poses": torch.ones(2, 1, D_IN)},
            r"the weight \[6, 3, 2, 4\] is for 6 capsules or types, got 1 capsules; share it",
        ),
        ({"poses": torch.ones(2, N_IN, 5)}, r"the weight \[6, 3, 2, 4\] takes poses of 2 dimensions, got 5"),
        ({"poses": torch.ones(D_IN)}, r"expects poses \[\*b i d\] and a weight .* got \[2\] and \[6, 3, 2, 4\]"),
        ({"weight": torch.ones(D_IN)}, r"expects poses \[\*b i d\] and a weight .* got \[2, 6, 2\] and \[2\]"),
        ({"weight": torch.ones(4, N_OUT, D_IN, D_OUT)}, r"is for 4 capsules or types, got 6 capsules"),
        ({"bias": torch.ones(1, D_OUT)}, r"bias must be \[3, 4\] for this weight, got \[1, 4\]"),
        ({"bias": torch.ones(D_OUT)}, r"bias must be \[3, 4\] for this weight, got \[4\]"),
        ({"prior": torch.ones(1, N_OUT)}, r"prior logits must be \[6, 3\], got \[1, 3\]"),
        (
            {"prior": None, "couplings": "random"},
            r"random couplings are the softmax of prior logits; give prior=torch.randn",
        ),
        (
            {"weight": torch.ones(D_IN, D_OUT), "bias": None, "prior": None},
            r"does not say how many outputs there are; give a bias \[j e\]",
        ),
        ({"n_iters": 0}, "needs at least one iteration, got n_iters=0"),
        ({"couplings": "hard"}, "couplings must be one of softmax, leaky, max-min, uniform, random; got 'hard'"),
    ],
    ids=lambda x: "+".join(x) if isinstance(x, dict) else "",
)
def test_what_would_broadcast_in_silence_is_refused(change, message):
    args = problem(dtype=torch.float32) | change
    with pytest.raises(ValueError, match=message):
        dynamic_routing(**args)
    with pytest.raises(ValueError, match=message):
        next(dynamic_routing_steps(**args))


def test_the_inputs_are_left_alone():
    args = problem()
    copies = {name: x.clone() for name, x in args.items()}
    dynamic_routing(**args)
    assert all(torch.equal(args[name], copies[name]) for name in args)
