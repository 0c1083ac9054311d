"""Held-out digits, shown otherwise."""

import pytest
import torch
from torch.nn.functional import pad

from torchcaps.data import Labelled
from torchcaps.data.views import N_WARPED, shown


@pytest.fixture
def held():
    digits = torch.zeros(6, 1, 28, 28, dtype=torch.uint8)
    digits[:, :, 8:20, 10:18] = torch.randint(90, 256, (6, 1, 12, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
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


def test_what_is_not_a_framed_digit_is_refused(held):
    with pytest.raises(ValueError, match="for the training digits of mnist-40"):
        shown(Labelled(held.images[..., :28, :28], held.labels), "placed")
    with pytest.raises(ValueError, match="for the training digits of mnist-40"):
        shown(Labelled(held.images + 1, held.labels), "warped")
    with pytest.raises(ValueError, match="no view 'turned'"):
        shown(held, "turned")
