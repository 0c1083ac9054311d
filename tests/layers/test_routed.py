import re

import pytest
import torch
from torch import nn

from torchcaps.layers import Capsules, RoutedCapsules
from torchcaps.ops import COUPLINGS, dynamic_routing, length, margin_loss, squash

SHARING = {
    "none": ({}, (6, 3, 4, 5)),
    "places": ({"n_types": 2}, (2, 3, 4, 5)),
    "inputs": ({}, (3, 4, 5)),
    "all": ({}, (4, 5)),
}


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


@pytest.mark.parametrize("norm", [False, True])
def test_one_transform_for_all_is_calibrated(norm):
    layer = RoutedCapsules(None, 10, 8, 16, sharing="all", batch_norm=norm)
    assert 0.2 <= layer.calibrate(torch.randn(32, 20, 8) * 9).activity.median() <= 0.7
