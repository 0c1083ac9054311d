"""Affine digits: the maps by hand, the rule of the offsets, and the fixed sets made of MNIST."""

import os
from math import cos, radians, sin

import pytest
import torch

from torchcaps.data import Labelled, fingerprint, hold_out, info, load
from torchcaps.data.augment import Shift
from torchcaps.data.batches import Batches
from torchcaps.data.sets import affine, affnist_like
from torchcaps.data.sets.affine import BRIGHT, FRAME, allowed_offsets, matrices, placed, transform, warped
from torchcaps.data.sets.generated import generate

REAL_FILES = os.environ.get("TORCHCAPS_DATA")
CPU = torch.device("cpu")


def factors(rotation=0.0, shear=0.0, vertical=1.0, horizontal=1.0, down=0.0, right=0.0) -> torch.Tensor:
    return torch.tensor([[rotation, shear, vertical, horizontal, down, right]], dtype=torch.float64)


def some_digits(n: int = 50, size: int = 28) -> torch.Tensor:
    return generate(n, size, torch.Generator().manual_seed(3))[0]


def dot(row: int, column: int) -> torch.Tensor:
    image = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    image[..., row, column] = 255
    return image


def centre_of_mass(image: torch.Tensor) -> list[float]:
    """(row, column) about the image's centre."""
    weight = image[0, 0].double()
    axis = torch.arange(len(weight)) - (len(weight) - 1) / 2
    return [((weight.sum(1 - k) * axis).sum() / weight.sum()).item() for k in (0, 1)]


def test_the_identity_only_adds_a_border():
    images = some_digits()
    same = transform(images, factors().expand(len(images), -1))
    assert torch.equal(same, torch.nn.functional.pad(images, [6] * 4))


def test_a_translation_moves_down_and_right_by_whole_pixels():
    moved = transform(dot(0, 27), factors(down=3, right=-5))
    assert moved.nonzero().tolist() == [[0, 0, 0 + 6 + 3, 27 + 6 - 5]] and moved.max() == 255
    assert not transform(dot(0, 0), factors(down=-7)).any(), "what moves out of the frame is gone"


def test_a_bar_turned_by_20_degrees_rises_on_its_right():
    """Counter-clockwise: the right end of a lying bar goes up by tan 20 of its length."""
    bar = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    bar[..., 13:15, 4:24] = 255
    turned = transform(bar, factors(rotation=20))[0, 0].double()
    rows = torch.arange(FRAME).double() - 19.5
    for offset in (-6.5, -0.5, 0.5, 6.5):
        column = turned[:, int(19.5 + offset)]
        assert (column * rows).sum() / column.sum() == pytest.approx(
            -offset * sin(radians(20)) / cos(radians(20)), abs=0.06
        )
    assert turned.sum().item() == pytest.approx(bar.double().sum().item(), rel=0.01), "turning keeps the amount of ink"


def test_a_shear_moves_what_lies_to_the_right_down_and_leaves_columns_alone():
    """[[1, s], [0, 1]] on (row, column): the row gains s times the column."""
    row, column = centre_of_mass(transform(dot(13, 23), factors(shear=0.2)))
    assert (row, column) == pytest.approx((-0.5 + 0.2 * 9.5, 9.5), abs=0.02)


def test_scales_are_vertical_first_and_about_the_centre():
    row, column = centre_of_mass(transform(dot(5, 20), factors(vertical=1.2, horizontal=0.8)))
    assert (row, column) == pytest.approx((1.2 * -8.5, 0.8 * 6.5), abs=0.2)


def test_first_the_rotation_then_the_shear_then_the_scale():
    """By hand for a place (0, 10) about the centre."""
    c, s = cos(radians(20)), sin(radians(20))
    turned = (-10 * s, 10 * c)
    sheared = (turned[0] + 0.2 * turned[1], turned[1])
    scaled = (1.2 * sheared[0], 0.8 * sheared[1])
    all_at_once = factors(rotation=20, shear=0.2, vertical=1.2, horizontal=0.8)
    assert (matrices(all_at_once)[0] @ torch.tensor([0.0, 10.0]).double()).tolist() == pytest.approx(scaled)
    other_orders = [(0.2 * c * 10 - 10 * s * 1.2, 8 * c), (1.2 * (-10 * s), 8 * c)]
    assert all(scaled != pytest.approx(other, abs=0.1) for other in other_orders)
    square = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    square[..., 12:16, 22:25] = 255  # its middle is at (0, 9.5)
    moved = centre_of_mass(transform(square, all_at_once))
    assert moved == pytest.approx([0.95 * scaled[0], 0.95 * scaled[1]], abs=0.05)


