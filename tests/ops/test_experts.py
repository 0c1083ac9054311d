"""Products of expert capsules: the energy model against enumeration, its update against autograd, routing and sweeps by
hand.
"""

from itertools import product

import numpy
import pytest
import torch

from torchcaps.ops import experts, squash, unsquash
from torchcaps.ops.experts import Phase, Rule

N_IN, N_OUT, D_IN, D_OUT = 3, 2, 2, 4
each_plain = pytest.mark.parametrize("n_plain", [0, 2])


def double(rng, *shape, scale=1.0):
    return scale * torch.randn(*shape, generator=rng, dtype=torch.float64)


@pytest.fixture
def world(rng):
    """A finite world of seven visible states, weights, and couplings, constants that differ from state to state."""
    states = squash(double(rng, 7, N_IN, D_IN, scale=2.0))
    weight = double(rng, N_IN, N_OUT, D_IN, D_OUT, scale=2.0)
    couplings = double(rng, 7, N_IN, N_OUT).softmax(1)
    return states, weight, couplings


def patterns():
    return torch.tensor(list(product([0.0, 1.0], repeat=N_OUT)), dtype=torch.float64)  # [4 j]


# the energy model


@each_plain
def test_the_marginal_is_the_sum_over_all_on_off_patterns(world, n_plain):
    states, weight, couplings = world
    sums = experts.mix_up(states, weight, couplings)
    whole = torch.logsumexp(-experts.energy(sums.unsqueeze(1), patterns(), n_plain), dim=1)
    torch.testing.assert_close(experts.log_marginal(sums, n_plain), whole)


@pytest.mark.parametrize("n_plain", [1, 2])
def test_plain_numbers_are_gaussians_that_were_summed_out(world, n_plain):
    """Hidden numbers from N(0, 1), which a capsule that is on couples to its own: the mean of exp(r · plain) by
    quadrature.
    """
    states, weight, couplings = world
    sums = experts.mix_up(states, weight, couplings)
    nodes, shares = (torch.from_numpy(part) for part in numpy.polynomial.hermite_e.hermegauss(60))
    mean = ((nodes * sums[..., D_OUT - n_plain :].unsqueeze(-1)).exp() * shares).sum(-1) / shares.sum()  # [states j p]
    strength = sums[..., : D_OUT - n_plain].square().sum(-1).log() + mean.log().sum(-1)
    torch.testing.assert_close(experts.log_strength(sums, n_plain), strength)


@each_plain
def test_on_probabilities_equal_enumeration(world, n_plain):
    """Eq. 12: the share of all patterns in which a capsule is on; they factorise (Eq. 11)."""
    states, weight, couplings = world
    sums = experts.mix_up(states, weight, couplings)
    chance = (-experts.energy(sums.unsqueeze(1), patterns(), n_plain)).softmax(1)  # [states patterns]
    on = experts.on_probability(sums, n_plain)
    torch.testing.assert_close(torch.einsum("sp,pj->sj", chance, patterns()), on)
    torch.testing.assert_close(chance[:, 3], on.prod(1))  # both on


def test_the_on_probability_is_the_length_of_the_squashed_capsule(world):
    states, weight, couplings = world
    sums = experts.mix_up(states, weight, couplings)
    torch.testing.assert_close(experts.on_probability(sums), squash(sums).norm(dim=-1))
    torch.testing.assert_close(experts.firing(sums), squash(sums))


def test_energy_by_hand():
    sums = torch.tensor([[3.0, 4.0], [0.0, 2.0]], dtype=torch.float64)
    on = torch.tensor([1.0, 1.0], dtype=torch.float64)
    assert experts.energy(sums, on).item() == pytest.approx(-torch.log(torch.tensor(100.0)).item())
    assert experts.energy(sums, torch.tensor([0.0, 1.0])).item() == pytest.approx(-torch.log(torch.tensor(4.0)).item())
    assert experts.energy(torch.zeros(2, 2), torch.zeros(2)).item() == 0  # off, and nothing there: no 0 · log 0


def test_a_faint_dream_is_as_faint_as_it_is():
    """The chain of weights from N(0, 0.01) begins at 1e-27; a floor would show it awake."""
    sums = torch.tensor([[3e-14, 4e-14]])
    assert experts.on_probability(sums).item() == pytest.approx(25e-28, rel=1e-3)
    assert (
        experts.on_probability(torch.zeros(1, 2)).item() < 1e-37
        and experts.log_marginal(torch.zeros(1, 2)).item() < 1e-37
    )


