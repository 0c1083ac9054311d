"""Pairs of digits: the overlay by hand, who is paired with whom, and batches that can be resumed."""

import os

import pytest
import torch

from torchcaps.data import Labelled, fingerprint, hold_out, info, load
from torchcaps.data.augment import Shift
from torchcaps.data.batches import Batches, PairBatches, batches_for, pairs_in_order
from torchcaps.data.sets.multimnist import read_multimnist
from torchcaps.data.sets.pairs import (
    Pairs,
    PairSource,
    draw_moves,
    draw_partners,
    fixed_pairs,
    overlap,
    overlay,
    paired_again,
)

REAL_FILES = os.environ.get("TORCHCAPS_DATA")
CPU = torch.device("cpu")


def source(n: int = 50, shift: int = 4) -> PairSource:
    """Digit k is one pixel of brightness k + 1, of class k mod 3 or, every seventh, 3."""
    labels = torch.where(torch.arange(n) % 7 == 0, 3, torch.arange(n) % 3)
    return PairSource((torch.arange(n) + 1).to(torch.uint8).view(n, 1, 1, 1), labels, shift)


def test_two_digits_are_moved_added_and_clipped():
    """2x2 digits on a frame of 10x10; a move of (0, 0) puts them at rows and columns 4 and 5."""
    digits = torch.tensor([[[[100, 200], [0, 50]], [[200, 10], [0, 60]]]], dtype=torch.uint8).view(1, 2, 1, 2, 2)
    both, alone = overlay(digits, torch.tensor([[[0, 0], [0, 0]]]), shift=4)
    assert both[0, 0, 4:6, 4:6].tolist() == [[255, 210], [0, 110]] and both.sum() == 255 + 210 + 110
    assert torch.equal(alone[0, :, :, 4:6, 4:6], digits[0])
    both, alone = overlay(digits, torch.tensor([[[-4, 4], [1, -1]]], dtype=torch.int8), shift=4)
    assert alone[0, 0, 0, 0:2, 8:10].tolist() == [[100, 200], [0, 50]]
    assert alone[0, 1, 0, 5:7, 3:5].tolist() == [[200, 10], [0, 60]]
    assert torch.equal(both[0], alone[0, 0] + alone[0, 1]) and alone.sum() == digits.sum(), "apart, nothing is clipped"


def test_beyond_the_margin_the_rim_is_lost_as_in_the_released_generator():
    digits = torch.full((1, 2, 1, 4, 4), 9, dtype=torch.uint8)
    both, alone = overlay(digits, torch.tensor([[[6, 0], [0, -6]]]), shift=6)
    assert alone.sum((2, 3, 4)).tolist() == [[9 * 8, 9 * 8]] and list(both.shape) == [1, 1, 12, 12]
    assert alone[0, 0, 0, 10:, 4:8].all() and alone[0, 1, 0, 4:8, :2].all()


def test_the_larger_bound_on_moves_changes_nothing():
    digits, moves = torch.arange(2 * 9, dtype=torch.uint8).view(1, 2, 1, 3, 3), torch.tensor([[[1, -2], [3, 0]]])
    assert torch.equal(overlay(digits, moves, 3)[0], overlay(digits, moves, 6)[0])


def test_partners_are_of_another_class_and_uniform_over_all_of_them(rng):
    labels = source().labels
    base = torch.full((40_000,), 5)  # of class 2
    partner = draw_partners(base, labels, rng)
    assert (labels[partner] != labels[5]).all()
    counts = partner.bincount(minlength=len(labels))[labels != labels[5]].double()
    expected = 40_000 / len(counts)
    chi_square = ((counts - expected).square() / expected).sum().item()
    assert chi_square < len(counts) + 5 * (2 * len(counts)) ** 0.5  # five standard deviations


def test_every_base_gets_a_partner_at_once(rng):
    labels = torch.randint(0, 10, (60_000,), generator=rng)
    partner = draw_partners(torch.arange(60_000), labels, rng)
    assert (labels != labels[partner]).all()
    assert partner.min() < 50 and partner.max() > 59_950


def test_digits_of_one_class_cannot_be_paired(rng):
    with pytest.raises(ValueError, match="all 5 are of class 2"):
        draw_partners(torch.arange(5), torch.full((5,), 2), rng)


def test_moves_are_uniform_and_independent(rng):
    moves = draw_moves(20_000, 4, rng).flatten(1)
    assert moves.unique().tolist() == list(range(-4, 5))
    for column in moves.T:
        counts = (column + 4).bincount()
        assert counts.min() > 2000 and counts.max() < 2450  # 2,222 each
    assert moves.double().T.corrcoef().fill_diagonal_(0).abs().max() < 0.04


