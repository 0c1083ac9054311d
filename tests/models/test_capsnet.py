"""CapsNet: the paper's sizes, presets, gradients, decoder, and the CIFAR-10 network pixel by pixel."""

import re
from math import prod

import pytest
import torch
from torch import nn

from torchcaps.models import CapsNet
from torchcaps.models.capsnet import PRESETS
from torchcaps.ops import margin_loss, reconstruction_loss, squash

SMALL = {"channels": 8, "kernel": 3, "n_types": 2, "d_primary": 4, "primary_kernel": 3, "d_class": 6, "hidden": (16, 8)}
TRUNCATED_STD = 0.8796  # of a standard normal cut off at two


def n_parameters(**options) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in CapsNet(**options).parameters())


def total_loss(model, images, labels):
    capsules = model(images)
    margin = margin_loss(capsules.activity, torch.eye(model.n_classes)[labels]) * model.margin_weight()
    return (margin + 0.0005 * reconstruction_loss(model.reconstruct(capsules.poses, labels), images)).mean()


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 8_215_728),  # the paper's 8.2M
        ({"reconstruction": False}, 6_804_384),  # 6.8M
        ({"image": (1, 36, 36)}, 11_361_968),  # MultiMNIST, 11.36M
        ({"image": (1, 40, 40)}, 13_475_808),  # affNIST
        # CIFAR-10: 256 filters of 9x9x3, 512 of 9x9x256, transforms of 12x12x64 capsules for ten classes; every layer
        # with its bias
        (
            {"image": (3, 24, 24), "same": True, "n_types": 64, "reconstruction": False},
            62_464 + 10_617_344 + 11_796_640,
        ),
        (
            {"image": (2, 32, 32), "n_classes": 5, "reconstruction": False},
            41_728 + 5_308_672 + 1_310_800,
        ),  # smallNORB: 8x8 places
    ],
)
@pytest.mark.parametrize("preset", PRESETS)
def test_parameter_counts_are_the_papers(options, count, preset):
    assert n_parameters(**options, preset=preset) == count


def test_parameters_by_hand():
    conv, primary = 256 * 81 + 256, 256 * 256 * 81 + 256
    classes = 32 * 6 * 6 * 10 * 8 * 16 + 10 * 16
    decoder = (160 * 512 + 512) + (512 * 1024 + 1024) + (1024 * 784 + 784)
    assert n_parameters() == conv + primary + classes + decoder


def test_sizes_are_the_papers():
    with torch.device("meta"):
        model = CapsNet()
        capsules = model(torch.empty(2, 1, 28, 28))
    assert model.grid == (6, 6)
    assert model.classes.n_in == 32 * 6 * 6
    assert capsules.poses.shape == (2, 10, 16)


def test_the_official_preset_starts_like_the_authors_code():
    model = CapsNet((1, 20, 20), 10, channels=64)  # 2x2 places
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0.1).all(), name
            continue
        std = 0.05 if name == "conv.weight" else 0.1
        assert parameter.abs().max() <= 2 * std, name
        assert parameter.std().item() == pytest.approx(TRUNCATED_STD * std, rel=0.03), name
        assert parameter.mean().abs() < 0.05 * std, name


def test_the_paper_preset_starts_like_pytorch():
    model = CapsNet((1, 20, 20), 10, preset="paper", channels=64)
    bound = 1 / 9  # nn.Conv2d: uniform within 1 / sqrt(81 inputs)
    assert 0.99 * bound < model.conv.weight.abs().max() <= bound
    bound = 1 / (81 * 64) ** 0.5
    assert 0.99 * bound < model.primary.weight.abs().max() <= bound
    assert (model.primary.bias == 0).all()
    assert (model.classes.bias == 0).all()
    assert model.conv.bias.std() > 0


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({}, 32),
        ({"couplings": "leaky"}, 33),
        ({"n_types": 64, "couplings": "leaky"}, 65),
        ({"preset": "paper"}, 1),
        ({"preset": "paper", "couplings": "leaky"}, 1),
    ],
)
def test_primary_capsules_are_divided_by_the_number_of_types(options, share):
    with torch.device("meta"):
        assert CapsNet(**options).primary.share == share


def test_the_division_is_before_bias_and_squash(rng):
    model, images = CapsNet((1, 12, 12), 3, **SMALL), torch.rand(1, 1, 12, 12, generator=rng)
    cut = nn.functional.conv2d(model.conv(images).relu(), model.primary.weight, stride=2) / 2 + 0.1  # [1 (n d) h w]
    first = model.primary(model.conv(images).relu()).poses[0, 0]
    torch.testing.assert_close(first, squash(cut[0, :4, 0, 0]))