@each_plain
def test_the_update_is_the_gradient_of_the_log_likelihood(world, n_plain):
    """Eq. 18, both terms, with the exact Z of the finite world and the couplings held fixed."""
    states, weight, couplings = world
    weight = weight.clone().requires_grad_()
    scores = experts.log_marginal(experts.mix_up(states, weight, couplings), n_plain)
    data = [0, 0, 2, 5]
    (scores - scores.logsumexp(0))[data].mean().backward()

    sums, chance = experts.mix_up(states, weight, couplings).detach(), scores.detach().softmax(0)
    positive = experts.statistics(Phase(states[data], sums[data], couplings[data]), n_plain)
    each = [
        experts.statistics(Phase(states[s : s + 1], sums[s : s + 1], couplings[s : s + 1]), n_plain) for s in range(7)
    ]
    negative = torch.einsum("s,sijde->ijde", chance, torch.stack(each))
    torch.testing.assert_close(positive - negative, weight.grad)
    assert not torch.allclose(positive, weight.grad, rtol=0.1)  # the second term is not small here


def test_the_update_of_one_sample_by_hand():
    """One input, one output, one number each: z = c w x, and 2 c z x / (1 + z²)."""
    poses, weight, couplings = (torch.tensor([[value]], dtype=torch.float64) for value in (0.5, 3.0, 1.0))
    data = Phase(poses, experts.mix_up(poses, weight[..., None, None], couplings), couplings)
    assert data.sums.item() == 1.5
    assert experts.statistics(data).item() == pytest.approx(2 * 1.5 * 0.5 / (1 + 1.5**2))


@each_plain
def test_sparsity_is_the_gradient_of_the_squared_excess(world, n_plain):
    states, weight, couplings = world
    weight = weight.clone().requires_grad_()
    sums = experts.mix_up(states, weight, couplings)
    (experts.on_probability(sums, n_plain).mean(0) - 0.1).square().sum().div(2).backward()
    found = experts.sparsity(Phase(states, sums.detach(), couplings), 0.1, n_plain)
    torch.testing.assert_close(found, -weight.grad)


def test_squash_and_unsquash_are_inverse(rng):
    vectors = double(rng, 50, 8)
    torch.testing.assert_close(unsquash(squash(vectors)), vectors)
    short = squash(vectors)
    torch.testing.assert_close(squash(unsquash(short)), short)


# routing by cosine agreement


def route_slowly(poses, weight, n_iters, over):
    """One sample, with loops."""
    n_in, n_out = weight.shape[:2]
    votes = {(i, j): poses[i] @ weight[i, j] for i in range(n_in) for j in range(n_out)}
    logits = torch.zeros(n_in, n_out, dtype=poses.dtype)
    for _ in range(n_iters):
        couplings = logits.softmax(0 if over == "inputs" else 1)
        sums = torch.stack([sum(couplings[i, j] * votes[i, j] for i in range(n_in)) for j in range(n_out)])
        for i, j in votes:
            logits[i, j] += torch.cosine_similarity(votes[i, j], sums[j], dim=0)
    return sums, couplings


@pytest.mark.parametrize("over", ["inputs", "outputs"])
@pytest.mark.parametrize("n_iters", [1, 3])
def test_routing_equals_loops(rng, over, n_iters):
    poses, weight = double(rng, 4, 5, 3), double(rng, 5, 6, 3, 2)
    found = experts.agreement_routing(poses, weight, Rule(n_iters=n_iters, over=over))
    for sample in range(4):
        sums, couplings = route_slowly(poses[sample], weight, n_iters, over)
        torch.testing.assert_close(found.sums[sample], sums)
        torch.testing.assert_close(found.couplings[sample], couplings)
    torch.testing.assert_close(experts.mix_up(poses, weight, found.couplings), found.sums)


@pytest.mark.parametrize(("over", "dim"), [("inputs", 1), ("outputs", 2)])
def test_couplings_sum_to_one_over_what_was_asked(rng, over, dim):
    couplings = experts.agreement_routing(double(rng, 4, 5, 3), double(rng, 5, 6, 3, 2), Rule(over=over)).couplings
    torch.testing.assert_close(couplings.sum(dim), torch.ones_like(couplings.sum(dim)))
    assert not torch.allclose(couplings.sum(3 - dim), torch.ones_like(couplings.sum(3 - dim)), rtol=0.01)