def test_every_digit_is_the_base_equally_often_and_a_smaller_set_comes_first():
    pairs = fixed_pairs(source(), 10)
    assert pairs.picks[:, 0].bincount().tolist() == [10] * 50
    assert (pairs.labels[:, 0] != pairs.labels[:, 1]).all() and list(pairs.labels.shape) == [500, 2]
    fewer = fixed_pairs(source(), 3)
    assert torch.equal(pairs.picks[:150], fewer.picks) and torch.equal(pairs.moves[:150], fewer.moves)


def test_fixed_pairs_are_the_same_for_every_seed_and_another_for_another_shift():
    one = load("generated-pairs", "test", seed=0)
    assert torch.equal(one.picks[:, 0], load("generated-pairs", "test", seed=1).picks[:, 0])
    assert fingerprint(one) == fingerprint(load("generated-pairs", "test", seed=0))
    assert fingerprint(fixed_pairs(source(shift=4), 2)) != fingerprint(fixed_pairs(source(shift=6), 2))
    assert fingerprint(source(shift=4)) != fingerprint(source(shift=6))


def test_pairs_in_order_come_once_each_and_do_not_depend_on_the_batch():
    pairs = load("generated-pairs", "test")
    whole = next(pairs_in_order(pairs, len(pairs.picks), CPU))
    assert (
        list(whole.images.shape) == [512, 1, 24, 24] == [info("generated-pairs").n_test, *info("generated-pairs").shape]
    )
    assert torch.equal(whole.labels, pairs.labels) and whole.images.max() == 1
    parts = list(pairs_in_order(pairs, 100, CPU))
    assert len(parts) == 6
    for n, whole_part in enumerate(whole):
        assert torch.equal(torch.cat([part[n] for part in parts]), whole_part)


def epoch_of(batches: PairBatches) -> list:
    return [batches.at(torch.tensor(step)) for step in range(batches.n_steps)]


def test_an_epoch_has_every_digit_as_base_at_most_once_and_every_epoch_is_new(rng):
    batches = PairBatches(source(), 16, (), CPU)
    assert (batches.n_steps, batches.batch) == (3, 16)
    plans = []
    for _ in range(2):
        batches.new_epoch(rng)
        base, partner = batches.plan[0].flatten(0, 1).T.clone()
        assert len(base.unique()) == 48
        assert (source().labels[base] != source().labels[partner]).all()
        plans.append([part.clone() for part in batches.plan])
    assert not any(torch.equal(one, other) for one, other in zip(*plans, strict=True))


def test_a_batch_holds_the_sum_its_labels_and_its_sources_in_one_order(rng):
    batches = PairBatches(source(), 16, (), CPU)
    batches.new_epoch(rng)
    for batch in epoch_of(batches):
        assert list(batch.images.shape) == [16, 1, 9, 9] and list(batch.sources.shape) == [16, 2, 1, 9, 9]
        assert torch.allclose(batch.images, batch.sources.sum(1))  # too dark to be clipped
        digit = (batch.sources.amax((2, 3, 4)) * 255).round().long() - 1
        assert torch.equal(source().labels[digit], batch.labels)
        place = (batch.sources > 0).nonzero()[:, 3:] - 4
        assert len(place) == 32 and place.abs().max() <= 4


def test_the_plan_stays_at_one_address_and_repeats_from_the_generators_state(rng):
    """For CUDA graphs and for resuming."""
    batches = PairBatches(source(), 16, (), CPU)
    addresses = [part.data_ptr() for part in batches.plan]
    batches.new_epoch(rng)
    state = rng.get_state()
    batches.new_epoch(rng)
    second = [batch.images for batch in epoch_of(batches)]
    other, again = PairBatches(source(), 16, (), CPU), torch.Generator()
    again.set_state(state)
    other.new_epoch(again)
    assert all(torch.equal(one.images, two) for one, two in zip(epoch_of(other), second, strict=True))
    assert [part.data_ptr() for part in batches.plan] == addresses


def test_the_data_decides_its_batches():
    assert type(batches_for(source(), 16, (), CPU)) is PairBatches
    digits = Labelled(torch.zeros(20, 1, 2, 2, dtype=torch.uint8), torch.zeros(20, dtype=torch.long))
    assert type(batches_for(digits, 16, (Shift(1),), CPU)) is Batches
    with pytest.raises(ValueError, match="give no augmentation"):
        batches_for(source(), 16, (Shift(1),), CPU)
    with pytest.raises(ValueError, match="a batch of 64 was asked for"):
        batches_for(source(), 64, (), CPU)


