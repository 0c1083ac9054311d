"""Images turned, slanted and stretched: what a map does is known where it can be computed by hand."""

import math

import torch

from torchcaps.data.augment import Light, Warp, as_seen
from torchcaps.train.plain import from_plain, to_plain
from torchcaps.train.recipe import KINDS


def bars(size: int = 16) -> torch.Tensor:
    """An upright bar through the middle, and one that lies."""
    images = torch.zeros(2, 1, size, size, dtype=torch.uint8)
    images[0, :, :, size // 2 - 1 : size // 2 + 1] = 255
    images[1, :, size // 2 - 1 : size // 2 + 1] = 255
    return images


def test_no_map_leaves_the_image():
    assert torch.equal(Warp().apply(bars(), torch.zeros(2, 4)), bars())


def test_a_quarter_turn_swaps_the_bars():
    turned = Warp().apply(bars(), torch.tensor([[math.pi / 2, 0.0, 0.0, 0.0]] * 2))
    assert torch.equal(turned, bars().flip(0))


def test_slant_moves_the_top_one_way_and_the_bottom_the_other():
    slanted = Warp().apply(bars(), torch.tensor([[0.0, 0.5, 0.0, 0.0]] * 2))[0, 0].float()
    columns = torch.arange(16.0)
    top, bottom = ((row * columns).sum() / row.sum() - 7.5 for row in (slanted[0], slanted[-1]))
    # the source is x + slant y: at y = -15/16 of half the height, 16/2 pixels, the bar stands 0.5 * 7.5 pixels aside
    assert abs(float(top) - 3.75) < 0.3
    assert abs(float(bottom) + 3.75) < 0.3


def test_the_logarithm_of_the_width_narrows_the_source():
    wide = Warp().apply(bars(), torch.tensor([[0.0, 0.0, -math.log(2), 0.0]] * 2))
    assert abs(float(wide[0].float().sum() / bars()[0].float().sum()) - 2) < 0.05  # twice as wide
    assert torch.equal(wide[1], bars()[1])


def test_draws_stay_within_their_ranges_and_evaluation_draws_none():
    drawn = Warp(turn=0.1, slant=0.2, stretch=0.3).draw(1000, torch.Generator().manual_seed(0))
    most = drawn.abs().amax(0)
    assert torch.all(most <= torch.tensor([0.1, 0.2, 0.3, 0.3]))
    assert torch.all(most > torch.tensor([0.09, 0.19, 0.29, 0.29]))
    assert torch.equal(as_seen(bars(), (Warp(),)), bars() / 255)
    assert from_plain(to_plain(Warp(turn=0.5)), KINDS) == Warp(turn=0.5)


def test_with_edge_what_comes_in_from_outside_is_the_edge():
    grey, shrunk = torch.full((1, 2, 8, 8), 90, dtype=torch.uint8), torch.tensor([[0.0, 0.0, math.log(2), math.log(2)]])
    assert Warp().apply(grey, shrunk)[0, 0, 0, 0] == 0  # black
    assert torch.equal(Warp(edge=True).apply(grey, shrunk), grey)


def test_what_light_left_beyond_black_and_white_is_warped_as_it_is(rng):
    """As bytes, 300 would become 44 and -20 white."""
    bright, dark = torch.full((1, 1, 8, 8), 300.0), torch.full((1, 1, 8, 8), -20.0)
    drawn = Warp().draw(1, rng)
    assert all(Warp(edge=True).apply(images, drawn).allclose(images) for images in (bright, dark))
    exposed = Light(63, 0.8, saturates=False).apply(bars(), torch.tensor([[1.0, 1.0]] * 2))
    assert exposed.max() > 255 and torch.allclose(Warp().apply(exposed, torch.zeros(2, 4)), exposed, atol=1e-3)