def test_agreement_wins_and_silence_has_no_say():
    """Two inputs vote alike, one against them, one says nothing: the two gain, the silent one keeps logit 0."""
    poses = torch.tensor([[1.0], [1.0], [-1.0], [0.0]], dtype=torch.float64)
    steps = list(experts.agreement_steps(poses, torch.ones(4, 1, 1, 1, dtype=torch.float64)))
    assert torch.allclose(
        steps[-1].logits.flatten(), torch.tensor([2.0, 2.0, -2.0, 0.0], dtype=torch.float64), atol=1e-5
    )
    assert steps[-1].sums > steps[0].sums > 0


def test_silent_capsules_get_no_share_if_lengths_begin(rng):
    """One capsule of five fires and gets everything; with even logits it gets a little more than a fifth."""
    poses, weight = torch.zeros(5, 3, dtype=torch.float64), double(rng, 5, 6, 3, 2)
    poses[2] = double(rng, 3)
    alone = experts.agreement_routing(poses, weight, Rule(start="lengths"))
    torch.testing.assert_close(alone.sums, torch.einsum("d,jde->je", poses[2], weight[2]), rtol=1e-4, atol=1e-6)
    even = experts.agreement_routing(poses, weight, Rule(n_iters=1))
    torch.testing.assert_close(even.sums, alone.sums / 5, rtol=1e-4, atol=1e-6)


def test_unknown_rules_are_refused(rng):
    for rule in (Rule(over="everything"), Rule(start="anyhow"), Rule(n_iters=0)):
        with pytest.raises(ValueError, match="got"):
            experts.agreement_routing(double(rng, 1, 2, 2), double(rng, 2, 2, 2, 2), rule)


# sweeps


def test_down_is_the_transpose_of_up(rng):
    """<up(x), y> = <x, down(y)> for any couplings."""
    weight, couplings = double(rng, N_IN, N_OUT, D_IN, D_OUT), double(rng, 4, N_IN, N_OUT).softmax(1)
    below, above = double(rng, 4, N_IN, D_IN), double(rng, 4, N_OUT, D_OUT)
    up, down = experts.mix_up(below, weight, couplings), experts.mix_down(above, weight, couplings)
    torch.testing.assert_close((up * above).sum((1, 2)), (below * down).sum((1, 2)))


def test_a_sweep_is_algorithm_1(rng):
    poses, weight = squash(double(rng, 4, 5, 3)), double(rng, 5, 6, 3, 2, scale=3.0)
    data = experts.agreement_routing(poses, weight)
    model = experts.sweep(data, weight)
    back = squash(torch.einsum("bij,ijde,bje->bid", data.couplings, weight, squash(data.sums)))
    torch.testing.assert_close(model.poses, back)
    torch.testing.assert_close(model.sums, torch.einsum("bij,ijde,bid->bje", data.couplings, weight, back))
    assert model.couplings is data.couplings


def test_a_longer_chain_finds_its_couplings_anew(rng):
    poses, weight = squash(double(rng, 4, 5, 3)), double(rng, 5, 6, 3, 2, scale=3.0)
    data = experts.agreement_routing(poses, weight)
    once = experts.chain(data, weight, [None])
    torch.testing.assert_close(once.poses, experts.sweep(data, weight).poses)
    twice = experts.chain(data, weight, [None, None])
    torch.testing.assert_close(twice.poses, experts.sweep(experts.agreement_routing(once.poses, weight), weight).poses)


def test_drawn_capsules_are_on_as_often_as_eq_12_says(world, rng):
    states, weight, couplings = world
    sums = experts.mix_up(states, weight, couplings)
    on = experts.sample_on(sums.expand(20_000, -1, -1, -1), torch.rand(20_000, 7, N_OUT, generator=rng))
    torch.testing.assert_close(on.double().mean(0), experts.on_probability(sums), atol=0.015, rtol=0)
    lengths = experts.firing(sums, on[0].double()).norm(dim=-1)
    torch.testing.assert_close(lengths, on[0].double())


