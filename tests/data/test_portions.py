"""Portions: who is on both sides, and who must not be."""

import pytest
import torch

from torchcaps.data import Labelled, load, portions
from torchcaps.data.portions import PORTIONS, picked, pool_of, portion

N = portions.N_DIGITS


def digits(name: str) -> torch.Tensor:
    return PORTIONS[name].pick() % N


def test_as_printed_the_same_digits_are_on_both_sides_and_no_picture_is():
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
        assert picked(name, 80_000).max() < N * portions.N_TRANSFORMS


def test_a_portion_is_those_pictures_of_its_pool_and_a_pool_is_its_own(monkeypatch):
    whole = Labelled(torch.arange(80_000).view(-1, 1, 1, 1), torch.arange(80_000) % 7)
    monkeypatch.setattr("torchcaps.data.portions.affine.read_like", lambda split, root, n: whole)
    part = portion("affnist-like/60000-70000")
    assert part.images.flatten().tolist() == list(range(60_000, 70_000))
    assert torch.equal(part.labels, torch.arange(60_000, 70_000) % 7)
    assert torch.equal(portion("generated-16/test").images, load("generated-16", "test").images)
    assert pool_of("generated-16/test") == "generated-16/test"


def test_digits_in_the_middle_have_the_same_border_all_around(monkeypatch, rng):
    """Test digits, as training digits have it; those of `mnist-40/test` are placed."""
    digits = Labelled(torch.randint(1, 256, (3, 1, 28, 28), generator=rng).to(torch.uint8), torch.arange(3))
    monkeypatch.setattr("torchcaps.data.portions.load", lambda name, split, root, seed: {("mnist", "test"): digits}[name, split])
    images, labels = portion("mnist-40/middle")
    assert images.shape == (3, 1, 40, 40) and torch.equal(labels, digits.labels)
    assert torch.equal(images[..., 6:34, 6:34], digits.images) and (images == 0).sum() == 3 * (40**2 - 28**2)


def test_an_unknown_portion_is_refused_with_what_there_is():
    with pytest.raises(ValueError, match=r"no portion 'affnist-like/all'; there are affnist-like/0-60000"):
        portion("affnist-like/all")
