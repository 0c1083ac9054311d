import io
import re

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d

import torchcaps.layers
from torchcaps.layers import (
    CapsuleLayer,
    Capsules,
    ConvMatrixCapsules,
    ConvRoutedCapsules,
    Decoder,
    EMCapsules,
    InvertedCapsules,
    LazyRoutedCapsules,
    MatrixCapsules,
    PrimaryCapsules,
    RoutedCapsules,
    SelfAttentionCapsules,
    SelfRoutedCapsules,
)
from torchcaps.layers.autoencoder import ConvAutoencoder
from torchcaps.layers.code_nets import CodeNets
from torchcaps.layers.experts import ExpertCapsules
from torchcaps.layers.ladder import LadderCapsules
from torchcaps.ops import COUPLINGS, dynamic_routing, length, local_grid, local_routing, margin_loss, squash

SHARING = {
    "none": ({}, (6, 3, 4, 5)),
    "places": ({"n_types": 2}, (2, 3, 4, 5)),
    "inputs": ({}, (3, 4, 5)),
    "all": ({}, (4, 5)),
}
LAYERS = {
    "PrimaryCapsules": (lambda: PrimaryCapsules(3, n_types=2, d_out=4, kernel=3), (torch.Size([2, 3, 7, 9]),)),
    "RoutedCapsules": (lambda: RoutedCapsules(6, 3, 4, 5, learn_prior=True), (torch.Size([2, 6, 4]),)),
    "ConvRoutedCapsules": (lambda: ConvRoutedCapsules((3, 3), 2, 3, 4, 5, kernel=2), (torch.Size([2, 18, 4]),)),
    "EMCapsules": (lambda: EMCapsules(6, 3, 2, 4, 5), (torch.Size([2, 6, 2, 4]),)),
    "MatrixCapsules": (lambda: MatrixCapsules(6, 3, 2, 4, 5), (torch.Size([2, 6, 2, 4]),)),
    "ConvMatrixCapsules": (lambda: ConvMatrixCapsules((3, 3), 2, 3, 2, 4, 5, kernel=2), (torch.Size([2, 18, 2, 4]),)),
    "SelfAttentionCapsules": (lambda: SelfAttentionCapsules(6, 3, 4, 5), (torch.Size([2, 6, 4]),)),
    "SelfRoutedCapsules": (lambda: SelfRoutedCapsules(6, 3, 4, 5), (torch.Size([2, 6, 4]),)),
    "InvertedCapsules": (lambda: InvertedCapsules(6, 3, 4, 5), (torch.Size([2, 6, 4]),)),
    "LazyRoutedCapsules": (lambda: LazyRoutedCapsules(6, 3, 4, 5, normalise=False), (torch.Size([2, 6, 4]),)),
    "CapsuleLayer": (lambda: CapsuleLayer(6, 3, 4, 8, "em"), (torch.Size([2, 6, 4]),)),
    "CodeNets": (lambda: CodeNets(6, (8, 5), 3, n_active=2), (torch.Size([2, 6]),)),
    "LadderCapsules": (lambda: LadderCapsules(6, 3, 4, 5, n_kept=2), (torch.Size([2, 6, 4]),)),
    "ConvAutoencoder": (
        lambda: ConvAutoencoder((1, 8, 9), channels=3, kernel=3, dropped=0.0),
        (torch.Size([2, 1, 8, 9]),),
    ),
    "ExpertCapsules": (lambda: ExpertCapsules(6, 3, 4, 5), (torch.Size([2, 6, 4]),)),
    "Decoder": (lambda: Decoder(3, 4, (1, 5, 6), hidden=(8, 7)), (torch.Size([2, 3, 4]), torch.Size([2, 3]))),
}
WITHOUT_WEIGHTS = {"RankMask"}  # nothing to draw and nothing to differentiate: tests/layers/test_rank_mask.py


def tensors(result):
    return [result] if isinstance(result, torch.Tensor) else [part for part in result if part is not None]


def test_every_layer_is_in_the_table():
    public = {name: getattr(torchcaps.layers, name) for name in torchcaps.layers.__all__}
    found = {name for name, thing in public.items() if isinstance(thing, type) and issubclass(thing, nn.Module)}
    assert found == set(LAYERS) | WITHOUT_WEIGHTS, "give a new layer its line in LAYERS"


@pytest.mark.parametrize("name", LAYERS)
def test_state_comes_back_from_a_file(name, rng):
    make, shapes = LAYERS[name]
    inputs = [torch.rand(shape, generator=rng) for shape in shapes]
    layer, other, file = make(), make(), io.BytesIO()
    assert not torch.equal(tensors(layer(*inputs))[0], tensors(other(*inputs))[0])
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert torch.equal(tensors(layer(*inputs))[0], tensors(other(*inputs))[0])


