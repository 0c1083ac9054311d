"""Test digits are transformed by exactly the factors they claim."""

import pytest
import torch

from torchcaps.analysis.known_digits import FACTORS, RANGES, draw_factors, known_digits, thickened
from torchcaps.data import Labelled
from torchcaps.data.sets.affine import BRIGHT, matrices
from torchcaps.data.sets.generated import generate

FRAME = (28, 28)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def square(row: int, column: int, side: int = 3) -> Labelled:
    """Ink from this place on, a class of its own."""
    image = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    image[..., row : row + side, column : column + side] = 255
    return Labelled(image, torch.zeros(1, dtype=torch.long))


def centres_of_mass(images: torch.Tensor) -> torch.Tensor:
    """(row, column) about each image's centre. [n 2]"""
    ink = images[:, 0].double()
    rows, columns = (torch.arange(size) - (size - 1) / 2 for size in ink.shape[1:])
    mass = ink.sum((1, 2))
    return torch.stack([(ink.sum(2) * rows).sum(1) / mass, (ink.sum(1) * columns).sum(1) / mass], dim=1)


def test_factors_are_independent_and_fill_their_ranges(rng):
    factors = draw_factors(20_000, rng)
    for column, (low, high) in zip(factors.T, RANGES.values(), strict=True):
        assert low <= column.min() < low + 0.01 * (high - low) and high - 0.01 * (high - low) < column.max() <= high
    off_diagonal = torch.corrcoef(factors.T) - torch.eye(len(FACTORS))
    assert off_diagonal.abs().max() < 0.03
    assert factors[:, 0].unique().tolist() == [-2, -1, 0, 1, 2]


def test_a_picture_moves_as_its_factors_say():
    """A square off the centre: its middle goes where the affine map takes it, then down and right."""
    known = known_digits(square(9, 18), FRAME, seeded(), copies=200)
    down_right, (rotation, scale, shear, _) = known.factors[:, :2], known.factors[:, 2:].unbind(1)
    maps = matrices(torch.stack([rotation, shear, scale, scale, rotation, rotation], dim=1))
    expected = maps @ torch.tensor([10 - 13.5, 19 - 13.5]).double() + down_right
    torch.testing.assert_close(centres_of_mass(known.images), expected, atol=0.15, rtol=0)
    assert len(known.images) == 200


@pytest.mark.parametrize("frame", [(28, 28), (21, 32), (40, 40), (47, 60)])
def test_the_frame_is_the_models_own(frame):
    known = known_digits(square(13, 13, side=2), frame, seeded(), copies=20)
    assert known.images.shape == (20, 1, *frame)
    of_odd_sides = torch.tensor(frame) % 2 / 2  # which have no middle between two pixels
    torch.testing.assert_close(centres_of_mass(known.images), known.factors[:, :2] - of_odd_sides, atol=0.05, rtol=0)


def test_no_ink_leaves_the_frame():
    """Digits that are kept have all their ink; those that some shift would cut are left out."""
    digits = Labelled(*generate(300, 28, seeded(5)))
    tight, roomy = (known_digits(digits, frame, seeded(), copies=2) for frame in (FRAME, (60, 60)))
    kept = torch.isin(roomy.factors[:, 2], tight.factors[:, 2])
    assert len(roomy.images) == 600 and 300 < len(tight.images) < 600
    n_ink = [(images > BRIGHT).sum((1, 2, 3)) for images in (tight.images, roomy.images[kept])]
    assert torch.equal(*n_ink)
    middle = slice(30 - 14 + 2, 30 + 14 - 2)  # whence no shift by 2 takes ink out of 28
    inside = torch.ones(600, dtype=torch.bool)
    for axis in (0, 1):
        along = (roomy.images > BRIGHT).any(3 - axis)[:, 0]  # [n 60]: the rows, then the columns, with ink
        first, last = along.byte().argmax(1), 59 - along.flip(1).byte().argmax(1)
        moved = roomy.factors[:, axis]
        inside &= (first - moved >= middle.start) & (last - moved < middle.stop)
    assert torch.equal(kept, inside)


def test_fewer_copies_are_the_first_part_of_more():
    digits = Labelled(*generate(500, 28, seeded(3)))
    few, many = (known_digits(digits, FRAME, seeded(), copies=copies, chunk=77 * copies) for copies in (1, 3))
    n = len(few.labels)
    assert all(torch.equal(one, other[:n]) for one, other in zip(few, many, strict=True))
    assert torch.equal(many.labels, digits.labels[many.sources])


@pytest.mark.parametrize("width", [-2.0, -1.0, -0.5, 0.0, 0.25, 1.0, 2.0])
def test_a_stroke_gains_so_many_pixels_of_ink(width):
    bars = torch.zeros(2, 1, 41, 41, dtype=torch.uint8)
    bars[0, :, :, 18:23] = 255
    bars[1, 0] = 255 * ((torch.arange(41)[:, None] - torch.arange(41)).abs() <= 3).byte()
    made = thickened(bars, torch.full((2,), width))
    upright, diagonal = ((made[n, 0, 20].double().sum() - bars[n, 0, 20].double().sum()) / 255 for n in (0, 1))
    assert upright.item() == pytest.approx(width, abs=0.01)
    assert (diagonal / 2**0.5).item() == pytest.approx(width, rel=0.1, abs=0.01), "a row crosses it at 45 degrees"


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="at most 28x28"):
        known_digits(Labelled(*generate(2, 48, seeded())), FRAME, seeded(), copies=1)
    with pytest.raises(ValueError, match="fit into 16x16; give digits with more empty space"):
        known_digits(Labelled(*generate(20, 28, seeded(3))), (16, 16), seeded(), copies=1)
