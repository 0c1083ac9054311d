import re

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d

from torchcaps.layers import PrimaryCapsules
from torchcaps.ops import squash


def test_primary_is_a_convolution_cut_into_poses(rng):
    layer = PrimaryCapsules(3, n_types=2, d_out=4, kernel=3, stride=2, padding=1, share=5)
    nn.init.normal_(layer.bias)
    features = torch.randn(2, 3, 7, 9, generator=rng)
    cut = conv2d(features, layer.weight, stride=2, padding=1) / 5 + layer.bias.view(-1, 1, 1)  # [b 8 4 5]
    capsules = layer(features)
    assert capsules.poses.shape == (2, 2 * 4 * 5, 4)
    for capsule, (n, y, x) in enumerate((n, y, x) for n in range(2) for y in range(4) for x in range(5)):
        torch.testing.assert_close(capsules.poses[:, capsule], squash(cut[:, 4 * n : 4 * n + 4, y, x]))
    torch.testing.assert_close(capsules.activity, capsules.poses.norm(dim=-1))


def test_primary_keeps_the_size_with_same_padding():
    assert PrimaryCapsules(3, 2, 4, kernel=3, stride=1, padding="same")(torch.rand(1, 3, 5, 6)).poses.shape == (
        1,
        2 * 5 * 6,
        4,
    )


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "before", "after"),
    [(24, 9, 2, 3, 4), (7, 3, 2, 1, 1), (8, 3, 2, 0, 1), (5, 1, 2, 0, 0)],
)
def test_same_padding_puts_the_odd_zero_right_and_below(size, kernel, stride, before, after, rng):
    """As TensorFlow does: ceil(size / stride) places."""
    layer = PrimaryCapsules(2, 1, 3, kernel, stride, padding="same")
    images = torch.randn(1, 2, size, size, generator=rng)
    padded = torch.nn.functional.pad(images, [before, after, before, after])
    wanted = torch.nn.functional.conv2d(padded, layer.weight, layer.bias, stride)
    assert layer.places(size) == wanted.shape[-1] == -(-size // stride)
    torch.testing.assert_close(layer(images).poses, squash(wanted.flatten(2).mT))


def test_primary_goes_on_in_float32_under_autocast():
    layer, features = PrimaryCapsules(3, 2, 4, kernel=3), torch.rand(1, 3, 7, 7)
    with torch.autocast("cpu", torch.bfloat16):
        capsules = layer(features)
    assert capsules.poses.dtype == capsules.activity.dtype == torch.float32
    torch.testing.assert_close(capsules.poses, layer(features).poses, rtol=0, atol=0.02)


@pytest.mark.parametrize(
    "shape, do",
    [((2, 3, 20, 20), "PrimaryCapsules(3, ...)"), ((64, 20, 20), "features.unsqueeze(0)"), ((64,), "a batch")],
)
def test_primary_refuses_other_channels_and_says_what_to_do(shape, do):
    message = f"PrimaryCapsules expects features [b, 64, height, width], got {list(shape)}; "
    with pytest.raises(ValueError, match=re.escape(message) + ".*" + re.escape(do)):
        PrimaryCapsules(64, 8, 8)(torch.rand(shape))