def test_held_out_digits_are_in_no_training_pair():
    rest, held = hold_out(load("generated-pairs", "train"), 64, seed=0)
    assert isinstance(rest, PairSource) and isinstance(held, Pairs)
    assert len(rest.labels) == 448 and len(held.classes) == 64 and len(held.labels) == 640
    keys = {image.numpy().tobytes() for image in rest.images}
    assert not any(image.numpy().tobytes() in keys for image in held.digits)


def test_overlap_by_hand():
    """Two boxes of 4x5 ink, one moved 2 down and 1 right: 2x4 of 4x5 are common. A smaller box is covered by more."""
    digits = torch.zeros(2, 1, 28, 28, dtype=torch.uint8)
    digits[0, 0, 10, 10] = digits[0, 0, 13, 14] = 1
    digits[1, 0, 11:13, 11:13] = 1  # 2x2 inside the first
    moves = torch.tensor([[[0, 0], [2, 1]]], dtype=torch.int8)
    same = Pairs(digits, torch.tensor([0, 1]), torch.tensor([[0, 0]]), moves, 4)
    assert overlap(same) == pytest.approx((100 * 18 * 19 / 400, 100 * 8 / 20))
    inside = Pairs(digits, torch.tensor([0, 1]), torch.tensor([[0, 1]]), torch.zeros(1, 2, 2, dtype=torch.int8), 4)
    assert overlap(inside) == pytest.approx((100, (4 / 20 * 100 + 100) / 2))
    apart = Pairs(digits, torch.tensor([0, 1]), torch.tensor([[1, 1]]), moves, 4)
    assert overlap(apart).ink == 0


@pytest.mark.data
@pytest.mark.skipif(not REAL_FILES, reason="TORCHCAPS_DATA names no folder")
@pytest.mark.parametrize("shift, nominal, ink", [(4, 72.6, 63.7), (6, 61.6, 53.2)])
def test_multimnist_overlaps_less_than_the_paper_says(shift, nominal, ink):
    """E|difference of two shifts| = 80/27 for 4, so (1 - 80/27/20)² = 72.6 %; the paper says 80 %."""
    pairs = load(f"multimnist-{shift}", "test", root=REAL_FILES)
    assert overlap(pairs) == pytest.approx((nominal, ink), abs=0.3)
    assert len(pairs.labels) == info(f"multimnist-{shift}").n_test == 100_000
    assert pairs.picks[:, 0].bincount().tolist() == [10] * 10_000
    batch = next(pairs_in_order(pairs, 100, CPU))
    assert list(batch.images.shape[1:]) == list(info(f"multimnist-{shift}").shape) == [1, 36, 36]
    more = read_multimnist("test", REAL_FILES, shift, n_each=12)
    assert torch.equal(more.picks[:100_000], pairs.picks)


def test_more_pairs_begin_with_the_same_ones():
    pairs = load("generated-pairs", "test")
    more = paired_again(pairs, 3)
    assert len(more.picks) == 3 * len(pairs.digits) > len(pairs.picks)
    assert torch.equal(more.picks[: len(pairs.picks)], pairs.picks) and torch.equal(
        more.moves[: len(pairs.moves)], pairs.moves
    )
    with pytest.raises(ValueError, match="each digit at least once; got n_each=0"):
        paired_again(pairs, 0)
    with pytest.raises(ValueError, match=r"only fixed pairs .* got Labelled"):
        paired_again(load("generated", "test"), 2)


def test_pairs_of_scikit_learns_digits_are_of_the_part_they_belong_to():
    pytest.importorskip("sklearn")
    about, train, test = (
        info("digits-pairs"),
        load("digits-pairs", "train", seed=3),
        load("digits-pairs", "test", seed=3),
    )
    assert (about.n_train, about.n_test, about.n_labels) == (len(train.labels), len(test.picks), 2)
    assert torch.equal(test.digits, load("digits", "test", seed=3).images)
    assert (test.labels[:, 0] != test.labels[:, 1]).all()
    batch = next(pairs_in_order(test, 4, CPU))
    assert tuple(batch.images.shape[1:]) == about.shape
    torch.testing.assert_close(batch.images, batch.sources.sum(1).clamp(max=1))
