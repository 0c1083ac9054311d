"""The order of record files: every variant once, near its neighbours, and as a buffer that is written as a loop gives it."""

import pytest
import torch

from torchcaps.data import Labelled
from torchcaps.data.augment import Crop, Erase, Shift
from torchcaps.data.batches import Batches, Records
from torchcaps.data.batches.records import buffered_order
from torchcaps.train.recipe import Stage

CPU = torch.device("cpu")


def by_a_loop(n: int, window: int, seed: int) -> list[int]:
    rng = torch.Generator().manual_seed(seed)
    slots = torch.randint(window, (n - window,), generator=rng).tolist()
    buffer, left = list(range(window)), []
    for time, slot in enumerate(slots):
        left.append(buffer[slot])
        buffer[slot] = window + time
    return left + [buffer[slot] for slot in torch.randperm(window, generator=rng).tolist()]


@pytest.mark.parametrize(("n", "window"), [(200, 7), (50, 50), (31, 1), (9, 4)])
def test_records_leave_the_buffer_as_in_a_loop(n, window):
    found = buffered_order(n, window, torch.Generator().manual_seed(3)).tolist()
    assert found == by_a_loop(n, window, 3) and sorted(found) == list(range(n))


@pytest.mark.parametrize("window", [0, -3])
def test_a_window_without_records_is_refused(window):
    with pytest.raises(ValueError, match=f"a window of at least 1; got {window}; the authors' is 5,000"):
        Records(window)


def test_a_window_larger_than_the_file_shuffles_all_of_it(rng):
    assert sorted(buffered_order(10, 5000, rng).tolist()) == list(range(10))


def batches(n: int = 12, window: int = 20) -> Batches:
    images = torch.zeros(n, 1, 8, 8, dtype=torch.uint8)
    images[:, 0, 4, 4] = torch.arange(1, n + 1)
    return Batches(Labelled(images, torch.arange(n)), 10, (Shift(1),), CPU, records=Records(window))


def test_an_epoch_shows_every_shift_of_every_image_once(rng):
    made = batches()
    made.new_epoch(rng)
    assert made.n_steps == 12 * 9 // 10
    order, moves = (part.flatten(0, 1) for part in made.plan)
    records = {(image, *move) for image, move in zip(order.tolist(), moves.tolist(), strict=True)}
    assert len(records) == made.n_steps * 10  # none twice
    batch = made.at(torch.tensor(0))
    place = batch.images[0, 0].argmax().item()
    assert divmod(place, 8) == tuple(4 + move for move in made.plan[1][0, 0].tolist())


def test_a_batch_comes_from_few_neighbouring_images(rng):
    made = batches(n=100, window=18)
    made.new_epoch(rng)
    early = made.plan[0][0].unique()
    assert early.max() <= 3  # 28 records have gone in: four images of nine shifts
    assert (made.plan[0].double().mean(1).diff() > -5).all()  # it moves on through the file


def test_what_cannot_be_counted_or_combined_is_refused():
    with pytest.raises(ValueError, match=r"which must be the first; got Crop\(size=8, border=0\)"):
        Records().n_variants((Crop(8),))
    data = Labelled(torch.zeros(30, 1, 8, 8, dtype=torch.uint8), torch.arange(30) % 3)
    with pytest.raises(ValueError, match="either balanced or records"):
        Batches(data, 10, (Shift(1),), CPU, balanced=True, records=Records())
    with pytest.raises(ValueError, match="give a stage with records its steps"):
        Stage(records=Records())
    with pytest.raises(TypeError, match="Erase has no variants that can be counted"):
        Erase().variant(torch.arange(2))


def test_variants_of_a_shift_are_all_its_moves():
    moves = Shift(2).variant(torch.arange(25)).tolist()
    assert Shift(2).n_variants == 25 and moves == [[y, x] for y in range(-2, 3) for x in range(-2, 3)]


def test_erased_is_one_square_within_the_image_and_nothing_else(rng):
    images = torch.full((200, 2, 9, 7), 200, dtype=torch.uint8)
    drawn = Erase(4).draw(200, rng)
    gone = Erase(4).apply(images, drawn) == 0
    assert torch.equal(gone[:, 0], gone[:, 1]) and (gone[:, 0].sum((1, 2)) == 16).all()
    rows, columns = gone[:, 0].any(2), gone[:, 0].any(1)
    assert (rows.sum(1) == 4).all() and (columns.sum(1) == 4).all()
    assert torch.equal(rows.byte().argmax(1), drawn[:, 0] % 6) and torch.equal(
        columns.byte().argmax(1), drawn[:, 1] % 4
    )
    assert rows.byte().argmax(1).unique().tolist() == list(range(6))  # every place
    assert torch.equal(Erase(4).fixed(images), images)
    with pytest.raises(ValueError, match=r"Erase\(size=8\) does not fit into images of 9x7"):
        Erase(8).shape(1, 9, 7)
