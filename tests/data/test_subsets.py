"""Subsets: what is held out, views of held-out digits, and which digits portions share."""

import pytest
import torch
from torch.nn.functional import pad

from torchcaps.data import Labelled, fingerprint, hold_out, load, subsets
from torchcaps.data.subsets import N_WARPED, PORTIONS, picked, pool_of, portion, shown

N = subsets.N_DIGITS


def digits(name: str) -> torch.Tensor:
    return PORTIONS[name].pick() % N


def test_as_printed_the_same_digits_are_on_both_sides_and_no_image_is():
    fit, asked = (PORTIONS[f"affnist-like/{name}"].pick() for name in ("0-60000", "60000-70000"))
    assert (len(fit), len(asked)) == (60_000, 10_000)
    assert set((fit % N).tolist()) == set((asked % N).tolist()) == set(range(N))
    assert not set(fit.tolist()) & set(asked.tolist())


def test_digit_disjoint_means_that_no_digit_is_on_both_sides():
    fit, asked = digits("affnist-like/fit-digits"), digits("affnist-like/other-digits")
    assert (len(fit), len(asked)) == (60_000, 10_000)
    assert not set(fit.tolist()) & set(asked.tolist())
    assert len(set(fit.tolist()) | set(asked.tolist())) == N
    late = (asked > N // 2).double().mean()  # MNIST's halves differ: both must be there
    assert 0.45 < late < 0.55
    # a prefix is a fair sample: the first 20,000 have all 7,500 digits
    assert len(set(fit[:20_000].tolist())) == 7_500


def test_all_of_them_fit_into_their_pool():
    for name in PORTIONS:
        assert pool_of(name) == "affnist-like/first-80000"
        assert picked(name, 80_000).max() < N * subsets.N_TRANSFORMS


def test_a_portion_is_those_images_of_its_pool_and_a_pool_is_its_own(monkeypatch):
    whole = Labelled(torch.arange(80_000).view(-1, 1, 1, 1), torch.arange(80_000) % 7)
    monkeypatch.setattr("torchcaps.data.subsets.affnist_like.read_like", lambda split, root, n: whole)
    part = portion("affnist-like/60000-70000")
    assert part.images.flatten().tolist() == list(range(60_000, 70_000))
    assert torch.equal(part.labels, torch.arange(60_000, 70_000) % 7)
    assert torch.equal(portion("generated-16/test").images, load("generated-16", "test").images)
    assert pool_of("generated-16/test") == "generated-16/test"


def test_digits_in_the_middle_have_the_same_border_all_around(monkeypatch, rng):
    """Test digits, as training digits have it; those of `mnist-40/test` are placed."""
    digits = Labelled(torch.randint(1, 256, (3, 1, 28, 28), generator=rng).to(torch.uint8), torch.arange(3))
    monkeypatch.setattr(
        "torchcaps.data.subsets.load", lambda name, split, root, seed: {("mnist", "test"): digits}[name, split]
    )
    images, labels = portion("mnist-40/middle")
    assert images.shape == (3, 1, 40, 40) and torch.equal(labels, digits.labels)
    assert torch.equal(images[..., 6:34, 6:34], digits.images) and (images == 0).sum() == 3 * (40**2 - 28**2)


def test_an_unknown_portion_is_refused_with_what_there_is():
    with pytest.raises(ValueError, match=r"no portion 'affnist-like/all'; there are affnist-like/0-60000"):
        portion("affnist-like/all")


def labelled(n: int = 100) -> Labelled:
    return Labelled(torch.arange(n * 4).remainder(251).to(torch.uint8).reshape(n, 1, 2, 2), torch.arange(n) % 10)


def test_hold_out_parts_the_data_and_keeps_labels_with_images():
    data = labelled()
    rest, held = hold_out(data, 20, seed=3)
    assert len(rest.labels) == 80 and held.labels.bincount().tolist() == [2] * 10
    both = [
        (tuple(image.flatten().tolist()), int(label))
        for part in (rest, held)
        for image, label in zip(*part, strict=True)
    ]
    assert sorted(both) == sorted(
        (tuple(image.flatten().tolist()), int(label)) for image, label in zip(*data, strict=True)
    )
    assert fingerprint(hold_out(data, 20, seed=3)[1]) == fingerprint(held) != fingerprint(hold_out(data, 20, seed=4)[1])


@pytest.mark.parametrize("n", [0, 100, -1, 101])
def test_hold_out_leaves_something_on_both_sides(n):
    with pytest.raises(ValueError, match=f"100 images, got {n}"):
        hold_out(labelled(), n, seed=0)


@pytest.fixture
def held():
    digits = torch.zeros(6, 1, 28, 28, dtype=torch.uint8)
    digits[:, :, 8:20, 10:18] = torch.randint(
        90, 256, (6, 1, 12, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )
    return Labelled(pad(digits, [6] * 4), torch.arange(6))


def test_placed_digits_are_whole_and_elsewhere(held):
    placed = shown(held, "placed")
    assert placed.images.shape == held.images.shape and torch.equal(placed.labels, held.labels)
    assert torch.equal(placed.images.sum((1, 2, 3)), held.images.sum((1, 2, 3)))
    assert not torch.equal(placed.images, held.images)
    assert torch.equal(placed.images, shown(held, "placed").images)


def test_warped_digits_keep_their_labels(held):
    warped = shown(held, "warped")
    assert warped.images.shape == (6 * N_WARPED, 1, 40, 40)
    assert torch.equal(warped.labels, held.labels.repeat(N_WARPED))
    assert torch.equal(warped.images, shown(held, "warped").images)


@pytest.mark.gpu
def test_a_gpu_warps_digits_to_the_same_bytes(held, monkeypatch):
    on_gpu = shown(held, "warped").images
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert torch.equal(shown(held, "warped").images, on_gpu)


def test_what_is_not_a_framed_digit_is_refused(held):
    with pytest.raises(ValueError, match="for the training digits of mnist-40"):
        shown(Labelled(held.images[..., :28, :28], held.labels), "placed")
    with pytest.raises(ValueError, match="for the training digits of mnist-40"):
        shown(Labelled(held.images + 1, held.labels), "warped")
    with pytest.raises(ValueError, match="no view 'turned'"):
        shown(held, "turned")


def test_cropped_test_images_are_the_test_images_moved_by_up_to_a_sixth_with_edges_repeated(monkeypatch):
    rows, columns = torch.meshgrid(torch.arange(12), torch.arange(12), indexing="ij")
    images = torch.stack([rows, columns]).to(torch.uint8).expand(40, 2, 12, 12)
    monkeypatch.setattr("torchcaps.data.subsets.load", lambda *asked: Labelled(images, torch.arange(40) % 5))
    made, labels = portion("smallnorb/cropped")
    assert made.shape == images.shape and torch.equal(labels, torch.arange(40) % 5)
    moves = made[:, :, 6, 6].long() - 6  # by how many rows and columns each was moved
    assert moves.min() == -2 and moves.max() == 2 and not torch.equal(moves[:, 0], moves[:, 1])
    for image, (down, across) in zip(made.long(), moves.tolist(), strict=True):
        assert torch.equal(image[0], (rows + down).clamp(0, 11)) and torch.equal(
            image[1], (columns + across).clamp(0, 11)
        )
    assert torch.equal(portion("smallnorb/cropped").images, made)