def test_the_offsets_are_exactly_those_that_keep_bright_pixels_inside():
    """A canvas of 50, the frame at 5..44, bright pixels in rows 7..20 and columns 30..44; one of 85 does not count."""
    canvas = torch.zeros(2, 1, 50, 50, dtype=torch.uint8)
    canvas[0, 0, 7, 30] = canvas[0, 0, 20, 44] = BRIGHT + 1
    canvas[0, 0, 0, 0] = BRIGHT
    least, most = allowed_offsets(canvas)
    assert least.tolist() == [[-2, -25], [0, 0]] and most.tolist() == [[24, 0], [0, 0]]  # the second is dark and stays


def test_every_allowed_offset_is_drawn_about_equally_often(rng):
    bar = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    bar[..., 0:28, 13:15] = 255
    drawn = warped(bar, rng, n_each=6000)
    whole = affine._render(bar.expand(6000, -1, -1, -1), drawn.factors)
    least, most = allowed_offsets(whole)
    offsets = drawn.factors[:, 4:]
    assert ((offsets >= least) & (offsets <= most)).all()
    share = (offsets - least + 0.5) / (most - least + 1)  # uniform in 0..1, whatever the image allows
    assert share.mean(0).tolist() == pytest.approx([0.5, 0.5], abs=0.02)
    for edge in (offsets == least, offsets == most):
        assert edge.double().mean(0).tolist() == pytest.approx(
            (1 / (most - least + 1)).double().mean(0).tolist(), rel=0.15
        )


def test_no_bright_pixel_leaves_the_frame(rng):
    """So the frame has as many of them as the whole transformed image."""
    images = some_digits(300)
    made = warped(images, rng, n_each=2)
    whole = affine._render(images.repeat(2, 1, 1, 1), made.factors)
    assert torch.equal((whole > BRIGHT).sum((1, 2, 3)), (made.images > BRIGHT).sum((1, 2, 3)))
    assert (made.images.amax((1, 2, 3)) > BRIGHT).all()


def test_the_canvas_holds_a_whole_image_whatever_the_factors(rng):
    """A corner at every extreme: nothing of it may touch the canvas's border."""
    full = torch.full((1, 1, 28, 28), 255, dtype=torch.uint8)
    for angle in (-20, 20):
        for shear in (-0.2, 0.2):
            whole = affine._render(full, factors(angle, shear, 1.2, 1.2))
            inner = whole[..., 1:-1, 1:-1]
            assert whole.sum() == inner.sum()


def test_what_cannot_fit_is_refused(rng):
    with pytest.raises(ValueError, match="does not fit into 40x40"):
        warped(torch.full((50, 1, 28, 28), 255, dtype=torch.uint8), rng)
    with pytest.raises(ValueError, match="square uint8 images"):
        warped(torch.zeros(2, 1, 28, 28), rng)


@pytest.mark.parametrize("size", [28, 16, 27])
def test_the_factors_tell_the_whole_truth(size, rng):
    """They make the same image again, to the byte, and lie in their ranges."""
    images = some_digits(200, size)
    made = warped(images, rng)
    assert torch.equal(transform(images, made.factors), made.images)
    low, high = made.factors.min(0).values, made.factors.max(0).values
    assert (low[:4] >= torch.tensor([-20, -0.2, 0.8, 0.8])).all() and (
        high[:4] <= torch.tensor([20, 0.2, 1.2, 1.2])
    ).all()
    assert (high[:4] - low[:4] > 0.9 * torch.tensor([40, 0.4, 0.4, 0.4])).all()
    assert made.factors[:, :4].T.corrcoef().fill_diagonal_(0).abs().max() < 0.3, "drawn independently"


def test_the_seed_decides_and_chunks_and_more_transforms_change_nothing():
    images = some_digits()

    def make(seed=5, **options):
        return warped(images, torch.Generator().manual_seed(seed), **options)

    one = make(n_each=3)
    assert torch.equal(one.images, make(n_each=3, chunk=7).images) and torch.equal(
        one.factors, make(n_each=3, chunk=7).factors
    )
    assert torch.equal(one.images[:100], make(n_each=2).images), "a smaller set is the first part of a larger one"
    assert not torch.equal(one.images, make(seed=6, n_each=3).images)


