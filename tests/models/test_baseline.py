"""The networks without capsules have the sizes that the paper prints."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from torchcaps.models import MODELS
from torchcaps.models.baseline import PRESETS, Baseline, PictureConv2d
from torchcaps.ops import convolution


def size(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("preset, image, wanted", [("mnist", 28, 35_445_522), ("multimnist", 36, 24_563_978)])
def test_parameters_are_those_the_paper_prints(preset, image, wanted):
    with torch.device("meta"):
        assert size(Baseline((1, image, image), 10, preset=preset)) == wanted


def test_the_one_for_40x40_is_as_large_as_its_capsnet():
    with torch.device("meta"):
        ours, theirs = size(Baseline((1, 40, 40), 10, preset="affnist")), size(MODELS["capsnet"]((1, 40, 40), 10))
    assert theirs == 13_475_808
    assert abs(ours / theirs - 1) < 1e-3


@pytest.mark.parametrize("image", [(3, 32, 32), (1, 28, 28)], ids=str)
def test_the_one_for_photographs_is_about_as_large_as_routing_net(image):
    ours, theirs = size(Baseline(image, 10, preset="photos")), size(MODELS["routing-net"](image, 10))
    assert abs(ours / theirs - 1) < 0.15


def multiplications(model: torch.nn.Module, image: tuple[int, int, int]) -> float:
    """Millions of multiplications in the convolutions, for one image."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.rand(1, *image))
    return counter.get_flop_counts()["Global"][torch.ops.aten.convolution] / 2e6  # a product and a sum each


@pytest.mark.parametrize(("image", "wanted"), [((3, 32, 32), (67.8, 16.5)), ((1, 28, 28), (51.0, 11.0))], ids=str)
def test_convolutions_of_the_one_for_photographs_multiply_four_times_as_often_as_routing_nets(image, wanted):
    models = Baseline(image, 10, preset="photos"), MODELS["routing-net"](image, 10)
    ours, theirs = (multiplications(model, image) for model in models)
    assert (ours, theirs) == pytest.approx(wanted, abs=0.05)
    assert 4 < ours / theirs < 5


def test_the_one_for_smallnorb_is_as_large_as_its_network_of_capsules():
    with torch.device("meta"):
        ours, theirs = size(Baseline((2, 96, 96), 5, preset="smallnorb")), size(MODELS["em-capsnet"]((2, 96, 96), 5))
    assert (ours, theirs) == (271_545, 271_688)


def test_one_logit_per_class_from_the_features(rng):
    model = Baseline((1, 12, 14), 7, preset="small").eval()
    images = torch.randn(3, 1, 12, 14, generator=rng)
    assert model.features(images).shape == (3, 32)
    assert torch.equal(model(images), model.classes(model.features(images)))
    assert model(images).shape == (3, 7)


@pytest.mark.parametrize("kernel", [3, 5, 9])
@pytest.mark.parametrize("patches", [False, True])
def test_the_first_convolution_keeps_the_size_as_padding_does(rng, monkeypatch, kernel, patches):
    """By patches on a stand-in for CUDA."""
    monkeypatch.setattr(convolution, "_on_cuda", lambda tensor: patches)
    ours, plain = PictureConv2d(2, 6, kernel).double(), torch.nn.Conv2d(2, 6, kernel, padding="same").double()
    plain.load_state_dict(ours.state_dict())
    images = torch.randn(3, 2, 10, 11, generator=rng, dtype=torch.float64)
    outputs = []
    for conv in (ours, plain):
        into = images.clone().requires_grad_()
        maps = conv(into)
        outputs.append([maps, *torch.autograd.grad(maps.sin().sum(), [into, conv.weight, conv.bias])])
    assert outputs[0][0].shape == (3, 6, 10, 11)
    torch.testing.assert_close(*outputs, rtol=1e-12, atol=1e-12)


def test_patches_are_for_first_layers_on_bare_pictures():
    with torch.device("meta"):
        plain, normed = Baseline((1, 28, 28)), Baseline((2, 96, 96), 5, preset="smallnorb")
    kinds = [[type(layer) for layer in model.maps if isinstance(layer, torch.nn.Conv2d)] for model in (plain, normed)]
    assert kinds == [[PictureConv2d, torch.nn.Conv2d, torch.nn.Conv2d], [torch.nn.Conv2d] * 5]


def test_dropout_works_in_training_only(rng):
    model, images = Baseline((1, 12, 12), preset="small"), torch.randn(2, 1, 12, 12, generator=rng)
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))


def test_errors_say_what_was_wanted(rng):
    with pytest.raises(ValueError, match=f"preset must be one of {', '.join(PRESETS)}; got 'tiny'"):
        Baseline(preset="tiny")
    with pytest.raises(ValueError, match="an image of 3x28 is too small for the pooling of 'small'"):
        Baseline((1, 3, 28), preset="small")
    with pytest.raises(
        ValueError, match="PictureConv2d needs an odd kernel, whose zeros are alike on all sides; got 4"
    ):
        PictureConv2d(1, 8, 4)
    with pytest.raises(ValueError, match=r"Baseline expects images \[b, 1, 12, 12\], got \[2, 1, 12, 13\]"):
        Baseline((1, 12, 12), preset="small")(torch.zeros(2, 1, 12, 13))
