"""The stem: folding every normalisation into its convolution changes no number, and which way a call takes."""

import copy

import pytest
import torch
from torch import nn

from torchcaps.layers import conv_stem
from torchcaps.layers.conv_stem import ConvStem, fused
from torchcaps.layers.norm import share_statistics
from torchcaps.models.em_images import stem
from torchcaps.ops import without_kernels


def network(c_in=3, channels=5, strides=(1, 2, 1)) -> ConvStem:
    """A stem away from its initialisation: no scale is one and no shift zero."""
    model = stem(c_in, channels, strides)
    for norm, convolution, _ in model:
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias)
        nn.init.normal_(convolution.bias)
    return model


@pytest.mark.parametrize(
    ("strides", "size"), [((1, 2, 1), (11, 14)), ((2,), (5, 3)), ((2, 1), (8, 9)), ((1, 1), (5, 5))]
)
def test_folded_normalisation_is_the_same_function_with_the_same_gradients_and_statistics(rng, strides, size):
    plain = network(strides=strides).double()
    fast = copy.deepcopy(plain)
    for _ in range(3):  # the second batch meets running statistics that have moved
        images = torch.rand(2, 3, *size, generator=rng, dtype=torch.float64)
        wanted, got = plain(images), fused(fast, images, torch.float64)
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)
        direction = torch.randn(wanted.shape, generator=rng, dtype=torch.float64)
        for out, model in ((wanted, plain), (got, fast)):
            model.zero_grad()
            (out * direction).sum().backward()
        for (name, mine), theirs in zip(fast.named_parameters(), plain.parameters(), strict=True):
            scale = theirs.grad.abs().max().item()
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-9 * scale, msg=name)
        for (name, mine), theirs in zip(fast.named_buffers(), plain.buffers(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12, msg=name)


def test_the_images_get_no_gradient_and_need_none(rng):
    model, images = network(), torch.rand(2, 3, 9, 9, generator=rng)
    out = fused(model, images, torch.float32)
    seen, waiting = set(), [out.grad_fn]
    while waiting:
        node = waiting.pop()
        seen.add(node.name())
        waiting += [above for above, _ in node.next_functions if above is not None]
    assert not any("BatchNorm" in name for name in seen)


def test_names_and_first_weights_are_those_of_plain_modules():
    torch.manual_seed(0)
    made, after = stem(4, 8, (1, 2)), torch.rand(1)
    torch.manual_seed(0)
    plain = []
    for c_in, stride in ((4, 1), (8, 2)):
        convolution = nn.Conv2d(c_in, 8, 3, stride)
        nn.init.kaiming_normal_(convolution.weight)
        nn.init.zeros_(convolution.bias)
        plain.append(nn.Sequential(nn.BatchNorm2d(c_in), convolution, nn.SiLU()))
    wanted = nn.Sequential(*plain).state_dict()
    assert torch.equal(after, torch.rand(1)) and list(made.state_dict()) == list(wanted)
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in made.state_dict().items())


def test_a_cpu_takes_the_modules_one_by_one_to_the_bit(rng):
    model, images = network(), torch.rand(2, 3, 9, 9, generator=rng)
    other = nn.Sequential(*copy.deepcopy(model))
    assert torch.equal(model(images), other(images))
    assert conv_stem.refuses(model, images) == "needs CUDA tensors, got one on cpu; move the input"


