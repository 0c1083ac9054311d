"""Support, ranks, masks and boosts of sparse capsules (Rawlinson 2018), by hand."""

from math import exp

import pytest
import torch
from torch.overrides import TorchFunctionMode

from torchcaps.ops import (
    Winning,
    after_batch,
    boosted_ranks,
    count_wins,
    dynamic_routing,
    dynamic_routing_steps,
    rank_mask,
    recover_couplings,
    recover_support,
    routing_support,
)
from torchcaps.ops.sparse import moving_average, steered_boost, updated_boost, winning_frequency
from torchcaps.ops.votes import in_blocks


def some_winning(n: int = 3, **parts) -> Winning:
    return Winning(torch.zeros(n), torch.ones(n), torch.tensor(0))._replace(**parts)


# support


def test_support_is_the_largest_type_at_each_place_summed_over_the_places():
    """Two types at two places, type first: capsules (0, p0), (0, p1), (1, p0), (1, p1)."""
    couplings = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.5, 0.5]])
    torch.testing.assert_close(routing_support(couplings, 2), torch.tensor([0.9 + 0.5, 0.4 + 0.8]))


def test_support_read_place_first_would_be_another():
    """The same numbers with the axes mixed, as a reshape without names does it: the test above would notice."""
    couplings = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.5, 0.5]])
    mixed = couplings.view(2, 2, 2).amax(1).sum(0)  # (place, type)
    assert not torch.allclose(mixed, routing_support(couplings, 2))


def test_runs_are_neighbours_in_the_row_of_inputs():
    """Two types at three places, type first: the runs are (0, p0), (0, p1); (0, p2), (1, p0); (1, p1), (1, p2)."""
    couplings = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.5, 0.5], [0.3, 0.7], [0.4, 0.6]])
    torch.testing.assert_close(routing_support(couplings, 2, "runs"), torch.tensor([0.9 + 0.6 + 0.4, 0.8 + 0.5 + 0.7]))
    torch.testing.assert_close(routing_support(couplings, 2), torch.tensor([0.9 + 0.3 + 0.6, 0.5 + 0.8 + 0.6]))


def test_runs_are_what_reading_the_row_place_first_comes_to(rng):
    """The released code has inputs by type, row, column and reshapes them to row, column, type before it takes the
    largest.
    """
    couplings = torch.rand(2, 4 * 9, 5, generator=rng)
    torch.testing.assert_close(routing_support(couplings, 4, "runs"), couplings.view(2, 3, 3, 4, 5).amax(3).sum((1, 2)))


def test_other_groups_are_refused():
    with pytest.raises(ValueError, match="groups must be one of places, runs; got 'types'"):
        routing_support(torch.ones(6, 2), 2, "types")


