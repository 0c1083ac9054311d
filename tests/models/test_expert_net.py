"""The network of Hauser 2019: its sizes, what freezes what, samples of one capsule at a time, and the half that is
visited.
"""

import re

import pytest
import torch

from torchcaps.models import ExpertNet, NeuronNet
from torchcaps.ops import squash, unsquash

SMALL = {"channels": 16, "kernel": 5, "experts": ((4, 6),)}


def small(**args) -> ExpertNet:
    return ExpertNet((1, 16, 16), **SMALL | args).eval()


def test_sizes_are_the_papers():
    with torch.device("meta"):
        model = ExpertNet()
        images = torch.empty(2, 1, 28, 28)
        assert model.primary_capsules(images).poses.shape == (2, 576, 8)
        assert model(images).poses.shape == (2, 20, 16)
        assert model.reconstruct(model(images).poses).shape == images.shape
    assert model.encoders[0].weight.shape == (576, 20, 8, 16) and model.decoders[0].weight.shape == (20, 576, 16, 8)
    filters = 128 * 81 + 128 * 128 * 81 + 3 * 128 + 1
    assert sum(p.numel() for p in model.parameters()) == filters + 2 * 576 * 20 * 8 * 16


def test_without_biases_the_filters_are_all_that_is_left():
    with torch.device("meta"):
        names = [name for name, _ in ExpertNet(biases=False).autoencoder.named_parameters()]
    assert names == ["first", "second"]


def test_a_capsule_is_eight_neighbouring_channels_at_one_place():
    model, images = small(), torch.rand(2, 1, 16, 16)
    maps, poses = model.autoencoder.encode(images), model.features(images)
    places = model.grid[0] * model.grid[1]
    torch.testing.assert_close(poses[:, 0], maps[:, :8, 0, 0])
    torch.testing.assert_close(poses[:, places + 1], maps[:, 8:, 0, 1])


def test_without_capsules_between_it_is_the_autoencoder():
    model, images = small(), torch.rand(2, 1, 16, 16)
    torch.testing.assert_close(
        model.draw(model.primary_capsules(images).poses), model.autoencoder(images).sigmoid(), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("n_plain", [0, 2])
def test_a_second_layer_stands_on_the_first(n_plain):
    model, images = small(experts=((4, 6), (3, 5)), n_plain=n_plain), torch.rand(2, 1, 16, 16)
    for layer in model.encoders:
        layer.scale_to(torch.rand(4, layer.n_in, layer.d_in), 0.5)
    first = model.encoders[0](model.primary_capsules(images).poses).poses
    poses, sums = model.below(images, 1)
    torch.testing.assert_close(poses, first)
    if not n_plain:
        torch.testing.assert_close(squash(sums), first)
    torch.testing.assert_close(model(images).poses, model.encoders[1](first).poses)
    assert model(images).poses.shape == (2, 3, 5)
    assert model.reconstruct(model(images).poses).shape == images.shape
    assert model.draw_samples(torch.randn(2, 3, 5), restricted=False).shape == (2, 3, 1, 16, 16)


def test_a_sample_fires_one_capsule_by_its_own_numbers():
    numbers = torch.randn(3, 4, 6)
    states = small().alone(numbers)
    assert states.shape == (3, 4, 4, 6)
    fires = states.norm(dim=-1) > 0
    assert torch.equal(fires, torch.eye(4, dtype=torch.bool).expand(3, -1, -1))
    torch.testing.assert_close(unsquash(states[1, 2, 2]), numbers[1, 2])


def test_the_restricted_domain_is_the_half_of_the_sphere_that_was_visited():
    model, numbers = small(), torch.randn(50, 4, 6)
    model.visited(0).copy_(torch.randn(4, 6))
    turned = model.restrict(numbers)
    along = (turned * model.visited()).sum(-1)
    assert (along >= 0).all() and ((numbers * model.visited()).sum(-1) < 0).any()
    torch.testing.assert_close(turned.abs(), numbers.abs())
    assert torch.equal(model.restrict(-numbers), turned)  # x and -x are the same sample there


def test_plain_numbers_are_not_turned_around_but_moved():
    model, numbers = small(n_plain=2), torch.randn(50, 4, 6)
    model.visited(0).copy_(torch.randn(4, 6))
    turned = model.restrict(numbers)
    torch.testing.assert_close(turned[..., 4:], numbers[..., 4:] + model.visited()[:, 4:])
    assert ((turned[..., :4] * model.visited()[:, :4]).sum(-1) >= 0).all()


def test_pictures_are_as_loud_as_training_images_were():
    model = small()
    model.loudness(0).fill_(3.0)
    states = model.alone(torch.randn(2, 4, 6)).flatten(0, 1)
    sums = unsquash(model.decode(states))
    torch.testing.assert_close(sums.flatten(1).norm(dim=1), torch.full((8,), 3.0), rtol=1e-3, atol=1e-3)


def test_to_the_letter_decoded_capsules_are_as_u_makes_them():
    """z_i = sum over j of e_ji U_ji x_j, from even couplings, and no factor."""
    model = small(loud=False)
    model.loudness(0).fill_(3.0)
    states = model.alone(torch.randn(2, 4, 6)).flatten(0, 1)
    assert model.decoders[0].rule.start == "zero" and small().decoders[0].rule.start == "lengths"
    sums = model.decoders[0].phase(states).sums
    torch.testing.assert_close(model.decode(states), squash(sums))


def test_channels_that_cannot_be_cut_are_refused():
    with pytest.raises(ValueError, match="12 channels cannot be cut into capsules of 8"):
        small(channels=12)


def test_neurons_show_themselves_as_capsules_of_one_number():
    model, images = NeuronNet((1, 16, 16), channels=16, kernel=5, width=7).eval(), torch.rand(6, 1, 16, 16)
    model.standardise(images)
    visible = model.visible(images)
    torch.testing.assert_close(visible.mean(0), torch.zeros_like(visible[0]), atol=1e-5, rtol=0)
    assert visible.square().mean().item() == pytest.approx(1, abs=1e-4)
    assert model(images).poses.shape == (6, 7, 1)
    assert model.reconstruct(model(images).poses).shape == images.shape
    with pytest.raises(ValueError, match=re.escape("form must be one of neurons, linear; got 'x'")):
        NeuronNet(form="x")


def test_what_the_bottleneck_keeps_whole_is_drawn_whole():
    """A linear bottleneck as wide as the maps, set to pass them on."""
    model, images = (
        NeuronNet((1, 12, 12), form="linear", channels=4, kernel=5, width=16).eval(),
        torch.rand(2, 1, 12, 12),
    )
    with torch.no_grad():
        model.weight.copy_(torch.eye(16)), model.back.copy_(torch.eye(16))
    torch.testing.assert_close(model.reconstruct(model(images).poses), model.autoencoder(images).sigmoid())
