import re

import pytest
import torch
from torch import nn

from torchcaps.layers import Capsules, ConvRoutedCapsules
from torchcaps.ops import local_grid, local_routing


@pytest.mark.parametrize("couplings", ["softmax", "leaky", "max-min", "uniform"])
def test_conv_routed_is_the_op_on_its_weights(couplings, rng):
    layer = ConvRoutedCapsules((4, 5), 2, 3, 4, 5, kernel=3, stride=2, padding=1, n_iters=2, couplings=couplings)
    nn.init.normal_(layer.bias)
    poses = torch.randn(2, 40, 4, generator=rng)
    routed = local_routing(poses, layer.transforms, layer.bias, local_grid(4, 5, 3, 2, 1), 2, couplings=couplings).poses
    assert layer.out_grid == (2, 3)
    assert layer.n_out == 18
    assert torch.equal(layer(Capsules.of(poses)).poses, routed)


def test_conv_routed_goes_to_channels_last(rng):
    layer = ConvRoutedCapsules((3, 3), 2, 3, 4, 5)
    poses = torch.randn(2, 18, 4, generator=rng)
    wanted = layer(poses).poses
    torch.testing.assert_close(layer.to(memory_format=torch.channels_last)(poses).poses, wanted)


def test_conv_routed_saves_its_weights_only():
    assert set(ConvRoutedCapsules((3, 3), 2, 3, 4, 5).state_dict()) == {"weight", "bias"}


def test_conv_routed_refuses_other_shapes_and_rules():
    layer = ConvRoutedCapsules((3, 3), 2, 3, 4, 5)
    for shape in [(2, 1, 4), (2, 9, 4), (2, 18, 1), (18,)]:
        message = f"ConvRoutedCapsules expects [..., 18 capsules, 4 dimensions each], got {list(shape)}"
        with pytest.raises(ValueError, match=re.escape(message)):
            layer(torch.ones(shape))
    with pytest.raises(
        ValueError, match="has no prior logits for random couplings; use softmax, leaky, max-min or uniform"
    ):
        ConvRoutedCapsules((3, 3), 2, 3, 4, 5, couplings="random")
    with pytest.raises(ValueError, match="a kernel of 3 does not fit a 2x8 grid with padding 0"):
        ConvRoutedCapsules((2, 8), 2, 3, 4, 5)