@each_plain
def test_plain_numbers_are_sent_as_they_are_and_only_by_capsules_that_are_on(rng, n_plain):
    sums = double(rng, 5, N_OUT, D_OUT)
    fired = experts.firing(sums, torch.tensor([1.0, 0.0], dtype=torch.float64).expand(5, 2), n_plain)
    assert not fired[:, 1].any()
    torch.testing.assert_close(fired[:, 0, : D_OUT - n_plain].norm(dim=-1), torch.ones(5, dtype=torch.float64))
    if n_plain:
        torch.testing.assert_close(fired[:, 0, -n_plain:], sums[:, 0, -n_plain:])


def test_plain_numbers_come_into_the_unit_ball_and_can_be_had_back(rng):
    fired = double(rng, 5, N_OUT, D_OUT, scale=9.0)
    held = experts.in_ball(fired, 2)
    inside = held[..., -2:].norm(dim=-1, keepdim=True)
    assert (inside < 1).all() and torch.equal(held[..., :-2], fired[..., :-2])
    torch.testing.assert_close(held[..., -2:] / (1 - inside.square()).sqrt(), fired[..., -2:])
    assert experts.in_ball(fired) is fired


def toy(rng):
    """Samples around two prototypes and their opposites: the mean, all that a shuffled update could learn, is
    nothing.
    """
    prototypes = double(rng, 2, 6, 3, scale=2.0)
    return squash(torch.cat([prototypes, -prototypes]).repeat(8, 1, 1) + double(rng, 32, 6, 3, scale=0.2))


def train_toy(poses, shuffle, rng, sign=1.0):
    """Reconstruction error before and after sixty updates of CD-1."""
    weight = double(rng, 6, 4, 3, 4, scale=3.0)

    def error():
        return (
            (experts.sweep(experts.agreement_routing(poses, weight), weight).poses - poses)
            .square()
            .sum((1, 2))
            .mean()
            .item()
        )

    before = error()
    for _ in range(60):
        data = experts.agreement_routing(poses, weight)
        model = experts.sweep(data, weight)
        if shuffle:  # the same numbers, each state with another's capsules
            other = torch.randperm(len(poses), generator=rng)
            data, model = data._replace(sums=data.sums[other]), model._replace(sums=model.sums[other])
        weight = weight + sign * 10 * experts.contrast(data, model)
    return before, error()


def test_the_true_update_lowers_the_reconstruction_error_where_a_shuffled_one_does_not(rng):
    poses = toy(rng)
    before, after = train_toy(poses, False, torch.Generator().manual_seed(1))
    same, shuffled = train_toy(poses, True, torch.Generator().manual_seed(1))
    _, wrong_sign = train_toy(poses, False, torch.Generator().manual_seed(1), sign=-1.0)
    assert before == same
    assert after < 0.5 * before, (before, after)
    assert shuffled > 0.9 * before and wrong_sign > before, (before, shuffled, wrong_sign)


@pytest.mark.slow
def test_it_compiles_whole(rng, fresh_dynamo):
    """One program for all of it: two passes, plain numbers, on/off drawn."""

    def update(poses, weight, uniform):
        data = experts.agreement_routing(poses, weight, Rule(n_iters=2, start="lengths"))
        return experts.contrast(data, experts.sweep(data, weight, uniform, 2), 2)

    poses, weight, uniform = (
        squash(double(rng, 4, 5, 3)).float(),
        double(rng, 5, 6, 3, 4).float(),
        torch.rand(4, 6, generator=rng),
    )
    compiled = torch.compile(update, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(poses, weight, uniform), update(poses, weight, uniform))


def dropped_share(n_iters: int) -> float:
    """How long the part of the gradient through the couplings is, as a multiple of the part that Eq. 18 keeps."""
    rng = torch.Generator().manual_seed(0)
    poses = squash(torch.randn(16, 64, 8, generator=rng, dtype=torch.float64))
    weight = torch.randn(64, 20, 8, 16, generator=rng, dtype=torch.float64).requires_grad_()
    phase = experts.agreement_routing(poses, weight, Rule(n_iters=n_iters))
    (whole,) = torch.autograd.grad(experts.log_marginal(phase.sums).mean(), weight)
    kept = experts.statistics(phase).detach()
    return ((whole - kept).norm() / kept.norm()).item()


def test_constant_couplings_drop_as_much_of_the_gradient_as_they_keep():
    """With one iteration couplings are constants. With the paper's three, four fifths of what is kept are dropped."""
    assert dropped_share(1) < 1e-12
    assert dropped_share(3) == pytest.approx(0.79, abs=0.01)  # the number on the paper's page
    assert dropped_share(5) > 1.5