@pytest.mark.parametrize(
    ("preset", "share", "bias", "weight"),
    [
        ("official", 2, 0.1, 0.05),
        ("official-whole-primary", 1, 0.1, 0.05),
        ("official-torch-init", 2, 0.0, 0.05),
        ("official-sum-margin", 2, 0.1, 1.0),
        ("paper", 1, 0.0, 1.0),
    ],
)
def test_presets_between_the_two_take_one_thing_from_the_text(preset, share, bias, weight):
    model = CapsNet((1, 12, 12), preset=preset, kernel=3, primary_kernel=3, channels=4, n_types=2)
    assert (model.primary.share, model.margin_weight()) == (share, weight)
    assert torch.equal(model.classes.bias, torch.full_like(model.classes.bias, bias))


def test_margin_weights_of_the_presets():
    """Official: half the mean over the classes, of losses that are sums. Paper: their sum."""
    with torch.device("meta"):
        assert CapsNet(n_classes=10).margin_weight() == 0.05
        assert CapsNet(n_classes=5).margin_weight() == 0.1
        assert CapsNet(preset="paper").margin_weight() == 1


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("image", "n_classes"), [((1, 12, 12), 3), ((3, 9, 14), 2), ((2, 5, 5), 7), ((1, 13, 8), 1)])
def test_any_image_size_channels_and_classes(image, n_classes, preset):
    model = CapsNet(image, n_classes, preset=preset, **SMALL)
    capsules = model(torch.rand(2, *image))
    assert capsules.poses.shape == (2, n_classes, 6)
    assert capsules.activity.shape == (2, n_classes)
    assert model.reconstruct(capsules.poses, torch.zeros(2, dtype=torch.int64)).shape == (2, *image)
    assert model.classes.n_in == 2 * prod(model.grid)


@pytest.mark.parametrize("sharing", ["none", "places", "inputs", "all"])
@pytest.mark.parametrize("preset", PRESETS)
def test_gradient_reaches_every_parameter(preset, sharing, rng):
    model = CapsNet((1, 12, 12), 3, preset=preset, sharing=sharing, **SMALL)
    total_loss(model, torch.rand(6, 1, 12, 12, generator=rng), torch.arange(6) % 3).backward()
    assert {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()} == set()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_a_black_picture_trains():
    """Zero features everywhere: the gradient of the whole network stays finite."""
    model = CapsNet((1, 12, 12), 3, preset="paper", **SMALL)
    for parameter in (model.conv.bias, model.primary.bias, model.classes.bias):
        nn.init.zeros_(parameter)
    total_loss(model, torch.zeros(2, 1, 12, 12), torch.arange(2)).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("preset", PRESETS)
def test_one_transform_for_all_classes_still_tells_them_apart(preset):
    """The authors' biases are all 0.1: with nothing else between the classes, all capsules would be the same."""
    poses = CapsNet((1, 12, 12), 3, preset=preset, sharing="all", **SMALL)(torch.rand(1, 1, 12, 12)).poses[0]
    assert (poses[0] - poses[1]).abs().max() > 1e-3


def test_without_reconstruction_there_is_no_decoder():
    model = CapsNet((1, 12, 12), 3, reconstruction=False, **SMALL)
    assert not [name for name, _ in model.named_parameters() if "decoder" in name]
    with pytest.raises(ValueError, match=r"has no decoder: .*take one built and trained with reconstruction=True"):
        model.reconstruct(torch.ones(2, 3, 6), torch.tensor([0, 1]))


def test_reconstruction_reads_the_labelled_capsule_only(rng):
    model, poses = CapsNet((1, 12, 12), 3, **SMALL), torch.randn(2, 3, 6, generator=rng)
    labels = torch.tensor([2, 0])
    pictures = model.reconstruct(poses, labels)
    poses[0, :2] = 9.0
    poses[1, 1:] = 9.0
    assert torch.equal(model.reconstruct(poses, labels), pictures)


def test_the_parts_stand_in_the_papers_order(rng):
    model, images = CapsNet((1, 12, 12), 3, **SMALL), torch.rand(2, 1, 12, 12, generator=rng)
    features = model.conv(images)
    assert (features < 0).any()
    torch.testing.assert_close(model(images), model.classes(model.primary(features.relu())))


