from math import exp, inf, sqrt

import pytest
import torch
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchcaps.ops import LazyRouted, LazyWeights, lazy_routing, lazy_routing_steps

N_IN, N_OUT, D_IN, D_OUT = 6, 3, 4, 5
BETAS = {"per pair": (N_IN, N_OUT), "per output": (N_OUT,), "per sample": (2, N_IN, N_OUT)}


def problem(batch=(2,), dtype=torch.float64, seed=0, i=N_IN, j=N_OUT, d=D_IN, e=D_OUT, match="ij", betas=None):
    """All inputs of a small routing, all different."""
    rng = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype)  # noqa: E731
    pairs = (i, j) if match == "ij" else (j,)
    weights = LazyWeights(
        vote_mix=draw(j, d), vote=draw(d, e), vote_bias=draw(j, e),
        guess=draw(e, d), guess_mix=draw(j, d), guess_bias=draw(j, d),
        match=draw(*pairs), match_bias=draw(*pairs),
    )  # fmt: skip
    betas = (i, j) if betas is None else betas
    return {
        "scores": draw(*batch, i),
        "poses": draw(*batch, i, d),
        "weights": weights,
        "beta_use": draw(*betas),
        "beta_ignore": draw(*betas),
    }


def gradients(args, **options):
    """Gradients of a random direction in all outputs, by name."""
    flat = {key: x for key, x in args.items() if key != "weights"} | args["weights"]._asdict()
    leaves = {key: x.detach().clone().requires_grad_() for key, x in flat.items()}
    weights = LazyWeights(**{key: leaves[key] for key in LazyWeights._fields})
    routed = lazy_routing(**{key: leaves[key] for key in args if key != "weights"}, weights=weights, **options)
    rng = torch.Generator().manual_seed(7)
    # one number per output and per credit of it, whatever the number of inputs
    total = (
        routed.poses * torch.randn(routed.poses.shape, generator=rng).to(routed.poses)
    ).sum() + routed.credit.square().sum()
    return dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))


def test_two_passes_by_hand():
    """Two inputs of one number, two outputs of one number, both inputs there for certain: every step is school
    arithmetic.
    """
    x, n = [1.0, -2.0], 2
    vote = [[x[i] / sqrt(n) * mix * 0.5 + bias for mix, bias in ((2.0, 0.1), (-1.0, 0.2))] for i in (0, 1)]
    use, ignore = [[1.0, 0.5], [0.25, 2.0]], [[0.1, 0.2], [0.3, 0.4]]

    def maximize(probabilities):
        credit = [
            [use[i][j] * probabilities[i][j] - ignore[i][j] * (1 - probabilities[i][j]) for j in (0, 1)] for i in (0, 1)
        ]
        return credit, [sum(credit[i][j] * vote[i][j] for i in (0, 1)) for j in (0, 1)]

    first_credit, first = maximize([[0.5, 0.5], [0.5, 0.5]])
    guessed = [first[0] * 3.0 * 0.5 + 0.7, first[1] * 3.0 * -0.25 - 0.3]
    similar = [
        [1 / (1 + exp(-(x[i] * guessed[j] * 0.9 + 0.05))) for j in (0, 1)] for i in (0, 1)
    ]  # softmax of a log: the share
    probabilities = [[similar[i][j] / sum(similar[i]) for j in (0, 1)] for i in (0, 1)]
    credit, second = maximize(probabilities)

    column = lambda *numbers: torch.tensor(numbers).double().unsqueeze(-1)  # noqa: E731
    weights = LazyWeights(
        vote_mix=column(2.0, -1.0), vote=column(0.5), vote_bias=column(0.1, 0.2),
        guess=column(3.0), guess_mix=column(0.5, -0.25), guess_bias=column(0.7, -0.3),
        match=torch.full((2,), 0.9).double(), match_bias=torch.full((2,), 0.05).double(),
    )  # fmt: skip
    args = (
        torch.full((2,), inf).double(),
        column(*x),
        weights,
        torch.tensor(use).double(),
        torch.tensor(ignore).double(),
    )
    steps = list(lazy_routing_steps(*args))
    torch.testing.assert_close(steps[0].credit.tolist(), first_credit)
    torch.testing.assert_close(steps[0].poses.flatten().tolist(), first)
    torch.testing.assert_close(steps[1].probabilities.tolist(), probabilities)
    torch.testing.assert_close(steps[1].credit.tolist(), credit)
    torch.testing.assert_close(lazy_routing(*args), LazyRouted(column(*second), steps[1].credit))