class OnCUDA:
    """Stand-in for a batch of images on a GPU: the way is chosen by what a tensor says of itself."""

    device, dtype, ndim, requires_grad = torch.device("cuda"), torch.float32, 4, False

    def __len__(self) -> int:
        return 2


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that runs kernels, and autocast to bfloat16 on it."""
    monkeypatch.setattr(conv_stem, "_cannot_run", lambda images: None)
    monkeypatch.setattr(conv_stem, "autocast_dtype", lambda device: torch.bfloat16)


def spoil(model: ConvStem, kind: str) -> ConvStem:
    stage = model[1]
    match kind:
        case "evaluated":
            model.eval()
        case "one norm evaluated":
            stage[0].eval()
        case "cumulative":
            stage[0].momentum = None
        case "untracked":
            stage[0] = nn.BatchNorm2d(5, track_running_stats=False)
        case "not affine":
            stage[0] = nn.BatchNorm2d(5, affine=False)
        case "shared":
            share_statistics(model)
        case "padded":
            stage[1] = nn.Conv2d(5, 5, 3, padding=1)
        case "padded by name":
            stage[1] = nn.Conv2d(5, 5, 3, padding="same")
        case "no bias":
            stage[1] = nn.Conv2d(5, 5, 3, bias=False)
        case "wide":
            stage[1] = nn.Conv2d(5, 300, 3)
        case "another activation":
            stage[2] = nn.ReLU()
        case "a hook":
            stage[1].register_forward_hook(lambda *args: None)
        case "a hook backward":
            stage[1].register_full_backward_pre_hook(lambda *args: None)
        case "groups":
            stage[1] = nn.Conv2d(5, 5, 3, groups=5)
        case "dilated":
            stage[1] = nn.Conv2d(5, 5, 3, dilation=2)
        case "unequal strides":
            stage[1] = nn.Conv2d(5, 5, 3, stride=(1, 2))
        case "half":
            model.bfloat16()
    return model


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("evaluated", "in training"),
        ("one norm evaluated", "in training"),
        ("cumulative", "with a momentum"),
        ("untracked", "running statistics"),
        ("not affine", "with scale"),
        ("shared", "stages of BatchNorm2d"),
        ("padded", "without padding"),
        ("padded by name", "without padding"),
        ("no bias", "with a bias"),
        ("wide", "at most 256 channels"),
        ("another activation", "stages of BatchNorm2d"),
        ("a hook", "has a hook"),
        ("a hook backward", "has a hook"),
        ("groups", "without padding, groups"),
        ("dilated", "or dilation"),
        ("unequal strides", "equal strides"),
        ("half", "in float32"),
    ],
)
def test_what_cannot_be_folded_is_left_to_the_modules(gpu, kind, reason):
    assert conv_stem.refuses(network(), OnCUDA()) is None
    assert reason in conv_stem.refuses(spoil(network(), kind), OnCUDA())


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        ({"requires_grad": True}, "want no gradient"),
        ({"ndim": 3}, "a batch of images"),
        ({"__len__": lambda self: 0}, "a batch of images"),
        ({"dtype": torch.float64}, "bfloat16"),
    ],
)
def test_images_that_the_fused_way_cannot_take(gpu, monkeypatch, images, reason):
    for name, value in images.items():
        monkeypatch.setattr(OnCUDA, name, value)
    assert reason in conv_stem.refuses(network(), OnCUDA())


def test_without_kernels_it_is_plain():
    with without_kernels():
        assert "switched off" in conv_stem.refuses(network(), OnCUDA())


def test_without_autocast_it_is_plain(monkeypatch):
    monkeypatch.setattr(conv_stem, "_cannot_run", lambda images: None)
    assert "needs autocast" in conv_stem.refuses(network(), OnCUDA())


def test_one_value_per_channel_cannot_be_normalised(rng):
    with pytest.raises(ValueError, match="more than one value per channel"):
        fused(network(), torch.rand(1, 3, 5, 5, generator=rng), torch.float32)


def test_the_fused_way_is_one_graph_and_updates_the_statistics(gpu, rng, fresh_dynamo):
    """Compiled as on a GPU: the stages are looked at while tracing, which must not break the graph."""
    model, images = network(), torch.rand(2, 3, 9, 9, generator=rng)
    other = copy.deepcopy(model)
    out = torch.compile(model, fullgraph=True, backend="aot_eager")(images)
    assert torch.equal(out, fused(other, images, torch.bfloat16)) and out.dtype == torch.bfloat16
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(model.buffers(), other.buffers(), strict=True))
    out.float().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    for kind in ("evaluated", "another activation", "padded", "shared"):
        model = spoil(network(), kind)
        found, wanted = copy.deepcopy(model), nn.Sequential(*model)
        assert torch.equal(torch.compile(found, fullgraph=True, backend="aot_eager")(images), wanted(images)), kind