@pytest.mark.parametrize("name", LAYERS)
def test_gradient_reaches_every_parameter(name, rng):
    make, shapes = LAYERS[name]
    layer = make()
    found = tensors(layer(*(torch.rand(shape, generator=rng) for shape in shapes)))[:2]  # poses, and activity if any
    sum(part.square().sum() for part in found).backward()
    assert {n for n, p in layer.named_parameters() if p.grad is None or not p.grad.any()} == set()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("name", LAYERS)
def test_float64_runs_through(name, rng):
    make, shapes = LAYERS[name]
    result = make().double()(*(torch.rand(shape, generator=rng, dtype=torch.float64) for shape in shapes))
    assert all(x.dtype == torch.float64 for x in tensors(result))


def test_capsules_of_poses_have_their_lengths_as_activity():
    capsules = Capsules.of(torch.tensor([[[3.0, 4.0], [0.0, 0.5]]]))
    torch.testing.assert_close(capsules.activity, torch.tensor([[5.0, 0.5]]))
    assert Capsules.of(capsules) is capsules


# RoutedCapsules


@pytest.mark.parametrize("sharing", SHARING)
def test_routed_is_the_op_on_its_weights(sharing, rng):
    options, shape = SHARING[sharing]
    layer = RoutedCapsules(6, 3, 4, 5, sharing=sharing, learn_prior=True, couplings="leaky", **options)
    nn.init.normal_(layer.prior)
    poses = torch.randn(2, 6, 4, generator=rng)
    assert layer.weight.shape == shape
    routed = dynamic_routing(poses, layer.weight, layer.bias, 3, prior=layer.prior, couplings="leaky").poses
    capsules = layer(poses)
    assert torch.equal(capsules.poses, routed)
    assert torch.equal(capsules.activity, length(routed))
    *_, last = layer.steps(Capsules.of(poses))
    torch.testing.assert_close(last.poses, routed)


@pytest.mark.parametrize("batch", [(), (1,), (2, 3)])
def test_routed_takes_any_leading_axes(batch):
    capsules = RoutedCapsules(6, 3, 4, 5)(torch.randn(*batch, 6, 4))
    assert capsules.poses.shape == (*batch, 3, 5)
    assert capsules.activity.shape == (*batch, 3)


@pytest.mark.parametrize(("sharing", "options"), [("places", {"n_types": 2}), ("inputs", {}), ("all", {})])
def test_without_n_in_any_number_of_inputs_will_do(sharing, options):
    layer = RoutedCapsules(None, 3, 4, 5, sharing=sharing, **options)
    for n_in in (2, 6, 10):
        assert layer(torch.randn(2, n_in, 4)).poses.shape == (2, 3, 5)
    for bad in (torch.randn(4), torch.randn(2, 6, 3)):
        with pytest.raises(
            ValueError, match=r"RoutedCapsules expects \[..., any number of capsules, 4 dimensions each\], got"
        ):
            layer(bad)


@pytest.mark.parametrize(
    ("sharing", "options"), [("none", {}), ("places", {"n_types": 2}), ("inputs", {}), ("all", {})]
)
def test_routed_refuses_other_shapes(sharing, options):
    """One capsule in place of six above all, which einsum would broadcast without a word."""
    layer = RoutedCapsules(6, 3, 4, 5, sharing=sharing, **options)
    for shape in [(2, 1, 4), (2, 7, 4), (2, 6, 1), (6,), (4, 6)]:
        message = f"RoutedCapsules expects [..., 6 capsules, 4 dimensions each], got {list(shape)}"
        with pytest.raises(ValueError, match=re.escape(message)):
            layer(torch.ones(shape))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_in": None}, "one transform per pair needs to know n_in; give it, or share with sharing='inputs'"),
        (
            {"n_in": None, "sharing": "inputs", "learn_prior": True},
            "prior logits are one per input and output; give n_in",
        ),
        (
            {"n_in": None, "sharing": "inputs", "couplings": "random"},
            "prior logits are one per input and output; give n_in",
        ),
        ({"sharing": "type"}, "sharing must be one of none, places, inputs, all; got 'type'"),
        ({"sharing": "places"}, "sharing='places' needs n_types that divides n_in; got n_types=None, n_in=6"),
        (
            {"sharing": "places", "n_types": 4},
            "sharing='places' needs n_types that divides n_in; got n_types=4, n_in=6",
        ),
        (
            {"sharing": "all", "bias": False},
            "with one transform for all, only the bias tells the outputs apart; keep bias=True",
        ),
        ({"couplings": "hard"}, "couplings must be one of softmax, leaky, max-min, uniform, random; got 'hard'"),
    ],
)
def test_routed_refuses_what_cannot_be_built(options, message):
    with pytest.raises(ValueError, match=message):
        RoutedCapsules(**{"n_in": 6, "n_out": 3, "d_in": 4, "d_out": 5} | options)