def test_steps_end_where_the_model_does(rng):
    model, images = CapsNet((1, 12, 12), 3, n_iters=4, **SMALL), torch.rand(2, 1, 12, 12, generator=rng)
    steps = list(model.steps(images))
    assert len(steps) == 4
    assert steps[0].couplings.shape == (2, model.classes.n_in, 3)
    torch.testing.assert_close(steps[-1].poses, model(images).poses)


@pytest.mark.parametrize("shape", [(2, 1, 28, 27), (2, 3, 28, 28), (1, 28, 28), (28, 28)])
def test_other_images_are_refused(shape):
    with torch.device("meta"):
        model, images = CapsNet(), torch.empty(shape)
    with pytest.raises(ValueError, match=re.escape(f"CapsNet expects images [b, 1, 28, 28], got {list(shape)}")):
        model(images)


@pytest.mark.parametrize("image", [(1, 16, 28), (1, 28, 16), (1, 8, 8), (1, 1, 1)])
def test_too_small_images_are_refused(image):
    message = f"CapsNet: an image of {image[1]}x{image[2]} is too small for kernels of 9 and 9; give smaller kernels"
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        CapsNet(image)


def test_the_smallest_image_that_fits_has_one_place():
    with torch.device("meta"):
        assert CapsNet((1, 17, 18)).grid == (1, 1)


def test_unknown_presets_are_refused():
    with pytest.raises(
        ValueError, match=r"CapsNet: preset must be one of official, paper, official-whole.*-margin; got 'tf'"
    ):
        CapsNet(preset="tf")


def test_same_padding_is_that_of_the_authors_cifar_network(rng):
    """24x24 stays 24x24, then 12x12; 64 types."""
    with torch.device("meta"):
        model = CapsNet((3, 24, 24), same=True, n_types=64, reconstruction=False)
    assert model.grid == (12, 12) and model.classes.weight.shape[0] == 9216
    small = CapsNet((1, 8, 8), same=True, channels=4, kernel=3, n_types=2, primary_kernel=3, reconstruction=False)
    assert small(torch.rand(2, 1, 8, 8, generator=rng)).poses.shape == (2, 10, 16)
    with pytest.raises(ValueError, match=r"same=True needs an odd kernel.*got 4"):
        CapsNet((1, 8, 8), same=True, kernel=4)


def test_the_cifar_network_pixel_by_pixel(rng):
    """The whole of it in the open, float64: where the zeros stand, what primaries are divided by, the logit that nobody
    gets.
    """
    args = {
        "same": True,
        "couplings": "leaky",
        "reconstruction": False,
        "channels": 3,
        "n_types": 4,
        "d_primary": 2,
        "d_class": 5,
    }
    model = CapsNet((3, 24, 24), 3, **args).double()
    images = torch.randn(2, 3, 24, 24, dtype=torch.float64, generator=rng)
    padded = images.new_zeros(2, 3, 32, 32)
    padded[:, :, 4:28, 4:28] = images
    maps = torch.nn.functional.conv2d(padded, model.conv.weight, model.conv.bias).relu()
    padded = images.new_zeros(2, 3, 31, 31)
    padded[:, :, 3:27, 3:27] = maps  # seven rows of zeros: three above, four below
    primary = torch.empty(2, 4 * 12 * 12, 2, dtype=torch.float64)
    for row in range(12):
        for column in range(12):
            patch = padded[:, :, 2 * row : 2 * row + 9, 2 * column : 2 * column + 9]
            total = torch.einsum("bcyx,kcyx->bk", patch, model.primary.weight) / 5 + model.primary.bias
            primary[:, [144 * n + 12 * row + column for n in range(4)]] = total.view(2, 4, 2)
    square = primary.square().sum(-1, keepdim=True)
    votes = torch.einsum("bid,ijde->bije", primary * square.sqrt() / (1 + square), model.classes.weight)
    logits = torch.zeros(2, 576, 3, dtype=torch.float64)
    for _ in range(3):
        shares = logits.exp() / (1 + logits.exp().sum(-1, keepdim=True))
        total = torch.einsum("bij,bije->bje", shares, votes) + model.classes.bias
        square = total.square().sum(-1, keepdim=True)
        poses = total * square.sqrt() / (1 + square)
        logits = logits + torch.einsum("bije,bje->bij", votes, poses)
    torch.testing.assert_close(model(images).poses, poses, rtol=1e-9, atol=1e-12)
