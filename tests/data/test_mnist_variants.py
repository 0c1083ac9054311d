"""Sets that a rule makes of MNIST."""

import pytest
import torch

from torchcaps.data import info, load
from torchcaps.data.sets import mnist_variants


@pytest.fixture(autouse=True)
def digits(monkeypatch):
    images = torch.randint(1, 256, (200, 1, 28, 28), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    monkeypatch.setattr(mnist_variants, "read_split", lambda *_: (images, torch.arange(200) % 10))
    return images


def test_a_class_is_a_digit_at_a_place(digits):
    data = load("mnist-places", "test")
    assert data.images.shape == (200, 1, 40, 40) and info("mnist-places").n_classes == 50
    for image, label, digit in zip(data.images, data.labels.tolist(), digits, strict=True):
        row, column = mnist_variants.PLACES[label % 5]
        assert torch.equal(image[:, row : row + 28, column : column + 28], digit)
        assert image.count_nonzero() == 28 * 28
    assert (data.labels // 5 == torch.arange(200) % 10).all() and len(set((data.labels % 5).tolist())) == 5
    assert info("mnist-places").class_names[7] == "1 bottom left"


def test_coloured_digits_stand_out_and_are_the_same_every_time():
    data, again = (load("mnist-colour-64-rgb", "test") for _ in range(2))
    assert data.images.shape == (200, 3, 64, 64) and torch.equal(data.images, again.images)
    spread = data.images.flatten(2).long().amax(-1) - data.images.flatten(2).long().amin(-1)
    assert (spread >= 0.9 * mnist_variants.CONTRAST).all()