def with_votes(scores, poses, weights, beta_use, beta_ignore, n_iters=2, normalise=True):
    """The same algorithm with the votes [b i j e] in the open."""

    def normal(x):
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()

    votes = (
        torch.einsum("bid,jd,de->bije", poses / poses.shape[1] ** 0.5, weights.vote_mix, weights.vote)
        + weights.vote_bias
    )
    gates, similar = scores.sigmoid().unsqueeze(-1), torch.zeros(*scores.shape, votes.shape[2], dtype=poses.dtype)
    for _ in range(n_iters):
        used = gates * similar.softmax(-1)
        credit = beta_use * used - beta_ignore * (gates - used)
        outputs = torch.einsum("bij,bije->bje", credit, votes)
        guessed = torch.einsum("bje,ed,jd->bjd", normal(outputs), weights.guess, weights.guess_mix) + weights.guess_bias
        similar = (torch.einsum("bid,bjd->bij", poses, guessed) * weights.match + weights.match_bias).sigmoid().log()
    return LazyRouted(normal(outputs) if normalise else outputs, credit)


@pytest.mark.parametrize("n_iters", [1, 2, 4])
@pytest.mark.parametrize("normalise", [True, False])
def test_votes_that_are_never_formed_count_as_if_they_were(n_iters, normalise):
    for betas in BETAS.values():
        args = problem(betas=betas)
        found, wanted = (op(**args, n_iters=n_iters, normalise=normalise) for op in (lazy_routing, with_votes))
        torch.testing.assert_close(found, wanted)


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation makes, forward or backward."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor))])
        return result


def largest_tensor(op, i, j, d):
    args = problem(batch=(1,), i=i, j=j, d=d, e=d, dtype=torch.float32)
    args["poses"].requires_grad_()
    with Largest() as seen:
        op(**args).poses.sum().backward()
    return seen.numel


def test_memory_does_not_grow_with_inputs_times_outputs_times_numbers():
    for i, j, d in ((40, 20, 10), (400, 20, 10), (40, 200, 10), (40, 20, 100)):
        assert largest_tensor(lazy_routing, i, j, d) <= max(i * j, i * d, j * d, d * d)
    assert largest_tensor(with_votes, 40, 20, 10) >= 40 * 20 * 10  # the check can fail


@pytest.mark.parametrize("n_iters", [1, 2, 3])
def test_gradient_is_the_slope(n_iters):
    args = problem(batch=(1,))
    weights = args.pop("weights")
    leaves = [x.requires_grad_() for x in (*args.values(), *weights)]

    def routed(scores, poses, beta_use, beta_ignore, *rest):
        return lazy_routing(scores, poses, LazyWeights(*rest), beta_use, beta_ignore, n_iters)

    assert gradcheck(routed, leaves, fast_mode=True)


def test_nothing_of_an_input_is_lost():
    args = problem()
    gates = args["scores"].sigmoid()[..., None]
    for step in lazy_routing_steps(**args, n_iters=3):
        torch.testing.assert_close(step.probabilities.sum(-1), torch.ones(2, N_IN).double())
        torch.testing.assert_close(step.used + step.ignored + (1 - gates), torch.ones(2, N_IN, N_OUT).double())
        torch.testing.assert_close(step.credit, args["beta_use"] * step.used - args["beta_ignore"] * step.ignored)


def test_the_op_is_the_last_step():
    *_, last = steps = list(lazy_routing_steps(**problem(), n_iters=3))
    routed = lazy_routing(**problem(), n_iters=3)
    assert len(steps) == 3
    assert torch.equal(routed.poses, last.poses) and torch.equal(routed.credit, last.credit)


def test_order_of_inputs_does_not_matter_where_nothing_is_looked_up_by_position(rng):
    args, order = problem(match="j", betas=(N_OUT,)), torch.randperm(N_IN, generator=rng)
    shuffled = lazy_routing(**args | {"poses": args["poses"][:, order], "scores": args["scores"][:, order]})
    routed = lazy_routing(**args)
    torch.testing.assert_close(shuffled.poses, routed.poses)
    torch.testing.assert_close(shuffled.credit, routed.credit[:, order])


