"""SiLU with sums: a case by hand, and shapes that would broadcast."""

import pytest
import torch

from torchcaps.ops import conv_silu_with_sums, silu_with_sums


def test_a_case_by_hand():
    """silu(0) = 0 and silu(x) is close to x for large x, so that 0 and 40, less a centre of 2, are -2 and 38."""
    maps, sums = silu_with_sums(torch.tensor([[-1.0], [39.0]]), torch.tensor([1.0]), torch.tensor([2.0]))
    torch.testing.assert_close(maps, torch.tensor([[-2.0], [38.0]]))
    torch.testing.assert_close(sums, torch.tensor([[36.0], [1448.0]]))


def test_a_convolution_comes_first():
    """Patches of two ones have sums of 2, the weight triples them, and the bias takes them to 40."""
    images, weight = torch.ones(1, 1, 2, 3), torch.full((1, 1, 2, 1), 3.0)
    maps, sums = conv_silu_with_sums(images, weight, torch.tensor([34.0]), torch.tensor([0.0]))
    torch.testing.assert_close(maps, torch.full((1, 1, 3, 1), 40.0))
    torch.testing.assert_close(sums, torch.tensor([[120.0], [4800.0]]))


@pytest.mark.parametrize("n", [1, 3])
def test_a_bias_or_a_centre_of_another_size_is_refused(n):
    right, wrong = torch.zeros(2), torch.zeros(n)
    for bias, centre in ((right, wrong), (wrong, right)):
        with pytest.raises(ValueError, match="for each of 2 channels"):
            silu_with_sums(torch.zeros(4, 2), bias, centre)
        with pytest.raises(ValueError, match="for each of 2 channels"):
            conv_silu_with_sums(torch.zeros(1, 3, 4, 4), torch.zeros(2, 3, 1, 1), bias, centre)


@pytest.mark.parametrize(
    ("images", "weight", "stride"),
    [((1, 3, 4, 4), (2, 1, 1, 1), 1), ((3, 4, 4), (2, 3, 1, 1), 1), ((1, 3, 4, 4), (2, 3, 1, 1), 0)],
)
def test_images_that_do_not_fit_the_weight_are_refused(images, weight, stride):
    with pytest.raises(ValueError, match="of as many channels, and a stride of 1 or more"):
        conv_silu_with_sums(torch.zeros(images), torch.zeros(weight), torch.zeros(2), torch.zeros(2), stride)