def test_with_one_type_support_is_the_sum_and_with_one_place_the_maximum(rng):
    couplings = torch.rand(2, 3, 6, 4, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(routing_support(couplings, 1), couplings.sum(-2))
    torch.testing.assert_close(routing_support(couplings, 6), couplings.amax(-2))


def test_uniform_couplings_support_all_alike():
    assert (routing_support(torch.full((2, 32 * 36, 16), 1 / 16), 32) == 36 / 16).all()


@pytest.mark.parametrize("n_types", [0, 4, 7])
def test_types_that_do_not_fill_the_places_are_refused(n_types):
    with pytest.raises(ValueError, match=f"6 input capsules do not fill places of {n_types} types"):
        routing_support(torch.ones(6, 2), n_types)


# ranks


def test_the_most_support_has_rank_0():
    support = torch.tensor([[0.3, 0.9, 0.1, 0.5], [4.0, 3.0, 2.0, 1.0]])
    assert boosted_ranks(support, torch.ones(4)).tolist() == [[2, 0, 3, 1], [0, 1, 2, 3]]


def test_ranks_are_those_of_a_stable_sort(rng):
    support = torch.randint(0, 5, (7, 3, 9), generator=rng).double()  # many equals
    order = support.argsort(dim=-1, descending=True, stable=True)
    assert torch.equal(boosted_ranks(support, torch.ones(9)), order.argsort(-1))


def test_the_boost_decides_the_ranks():
    support = torch.tensor([1.0, 0.95, 0.5])
    assert boosted_ranks(support, torch.tensor([1.0, 1.1, 1.0])).tolist() == [1, 0, 2]
    assert boosted_ranks(support, torch.tensor([1.0, 1.0, 1.8])).tolist() == [0, 1, 2]


def test_without_any_support_the_order_of_the_row_decides():
    assert boosted_ranks(torch.zeros(2, 3), torch.tensor([1.0, 5.0, 9.0])).tolist() == [[0, 1, 2]] * 2


# mask


def test_six_of_sixteen_capsules_pass():
    mask = rank_mask(torch.arange(16), dtype=torch.float64)
    assert mask[:6].tolist() == pytest.approx([exp(-0.8 * rank) for rank in range(6)], rel=1e-12)
    assert [round(value, 2) for value in mask[:6].tolist()] == [1.0, 0.45, 0.2, 0.09, 0.04, 0.02]
    assert (mask[6:] == 0).all()


def test_the_mask_follows_the_ranks():
    mask = rank_mask(torch.tensor([[2, 0, 1], [0, 1, 2]]), sharpness=2.0)
    torch.testing.assert_close(mask, torch.tensor([[exp(-2), 1, exp(-1)], [1, exp(-1), exp(-2)]]))


def test_a_capsule_alone_is_kept_whole():
    ranks = boosted_ranks(torch.rand(4, 1), torch.ones(1))
    assert rank_mask(ranks).tolist() == [[1.0]] * 4
    assert winning_frequency(count_wins(ranks)).tolist() == [1.0]


def test_without_sharpness_all_are_kept():
    assert (rank_mask(torch.arange(16), sharpness=0.0) == 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_mask_has_the_dtype_it_is_asked_for(dtype):
    assert rank_mask(torch.arange(4), dtype=dtype).dtype == dtype


def test_the_mask_is_a_constant_factor_and_support_gets_no_gradient(rng):
    support = torch.rand(2, 4, generator=rng, dtype=torch.float64, requires_grad=True)
    boost = torch.ones(4, dtype=torch.float64, requires_grad=True)
    poses = torch.randn(2, 4, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    mask = rank_mask(boosted_ranks(support, boost), dtype=torch.float64)
    assert not mask.requires_grad
    (poses * mask.unsqueeze(-1)).sum().backward()
    assert support.grad is None and boost.grad is None
    torch.testing.assert_close(poses.grad, mask.unsqueeze(-1).expand_as(poses))


# statistics


def test_wins_over_the_batch_by_hand():
    """Four samples: capsule 1 is first in three of them, capsule 0 in one, capsule 2 in none."""
    ranks = torch.tensor([[1, 0, 2], [1, 0, 2], [0, 1, 2], [2, 0, 1]])
    assert count_wins(ranks).tolist() == count_wins(ranks.view(2, 2, 3)).tolist() == [1, 3, 0]
    assert winning_frequency(count_wins(ranks)).tolist() == [0.25, 0.75, 0.0]
    assert count_wins(ranks[0]).tolist() == [0, 1, 0]


def test_the_first_batch_is_copied_and_the_others_averaged():
    old, new = torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])
    assert moving_average(old, new, torch.tensor(0)).tolist() == [1.0, 0.0]
    assert moving_average(old, new, torch.tensor(7)).tolist() == pytest.approx([0.99 * 0.5 + 0.01, 0.99 * 0.5])


def test_the_rare_are_boosted_and_the_frequent_lose_their_boost_down_to_1():
    frequency = torch.tensor([0.03, 0.04, 0.07, 0.1, 0.11, 0.11])
    boost = torch.tensor([1.0, 1.2, 1.5, 1.3, 1.5, 1.05])
    wanted = [1.1, 1.2, 1.5, 1.3, 1.4, 1.0]
    assert updated_boost(boost, frequency).tolist() == pytest.approx(wanted)
    assert updated_boost(boost.double(), frequency.double()).dtype == torch.float64


def test_steered_boosts_follow_what_is_missing_and_the_least_is_1():
    """Two capsules, shares of 0.5: the winner of all by exp(-0.2), the other by exp(0.2); a fair one stays where it
    is.
    """
    boost, frequency = torch.tensor([3.0, 2.0], dtype=torch.float64), torch.tensor([1.0, 0.0])
    once = steered_boost(boost, frequency, 0.4)
    assert once.tolist() == pytest.approx([1.5 * exp(-0.4), 1.0])
    assert steered_boost(100 * boost, frequency, 0.4).tolist() == pytest.approx(once.tolist())
    assert steered_boost(boost, torch.tensor([0.5, 0.5]), 0.4).tolist() == pytest.approx([1.5, 1.0])
    four = steered_boost(torch.ones(4), torch.tensor([0.25, 0.75, 0.0, 0.0]), 2.0)
    assert four.tolist() == pytest.approx([exp(1), 1, exp(1.5), exp(1.5)])


def test_steered_boosts_move_with_every_batch_by_its_own_wins():
    before = some_winning(
        2, frequency=torch.tensor([0.0, 1.0]), n_batches=torch.tensor(9)
    )  # an average that says the contrary
    after = after_batch(before, torch.tensor([4, 0]), gain=1.0)
    assert after.boost.tolist() == pytest.approx([1.0, exp(1)])
    assert after.frequency.tolist() == pytest.approx([0.01, 0.99])
    assert int(after.n_batches) == 10


def test_steered_boosts_hold_where_steps_of_a_tenth_overshoot(rng):
    """Supports that differ by a hundredth from image to image, and by a fifth from capsule to capsule: the rule alone,
    no learning.
    """
    n, own = 8, torch.linspace(1.0, 1.2, 8)
    steered, stepped, shares = some_winning(n), some_winning(n), []
    for _ in range(1000):
        support = own * (1 + 0.01 * torch.randn(128, n, generator=rng))
        wins = [count_wins(boosted_ranks(support, each.boost)) for each in (steered, stepped)]
        steered, stepped = (
            after_batch(steered, wins[0], gain=0.02),
            after_batch(stepped, wins[1], frequencies=(0.08, 0.2)),
        )
        shares.append(torch.stack([winning_frequency(part) for part in wins]))
    least, most = torch.stack(shares[-20:]).mean(0).aminmax(dim=-1)
    assert least[0] > 0.08 and most[0] < 0.2
    assert least[1] < 0.02 and most[1] > 0.3


def test_boosts_move_with_every_nth_batch_only():
    winning = some_winning()
    boosts = []
    for _ in range(7):
        winning = after_batch(winning, torch.tensor([8, 0, 0]), every=3, frequencies=(0.1, 0.9))
        boosts.append(winning.boost.tolist()[1])
    assert boosts == pytest.approx([1.0, 1.0, 1.1, 1.1, 1.1, 1.2, 1.2])
    assert int(winning.n_batches) == 7


def test_the_boost_looks_at_the_average_and_not_at_the_batch():
    """The average of 0.5 falls to 0.99 · 0.5 and stays above, though the capsule did not win in this batch."""
    before = some_winning(2, frequency=torch.tensor([0.5, 0.5]), n_batches=torch.tensor(9))
    after = after_batch(before, torch.tensor([4, 0]), every=1, frequencies=(0.4, 0.6))
    assert after.frequency.tolist() == pytest.approx([0.505, 0.495])
    assert after.boost.tolist() == [1.0, 1.0]


def test_statistics_keep_their_dtype_and_what_was_before_is_untouched():
    before = some_winning(frequency=torch.zeros(3, dtype=torch.float64), boost=torch.ones(3, dtype=torch.float64))
    after = after_batch(before, torch.tensor([1, 2, 1]), every=1)
    assert after.frequency.dtype == after.boost.dtype == torch.float64
    assert before.n_batches == 0 and (before.boost == 1).all() and (before.frequency == 0).all()


# support without the votes


def of_routing(shape: str, rng: torch.Generator, batch: tuple[int, ...] = (2, 3), **rule):
    """Poses of 2 types at 3 places, the pose sum of routing them, and the couplings of its last iteration."""
    sizes = {"ijde": (6, 4, 3, 5), "njde": (2, 4, 3, 5), "jde": (4, 3, 5), "de": (3, 5)}
    poses, weight = (torch.randn(*size, generator=rng, dtype=torch.float64) for size in ((*batch, 6, 3), sizes[shape]))
    args = {"bias": torch.randn(4, 5, generator=rng, dtype=torch.float64), **rule}
    *_, last = dynamic_routing_steps(poses, weight, **args)
    return poses, weight, dynamic_routing(poses, weight, **args).pose_sum, last.couplings


@pytest.mark.parametrize("shape", ["ijde", "njde", "jde", "de"])
@pytest.mark.parametrize("block", [1, 64 << 20])  # bytes: one image at a time, or all
def test_support_is_that_of_the_last_couplings_whatever_the_blocks(shape, block, rng, monkeypatch):
    monkeypatch.setattr("torchcaps.ops.votes.BLOCK_BYTES", block)
    poses, weight, pose_sum, couplings = of_routing(shape, rng)
    torch.testing.assert_close(recover_couplings(poses, weight, pose_sum), couplings)
    torch.testing.assert_close(recover_support(poses, weight, pose_sum, 2), routing_support(couplings, 2))


def test_support_knows_a_prior_and_other_couplings(rng):
    prior = torch.randn(6, 4, generator=rng, dtype=torch.float64)
    poses, weight, pose_sum, couplings = of_routing("ijde", rng, prior=prior, couplings="leaky")
    support = recover_support(poses, weight, pose_sum, 2, prior=prior, couplings="leaky")
    torch.testing.assert_close(support, routing_support(couplings, 2))
    assert not torch.allclose(recover_support(poses, weight, pose_sum, 2, couplings="leaky"), support)


def test_no_votes_are_formed_and_a_block_is_what_it_says(monkeypatch, rng):
    """40x40: the votes of one image are 4,608 x 16 x 16 numbers; nothing of that size may appear, whatever the
    batch.
    """
    sizes = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.append(out.numel() if isinstance(out, torch.Tensor) else 0)
            return out

    poses, weight, pose_sum = (
        torch.empty(*size, device="meta") for size in ((128, 4608, 8), (4608, 16, 8, 16), (128, 16, 16))
    )
    with Watch():
        assert recover_support(poses, weight, pose_sum, 32).shape == (128, 16)
    largest = max(size for size in sizes if size != weight.numel())
    assert largest * 4 <= 64 << 20 < 128 * 4608 * 16 * 16 * 4


@pytest.mark.parametrize(("n", "wanted"), [(7, [7]), (8, [4, 4]), (10, [5, 5]), (15, [5, 5, 5]), (16, [6, 6, 4])])
def test_blocks_are_of_one_size(n, wanted, monkeypatch):
    """Room for seven images: [i j d] = 2 x 3 x 4 numbers of four bytes."""
    monkeypatch.setattr("torchcaps.ops.votes.BLOCK_BYTES", 7 * 2 * 3 * 4 * 4)
    blocks = in_blocks(torch.rand(n, 2, 4), torch.rand(n, 3, 5), torch.rand(2, 3, 4, 5))
    assert [len(poses) for poses, _ in blocks] == [len(parents) for _, parents in blocks] == wanted


def test_under_autocast_a_block_holds_twice_as_many_and_compiles(fresh_dynamo, monkeypatch, rng):
    monkeypatch.setattr("torchcaps.ops.votes.BLOCK_BYTES", 4 * 6 * 4 * 3 * 4)
    poses, weight, pose_sum = (torch.randn(*size, generator=rng) for size in ((8, 6, 3), (6, 4, 3, 5), (8, 4, 5)))
    plain = recover_support(poses, weight, pose_sum, 2)
    program = torch.compile(lambda *args: recover_support(*args, 2), fullgraph=True, backend="aot_eager")
    assert len(in_blocks(poses, pose_sum, weight)) == 2
    with torch.autocast("cpu", torch.bfloat16):
        assert len(in_blocks(poses, pose_sum, weight)) == 1
        torch.testing.assert_close(program(poses, weight, pose_sum), plain, rtol=0.05, atol=0.05)


def test_the_gradient_of_couplings_needs_no_votes_either(rng):
    poses, weight, pose_sum, _ = of_routing("ijde", rng, batch=(2,))
    inputs = [part.requires_grad_() for part in (poses, weight, pose_sum.detach())]
    assert torch.autograd.gradcheck(lambda *args: recover_couplings(*args), inputs)
