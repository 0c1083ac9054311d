"""Epochs of hard images: unseen ones first, then those with the largest last loss, and a few of the others."""

import pytest
import torch

from torchcaps.data import Labelled, load
from torchcaps.data.augment import Mixup, Shift
from torchcaps.data.batches import Batches, Hard, Records, batches_for

CPU = torch.device("cpu")
LOSSES = torch.tensor([0.0, 0.3, 0.0, 0.2, 0.5, 0.1, 0.4, 0.0])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int = 20) -> Labelled:
    return Labelled(torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1), torch.arange(n))


def shown(batches: Batches) -> list[int]:
    return torch.cat([batches.at(torch.tensor(step)).labels for step in range(batches.n_steps)]).tolist()


def test_the_largest_losses_are_chosen_and_shuffled():
    orders = [Hard(share=0.5, fresh=0.0).draw(LOSSES, 4, seeded(seed)).tolist() for seed in range(20)]
    assert {tuple(sorted(order)) for order in orders} == {(1, 3, 4, 6)}
    assert len({tuple(order) for order in orders}) > 10


def test_images_never_shown_come_first():
    unseen = LOSSES.clone()
    unseen[[0, 2]] = torch.inf
    assert sorted(Hard(share=0.4, fresh=0.0).draw(unseen, 3, seeded()).tolist()) == [0, 2, 4]


def test_a_part_is_drawn_from_all_others():
    orders = [Hard(share=0.5, fresh=0.25).draw(LOSSES, 4, seeded(seed)).tolist() for seed in range(50)]
    assert all(len(set(order)) == 4 and {1, 4, 6} < set(order) for order in orders)
    assert {(set(order) - {1, 4, 6}).pop() for order in orders} == {0, 2, 3, 5, 7}
    drawn = [Hard(share=0.5, fresh=1.0).draw(LOSSES, 4, seeded(seed)).tolist() for seed in range(50)]
    assert {image for order in drawn for image in order} == set(range(8))  # the losses do not matter


def test_ties_are_broken_at_random_and_reproducibly():
    hard = Hard(share=0.75, fresh=0.0)
    orders = [hard.draw(LOSSES, 6, seeded(seed)).tolist() for seed in range(30)]
    assert {(set(order) - {1, 3, 4, 5, 6}).pop() for order in orders} == {0, 2, 7}
    assert orders == [hard.draw(LOSSES, 6, seeded(seed)).tolist() for seed in range(30)]


def test_whatever_the_losses_are_as_many_random_numbers_are_drawn():
    """So the augmentations of a resumed epoch are drawn again, too."""
    states = []
    for losses in (LOSSES, torch.full((8,), torch.inf)):
        rng = seeded()
        Hard(share=0.5).draw(losses, 4, rng)
        states.append(rng.get_state())
    assert torch.equal(*states)


def test_every_image_is_shown_before_one_is_repeated():
    batches, seen = Batches(images(), 5, (), CPU, hard=Hard(share=0.5, fresh=0.0)), []
    assert batches.n_steps == 2
    for _ in range(2):
        batches.look()
        batches.new_epoch(seeded())
        for step in range(2):
            batches.note(torch.tensor(step), torch.zeros(5))
        seen += shown(batches)
    assert sorted(seen) == list(range(20))


def test_losses_are_noted_at_their_images_and_choose_the_next_epoch_only():
    batches = Batches(images(), 5, (), CPU, hard=Hard(share=0.5, fresh=0.0))
    batches.new_epoch(seeded())
    for step in range(2):
        labels = batches.at(torch.tensor(step)).labels
        batches.note(torch.tensor(step), labels.double() / 10)
    first = shown(batches)
    assert all(batches.losses[image].item() == pytest.approx(image / 10) for image in first)
    assert batches.losses.isinf().sum() == 10 and batches.known.isinf().all()
    batches.new_epoch(seeded())
    assert shown(batches) == first  # nobody has looked
    batches.look()
    batches.new_epoch(seeded())
    assert sorted(shown(batches)) == sorted(set(range(20)) - set(first))


def test_without_hard_images_nothing_is_drawn_otherwise():
    one, other = Batches(images(), 5, (Shift(1),), CPU), Batches(images(), 5, (Shift(1),), CPU, hard=None)
    for batches in (one, other):
        batches.look()
        batches.new_epoch(seeded())
    assert torch.equal(one.plan[0].flatten(), torch.randperm(20, generator=seeded()))
    assert all(torch.equal(*pair) for pair in zip(one.plan, other.plan, strict=True))


@pytest.mark.parametrize(("share", "fresh"), [(0.0, 0.1), (1.5, 0.1), (0.5, -0.1), (0.5, 1.1), (float("nan"), 0.1)])
def test_shares_that_are_none_are_refused(share, fresh):
    with pytest.raises(ValueError, match=f"got share={share} and fresh={fresh}; try share=0.5"):
        Hard(share=share, fresh=fresh)


def test_what_does_not_go_together_is_refused():
    hard = Hard(share=0.5)
    with pytest.raises(ValueError, match=r"hard images are chosen by the loss of each, and Mixup\(.*\) mixes several"):
        Batches(images(), 5, (Mixup(),), CPU, hard=hard)
    with pytest.raises(ValueError, match="either balanced or records or hard; got balanced=True"):
        Batches(images(), 5, (), CPU, balanced=True, hard=hard)
    with pytest.raises(ValueError, match="either balanced or records or hard; got balanced=False, records=Records"):
        Batches(images(), 5, (Shift(1),), CPU, records=Records(), hard=hard)
    with pytest.raises(ValueError, match=r"a batch of 12 was asked for and Hard\(.*\) shows 10 of 20 training images"):
        Batches(images(), 12, (), CPU, hard=hard)
    with pytest.raises(ValueError, match=r"hard images are chosen by the losses of all, and 2 processes know 2 parts"):
        Batches(images(), 10, (), CPU, hard=hard).divide(0, 2)
    for data in ("generated-pairs", "generated-sentences"):
        with pytest.raises(ValueError, match=r"give a stage of pairs or sentences .* and hard=None"):
            batches_for(load(data, "train"), 4, (), CPU, hard=hard)