@pytest.mark.parametrize("match", ["ij", "j"])
def test_padding_with_masked_inputs_changes_nothing(match):
    """Five inputs more, masked and full of NaN: values and gradients stay within 1e-12 of what they were, in
    float64.
    """
    betas = None if match == "ij" else (N_OUT,)
    longer = problem(i=N_IN + 5, match=match, betas=betas)
    longer["scores"][:, N_IN:] = -inf
    longer["poses"][:, N_IN:] = float("nan")
    by_input = ("match", "match_bias", "beta_use", "beta_ignore") if match == "ij" else ()

    def cut(name, x):
        return x[:, :N_IN] if name in ("scores", "poses") else x[:N_IN] if name in by_input else x

    weights = LazyWeights(**{key: cut(key, x) for key, x in longer["weights"]._asdict().items()})
    short = {key: cut(key, x) for key, x in longer.items() if key != "weights"} | {"weights": weights}
    padded, plain = lazy_routing(**longer), lazy_routing(**short)
    pairs = {"poses out": (padded.poses, plain.poses), "credit": (padded.credit[:, :N_IN], plain.credit)}
    assert (padded.credit[:, N_IN:] == 0).all()
    found, wanted = gradients(longer), gradients(short)
    assert (found["poses"][:, N_IN:] == 0).all() and (found["scores"][:, N_IN:] == 0).all()
    pairs |= {key: (cut(key, found[key]), wanted[key]) for key in wanted}
    for key, (one, other) in pairs.items():
        assert (one - other).abs().max() <= 1e-12 * other.abs().max(), key


def test_a_sample_that_is_all_mask_harms_nobody():
    args = problem()
    args["scores"][0], args["poses"][0] = -inf, float("nan")
    routed = lazy_routing(**args)
    assert (routed.poses[0] == 0).all() and (routed.credit[0] == 0).all()
    alone = args | {"scores": args["scores"][1:], "poses": args["poses"][1:]}
    torch.testing.assert_close(routed.poses[1:], lazy_routing(**alone).poses)
    assert all(x.isfinite().all() for x in gradients(args).values())


@pytest.mark.parametrize("batch", [(), (1,), (2, 3), (0,)])
def test_any_leading_batch_axes(batch):
    routed = lazy_routing(**problem(batch=batch))
    assert routed.poses.shape == (*batch, N_OUT, D_OUT) and routed.credit.shape == (*batch, N_IN, N_OUT)


@pytest.mark.parametrize(
    "sizes", [{"i": 1}, {"j": 1}, {"i": 1, "j": 1, "d": 1, "e": 1}, {"i": 7, "j": 13, "d": 1, "e": 2}], ids=str
)
def test_odd_sizes(sizes):
    args = problem(**sizes)
    assert all(x.isfinite().all() for x in (*lazy_routing(**args), *gradients(args).values()))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
def test_dtype_is_kept_and_close_to_float64(dtype, tolerance):
    args = problem(dtype=dtype)
    exact = {key: LazyWeights(*(w.double() for w in x)) if key == "weights" else x.double() for key, x in args.items()}
    routed, wanted = lazy_routing(**args), lazy_routing(**exact)
    assert routed.poses.dtype == dtype and routed.credit.dtype == torch.float32
    torch.testing.assert_close(routed.poses.double(), wanted.poses, rtol=tolerance, atol=tolerance)


def test_it_compiles_whole(fresh_dynamo):
    args = problem()
    torch.testing.assert_close(
        torch.compile(lazy_routing, fullgraph=True, backend="aot_eager")(**args), lazy_routing(**args)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_iters": 0}, "needs at least one iteration, got n_iters=0"),
        ({"scores": torch.ones(2, 1)}, r"expects poses \[\*b i d\] and scores \[\*b i\], got \[2, 6, 4\] and \[2, 1\]"),
        ({"vote_mix": torch.ones(3, 1)}, r"vote_mix must be \[3, 4\] for poses \[2, 6, 4\], got \[3, 1\]"),
        ({"vote": torch.ones(4)}, r"expects vote_mix \[j d\] and vote \[d e\], got \[3, 4\] and \[4\]"),
        ({"guess": torch.ones(4, 5)}, r"guess must be \[5, 4\] for poses \[2, 6, 4\], got \[4, 5\]"),
        (
            {"match": torch.ones(1, 3)},
            r"match must be \[3\] or \[6, 3\] for poses \[2, 6, 4\], got \[1, 3\]; weights with an axis",
        ),
        (
            {"beta_use": torch.ones(6, 1)},
            r"beta_use must be \[3\] or \[6, 3\] or \[2, 6, 3\] for poses \[2, 6, 4\], got \[6, 1\]",
        ),
    ],
    ids=lambda x: "+".join(x) if isinstance(x, dict) else "",
)
def test_what_would_broadcast_in_silence_is_refused(change, message):
    args = problem(dtype=torch.float32)
    weights = args["weights"]._replace(**{key: x for key, x in change.items() if key in LazyWeights._fields})
    args |= {"weights": weights} | {key: x for key, x in change.items() if key not in LazyWeights._fields}
    for op in (lazy_routing, lambda **args: next(lazy_routing_steps(**args))):
        with pytest.raises(ValueError, match=message):
            op(**args)