def test_one_transform_for_all_still_tells_the_outputs_apart():
    poses = RoutedCapsules(6, 3, 4, 5, sharing="all")(torch.randn(6, 4)).poses
    assert (poses[0] - poses[1]).abs().max() > 1e-3
    assert (poses[1] - poses[2]).abs().max() > 1e-3


def test_random_couplings_are_drawn_once_and_saved():
    layer, other = (RoutedCapsules(6, 3, 4, 5, couplings="random") for _ in range(2))
    assert "prior" in layer.state_dict()
    assert "prior" not in dict(layer.named_parameters())
    assert not torch.equal(layer.prior, other.prior)
    poses = torch.randn(2, 6, 4)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(poses).poses, other(poses).poses)


def test_a_layer_without_prior_saves_none():
    assert set(RoutedCapsules(6, 3, 4, 5).state_dict()) == {"weight", "bias"}
    assert set(RoutedCapsules(6, 3, 4, 5, bias=False).state_dict()) == {"weight"}


def test_detach_is_handed_on():
    whole, cut = RoutedCapsules(6, 3, 4, 5), RoutedCapsules(6, 3, 4, 5, detach=True)
    cut.load_state_dict(whole.state_dict())
    poses = torch.randn(2, 6, 4)
    for layer in (whole, cut):
        layer(poses).poses.square().sum().backward()
    assert not torch.allclose(whole.weight.grad, cut.weight.grad)


def test_the_backend_is_handed_on():
    with pytest.raises(ValueError, match="backend must be auto"):
        RoutedCapsules(6, 3, 4, 5, backend="magic")(torch.randn(6, 4))


@pytest.mark.parametrize("n_in", [10, 1000])
def test_outputs_start_neither_dead_nor_saturated(n_in, rng):
    poses = squash(torch.randn(8, n_in, 8, generator=rng))
    activity = RoutedCapsules(n_in, 10, 8, 16, n_iters=1)(poses).activity
    assert 0.1 < activity.mean() < 0.99


def test_routed_exports_with_a_free_batch_and_a_free_number_of_inputs():
    layer = RoutedCapsules(None, 3, 4, 5, sharing="inputs")
    free = torch.export.Dim.AUTO
    program = torch.export.export(layer, (torch.randn(2, 6, 4),), dynamic_shapes=({0: free, 1: free},))
    poses = torch.randn(5, 9, 4)
    torch.testing.assert_close(program.module()(poses), layer(poses))


@pytest.mark.parametrize("couplings", COUPLINGS)
def test_every_rule_learns_a_few_samples_by_heart(couplings, rng):
    layer = RoutedCapsules(12, 3, 4, 6, couplings=couplings)
    poses, present = squash(torch.randn(6, 12, 4, generator=rng)), torch.eye(3).repeat(2, 1)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(25):
        loss = margin_loss(layer(poses).activity, present).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0], losses


@pytest.mark.parametrize("couplings", COUPLINGS)
def test_the_last_couplings_come_with_the_capsules_and_without_gradient(couplings, rng):
    layer, poses = RoutedCapsules(6, 3, 4, 5, couplings=couplings), torch.randn(2, 6, 4, generator=rng)
    capsules, shares = layer.with_couplings(poses)
    *_, last = layer.steps(poses)
    assert torch.equal(capsules.poses, layer(poses).poses)
    assert capsules.poses.requires_grad and not shares.requires_grad
    torch.testing.assert_close(shares, last.couplings)


# PrimaryCapsules


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


# ConvRoutedCapsules


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


# Sizes

DENSE = [RoutedCapsules, EMCapsules, MatrixCapsules, SelfAttentionCapsules, SelfRoutedCapsules, InvertedCapsules]
DENSE += [LazyRoutedCapsules, LadderCapsules, ExpertCapsules, CapsuleLayer]
LOCAL = [ConvRoutedCapsules, ConvMatrixCapsules]


@pytest.mark.parametrize("wrong", [0, -2, 2.5])
@pytest.mark.parametrize("name", ["n_in", "n_out", "d_in", "d_out"])
@pytest.mark.parametrize("layer", DENSE)
def test_a_layer_has_at_least_one_capsule_and_dimension(layer, name, wrong):
    sizes = {"n_in": 6, "n_out": 3, "d_in": 4, "d_out": 4} | {name: wrong}
    rows = {"rows": 2} if layer in (EMCapsules, MatrixCapsules) else {}
    message = f"{layer.__name__}: {name} must be a whole number of at least 1, got {wrong}"
    with pytest.raises(ValueError, match=re.escape(message)):
        layer(**sizes, **rows)