def test_a_border_around_the_digits_changes_nothing():
    """So held-out digits of mnist-40 are warped as they are."""
    images = some_digits(20)
    one, other = (
        warped(x, torch.Generator().manual_seed(5)) for x in (images, torch.nn.functional.pad(images, [6] * 4))
    )
    assert torch.equal(one.images, other.images) and torch.equal(one.factors, other.factors)


def test_interpolation_is_exact_arithmetic(rng):
    """In float64 the same bytes, so the order of sums on another machine does not matter."""
    images = some_digits(40)
    made = warped(images, rng)
    back = (torch.linalg.inv(matrices(made.factors)) * 2**15).round() / 2**15
    axis = torch.arange(FRAME).double() - 19.5
    rows, columns = axis[:, None] - made.factors[:, 4, None, None], axis - made.factors[:, 5, None, None]
    old = [
        ((back[:, k, 0, None, None] * rows + back[:, k, 1, None, None] * columns) * 256).round() / 256 + 13.5 + 2
        for k in (0, 1)
    ]
    padded = torch.nn.functional.pad(images, [2] * 4)[:, 0].double()
    total = torch.zeros(len(images), FRAME, FRAME, dtype=torch.float64)
    for below in (0, 1):
        for beside in (0, 1):
            r, c = old[0].floor().long() + below, old[1].floor().long() + beside
            weight = (1 - (old[0] - r).abs()) * (1 - (old[1] - c).abs())
            inside = (r >= 0) & (r < 32) & (c >= 0) & (c < 32)
            total += weight * inside * padded[torch.arange(len(images))[:, None, None], r.clamp(0, 31), c.clamp(0, 31)]
    assert torch.equal(total.round().to(torch.uint8), made.images[:, 0])


def test_placing_reaches_every_place_and_keeps_the_digit_whole(rng):
    images = torch.full((1000, 1, 28, 28), 7, dtype=torch.uint8)
    made = placed(images, rng)
    assert list(made.shape) == [1000, 1, 40, 40] and (made.sum((1, 2, 3)) == 7 * 28**2).all()
    corners = {tuple(image[0].nonzero()[0].tolist()) for image in made}
    assert len(corners) > 160 and {axis for corner in corners for axis in corner} == set(range(13))  # of 169


def test_affine_test_sets_are_not_for_training():
    for name in ("affnist-like", "affnist"):
        with pytest.raises(ValueError, match="is a test set: models are trained on 'mnist-40'"):
            load(name, "train")
        assert info(name).n_train == 0 and info(name).shape == (1, 40, 40)


@pytest.mark.data
@pytest.mark.skipif(not REAL_FILES, reason="TORCHCAPS_DATA names no folder")
def test_affnist_like_is_what_it_was():
    """One transform of each test digit is the first part of the whole set. The hash holds on every machine."""
    images, labels = affnist_like.read_like("test", REAL_FILES, n_each=1)
    assert list(images.shape) == [10_000, 1, 40, 40] and labels[:4].tolist() == [7, 2, 1, 0]
    assert fingerprint(Labelled(images, labels)) == AFFNIST_LIKE


@pytest.mark.data
@pytest.mark.skipif(not REAL_FILES, reason="TORCHCAPS_DATA names no folder")
def test_mnist_40_trains_by_shifting_and_tests_at_fixed_places(rng):
    train, test = (load("mnist-40", split, root=REAL_FILES) for split in ("train", "test"))
    digits = load("mnist", "train", root=REAL_FILES)
    assert torch.equal(train.images[..., 6:34, 6:34], digits.images)
    assert torch.equal(train.images.sum((1, 2, 3)), digits.images.sum((1, 2, 3)))
    assert fingerprint(test) == MNIST_40 == fingerprint(load("mnist-40", "test", root=REAL_FILES, seed=5))
    batches = Batches(hold_out(train, 59_000, seed=0)[0], 500, (Shift(6),), CPU)
    batches.new_epoch(rng)
    seen = batches.at(torch.tensor(0)).images
    assert (seen > 0).any((0, 1, 2))[3:37].all(), "placed at random, ink goes beyond the middle 28 columns"


AFFNIST_LIKE = "03caec9691ee71433a1b4aad6b43cd26526c36f9d4731432e67a23e80eee8cd9"
MNIST_40 = "1f9828c6b3ef727fccad4d4eb1a7ce4e9d9c5cf9b05aef05a8c172caf6012813"
