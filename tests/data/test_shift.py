import torch

from torchcaps.data.augment import Shift


def test_a_shift_moves_the_image_and_lets_zeros_in():
    image = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3)
    moved = Shift(2).apply(image, torch.tensor([[1, -2]]))  # one down, two left
    assert moved.tolist() == [[[[0, 0, 0], [3, 0, 0], [6, 0, 0]]]]


def test_shifts_are_uniform_over_all_places(rng):
    drawn = Shift(2).draw(25_000, rng)
    counts = torch.bincount((drawn[:, 0] + 2) * 5 + drawn[:, 1] + 2, minlength=25)
    assert counts.min() > 850
    assert counts.max() < 1150  # 1,000 each, five standard deviations
