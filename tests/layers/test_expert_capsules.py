"""Expert capsules and the tied autoencoder: shapes, scale, and that up and down are one tensor."""

import re

import pytest
import torch
from torch.nn.functional import conv2d, conv_transpose2d

from torchcaps.layers import ConvAutoencoder, ExpertCapsules
from torchcaps.ops import squash


@pytest.mark.parametrize(
    ("image", "kernel", "grid"), [((1, 28, 28), 9, (6, 6)), ((3, 32, 32), 9, (8, 8)), ((1, 8, 8), 3, (2, 2))]
)
def test_what_goes_up_comes_down_in_its_own_size(image, kernel, grid):
    layer = ConvAutoencoder(image, 4, kernel)
    images = torch.rand(2, *image)
    maps = layer.encode(images)
    assert maps.shape == (2, 4, *grid) and layer.grid == grid
    assert layer.decode(maps).shape == images.shape
    assert sum(p.numel() for p in layer.parameters()) == 4 * image[0] * kernel**2 + 16 * kernel**2 + 3 * 4 + image[0]


def test_the_decoder_has_the_transposed_filters():
    """<conv(x), y> = <x, transposed conv(y)>, layer by layer, with the same tensors."""
    layer = ConvAutoencoder((1, 12, 12), 4, 5).double()
    below, above = torch.rand(1, 4, 8, 8, dtype=torch.float64), torch.rand(1, 4, 2, 2, dtype=torch.float64)
    up, down = (
        conv2d(below, layer.second, stride=2),
        conv_transpose2d(above, layer.second, stride=2, output_padding=layer.left_over),
    )
    torch.testing.assert_close((up * above).sum(), (below * down).sum())


def test_dropout_is_for_training_of_the_whole_only():
    layer, images = ConvAutoencoder((1, 12, 12), 4, 5, dropped=0.5), torch.rand(2, 1, 12, 12)
    assert not torch.equal(layer.train()(images), layer(images))
    assert torch.equal(layer.encode(images), layer.encode(images))
    assert torch.equal(layer.eval()(images), layer.decode(layer.encode(images)))


def test_without_biases_brightness_is_a_factor_and_nothing_is_drawn_from_nothing():
    """Leaky ReLU and filters alone: twice the light gives twice the maps, and empty maps give logits of 0, grey."""
    layer = ConvAutoencoder((1, 12, 12), 4, 5, biases=False)
    images = torch.rand(2, 1, 12, 12)
    assert [name for name, _ in layer.named_parameters()] == ["first", "second"]
    torch.testing.assert_close(layer.encode(2 * images), 2 * layer.encode(images))
    assert not layer.decode(torch.zeros(1, 4, 2, 2)).any()
    assert "no biases" in repr(layer) and "no biases" not in repr(ConvAutoencoder((1, 12, 12), 4, 5))


def test_filters_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="two filters of 9x9 do not fit into 8x8"):
        ConvAutoencoder((1, 8, 8))
    with pytest.raises(ValueError, match=re.escape("expects images [b, 1, 28, 28], got [2, 1, 28, 27]")):
        ConvAutoencoder((1, 28, 28), 4).encode(torch.rand(2, 1, 28, 27))


@pytest.mark.parametrize("n_plain", [0, 2])
def test_weights_are_scaled_to_a_mean_length(rng, n_plain):
    layer = ExpertCapsules(12, 5, 4, 6, n_plain=n_plain)
    poses = squash(torch.randn(32, 12, 4, generator=rng))
    assert layer(poses).activity.mean() < 1e-3  # the paper's initialisation is silent
    layer.scale_to(poses, 0.2)
    assert layer(poses).activity.mean().item() == pytest.approx(0.2, abs=1e-4)


def test_capsules_are_as_long_as_they_are_on(rng):
    layer = ExpertCapsules(12, 5, 4, 6)
    poses = squash(torch.randn(3, 12, 4, generator=rng))
    layer.scale_to(poses, 0.5)
    capsules = layer(poses)
    torch.testing.assert_close(capsules.poses.norm(dim=-1), capsules.activity)
    torch.testing.assert_close(capsules.poses, squash(layer.phase(poses).sums))


def test_errors_say_what_was_wanted(rng):
    layer = ExpertCapsules(12, 5, 4, 6)
    with pytest.raises(
        ValueError, match=re.escape("ExpertCapsules expects [..., 12 capsules, 4 dimensions each], got [3, 11, 4]")
    ):
        layer(torch.randn(3, 11, 4, generator=rng))
    with pytest.raises(ValueError, match="length 0"):
        layer.scale_to(torch.zeros(3, 12, 4), 0.2)
    with pytest.raises(ValueError, match="between 0 and 1, got 1"):
        layer.scale_to(torch.ones(3, 12, 4), 1)
    with pytest.raises(ValueError, match="n_plain=6"):
        ExpertCapsules(12, 5, 4, 6, n_plain=6)