@pytest.mark.parametrize("grid, hint", [(6, "(6, 6)"), ((6,), "(6, 6)"), ((0, 6), "(6, 6)"), ((2, 3, 4), "(6, 6)")])
@pytest.mark.parametrize("layer", LOCAL)
def test_a_grid_is_rows_and_columns(layer, grid, hint):
    message = f"{layer.__name__}: grid must be (rows, columns) of at least 1, got {grid}; give such as {hint}"
    with pytest.raises(ValueError, match=re.escape(message)):
        layer(grid, *((8, 8) if layer is ConvMatrixCapsules else (8, 8, 8, 8)))
    with pytest.raises(ValueError, match="n_out_types must be a whole number of at least 1, got 0"):
        layer((6, 6), 8, 0, d_in=4, d_out=4)


@pytest.mark.parametrize(
    "shape, do",
    [((2, 3, 20, 20), "PrimaryCapsules(3, ...)"), ((64, 20, 20), "features.unsqueeze(0)"), ((64,), "a batch")],
)
def test_primary_refuses_other_channels_and_says_what_to_do(shape, do):
    message = f"PrimaryCapsules expects features [b, 64, height, width], got {list(shape)}; "
    with pytest.raises(ValueError, match=re.escape(message) + ".*" + re.escape(do)):
        PrimaryCapsules(64, 8, 8)(torch.rand(shape))


# Decoder


def test_decoder_draws_only_what_is_kept(rng):
    decoder, poses = Decoder(3, 4, (1, 5, 6), hidden=(8,)), torch.randn(2, 3, 4, generator=rng)
    keep = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    others = poses + torch.randn(2, 3, 4, generator=rng) * (1 - keep).unsqueeze(-1)
    pictures = decoder(poses, keep)
    assert pictures.shape == (2, 1, 5, 6)
    assert pictures.min() > 0
    assert pictures.max() < 1
    torch.testing.assert_close(decoder(others, keep), pictures)
    assert not torch.allclose(decoder(poses, 1 - keep), pictures)


def test_decoder_has_a_layer_more_than_hidden_sizes():
    kinds = [type(layer).__name__ for layer in Decoder(3, 4, (1, 5, 6)).net]
    assert kinds == ["Linear", "ReLU", "Linear", "ReLU", "Linear", "Sigmoid"]


def test_decoder_refuses_other_shapes():
    decoder = Decoder(3, 4, (1, 5, 6))
    with pytest.raises(ValueError, match=r"Decoder expects \[..., 3 capsules, 4 dimensions each\], got \[2, 1, 4\]"):
        decoder(torch.ones(2, 1, 4), torch.ones(2, 1))
    with pytest.raises(ValueError, match=r"Decoder: keep must be \[2, 3\], one number per capsule, got \[2, 1\]"):
        decoder(torch.ones(2, 3, 4), torch.ones(2, 1))


def test_layers_print_what_they_are():
    assert repr(PrimaryCapsules(3, 2, 4)) == "PrimaryCapsules(3, n_types=2, d_out=4, kernel=9, stride=2, share=1)"
    assert (
        repr(RoutedCapsules(6, 3, 4, 5, couplings="leaky")) == "RoutedCapsules(6x4 -> 3x5, n_iters=3, couplings=leaky)"
    )
    assert (
        repr(ConvRoutedCapsules((3, 3), 2, 3, 4, 5, kernel=2))
        == "ConvRoutedCapsules(18x4 -> 12x5, out_grid=(2, 2), n_iters=3)"
    )


# Together


def bars(n, rng):
    """Images of 12x12 with one bar, lying or standing, anywhere: which is it?"""
    labels, places = torch.arange(n) % 2, torch.randint(2, 10, (n,), generator=rng)
    pictures = 0.1 * torch.rand(n, 1, 12, 12, generator=rng)
    for picture, label, place in zip(pictures, labels, places, strict=True):
        picture[0, place] += 1 - label.float()
        picture[0, :, place] += label.float()
    return pictures, torch.nn.functional.one_hot(labels, 2).float()


def test_three_capsule_layers_on_top_of_each_other_learn(rng):
    model = nn.Sequential(
        PrimaryCapsules(1, n_types=4, d_out=4, kernel=5, stride=2),  # 4x4 places
        ConvRoutedCapsules((4, 4), 4, 3, 4, 6, kernel=3),  # 2x2 places
        RoutedCapsules(3 * 4, 2, 6, 8),
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(40):  # batches of ten are too small to be split over threads
        pictures, present = bars(10, rng)
        loss = margin_loss(model(pictures).activity, present).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.3 * sum(losses[:5]), losses
    pictures, present = bars(100, rng)
    assert (model(pictures).activity.argmax(-1) == present.argmax(-1)).float().mean() > 0.95
