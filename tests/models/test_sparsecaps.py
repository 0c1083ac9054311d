"""Sparse unsupervised capsules: sizes by hand, what the mask does to forward, features and gradients, and who wins."""

import re

import pytest
import torch

from torchcaps.data import load
from torchcaps.models import CapsNet, SparseCaps, SupervisedCaps
from torchcaps.ops import length, reconstruction_loss, routing_support

SMALL = {"channels": 8, "kernel": 3, "n_types": 2, "d_primary": 4, "primary_kernel": 3, "hidden": (16, 8)}
LATENT = SMALL | {"n_latent": 5, "d_latent": 6, "frequencies": (0.1, 0.4)}


def n_parameters(model, **options) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in model(**options).parameters())


def by_hand(places: int, pixels: int, n_latent: int = 16) -> int:
    """CapsNet's layers with so many capsules of 16 behind 32 types of 8 at so many places."""
    conv, primary = 256 * 81 + 256, 256 * 256 * 81 + 256
    latent = 32 * places * n_latent * 8 * 16 + n_latent * 16
    decoder = (n_latent * 16 * 512 + 512) + (512 * 1024 + 1024) + (1024 * pixels + pixels)
    return conv + primary + latent + decoder


@pytest.mark.parametrize(("size", "places", "count"), [(28, 6 * 6, 9_149_712), (40, 12 * 12, 17_064_000)])
@pytest.mark.parametrize("preset", ["sparse", "dense"])
def test_parameter_counts(size, places, count, preset):
    assert n_parameters(SparseCaps, image=(1, size, size), preset=preset) == count == by_hand(places, size * size)


@pytest.mark.parametrize(("size", "places", "count"), [(28, 6 * 6, 8_215_728), (40, 12 * 12, 13_475_808)])
def test_the_supervised_one_has_the_size_of_capsnet(size, places, count):
    assert n_parameters(SupervisedCaps, image=(1, size, size)) == count == by_hand(places, size * size, n_latent=10)


def test_sizes_are_the_papers():
    with torch.device("meta"):
        model = SparseCaps()
        capsules = model(torch.empty(2, 1, 28, 28))
        features = model.features(torch.empty(2, 1, 28, 28))
    assert capsules.poses.shape == (2, 16, 16)
    assert features.masked.shape == features.pre_mask.shape == (2, 256)
    assert model.net.grid == (6, 6) and model.mask.n == 16


def test_forward_is_the_capsnet_times_the_mask(rng):
    model, images = SparseCaps((1, 12, 12), **LATENT), torch.rand(3, 1, 12, 12, generator=rng)
    *_, last = model.net.steps(images)
    support = routing_support(last.couplings, 2)
    mask = model.mask.mask(support)
    capsules = model(images)
    torch.testing.assert_close(capsules.poses, last.poses * mask.unsqueeze(-1))
    torch.testing.assert_close(capsules.activity, length(capsules.poses))
    assert ((mask == 1).sum(-1) == 1).all() and ((mask == 0).sum(-1) == 3).all()  # exp(-12 rank / 4): 1, 0.05, 0, 0, 0
    latent = model.latent(images)
    torch.testing.assert_close(latent.poses, last.poses)
    torch.testing.assert_close(latent.support, support)
    assert torch.equal(latent.mask, mask)


def test_support_by_runs_decides_the_mask_where_it_is_asked_for(rng):
    images = torch.rand(8, 1, 12, 12, generator=rng)
    model, plain = SparseCaps((1, 12, 12), support="runs", **LATENT), SparseCaps((1, 12, 12), **LATENT)
    plain.load_state_dict(model.state_dict())
    *_, last = model.net.steps(images)
    latent = model.latent(images)
    torch.testing.assert_close(latent.support, routing_support(last.couplings, 2, "runs"))
    assert torch.equal(latent.mask, model.mask.mask(latent.support)) and not torch.equal(
        latent.mask, plain.latent(images).mask
    )
    torch.testing.assert_close(latent.poses, plain.latent(images).poses)  # the routing itself is the same
    for each in (model, plain):  # whichever decides, both can be told
        told = each.supports(images)
        torch.testing.assert_close(told["runs"], latent.support)
        torch.testing.assert_close(told["places"], plain.latent(images).support)


def test_features_are_the_capsules_in_a_row_with_and_without_the_mask(rng):
    model, images = SparseCaps((1, 12, 12), **LATENT).eval(), torch.rand(3, 1, 12, 12, generator=rng)
    features, latent = model.features(images), model.latent(images)
    assert torch.equal(features.masked, model(images).poses.flatten(1))
    assert torch.equal(features.pre_mask, latent.poses.flatten(1))
    assert not torch.equal(features.masked, features.pre_mask)


def test_dense_is_the_capsnet_without_a_mask(rng):
    model, images = SparseCaps((1, 12, 12), preset="dense", **LATENT), torch.rand(3, 1, 12, 12, generator=rng)
    assert not list(model.buffers())
    torch.testing.assert_close(model(images), model.net(images))
    assert (model.latent(images).mask == 1).all()
    assert torch.equal(*model.features(images))
    wide = SparseCaps((1, 12, 12), sharpness=0.0, **LATENT)  # a mask that keeps all is none
    wide.net.load_state_dict(model.net.state_dict())
    torch.testing.assert_close(wide(images), model(images))


def test_the_supervised_one_is_a_capsnet_whose_mask_keeps_the_longest(rng):
    model, images = SupervisedCaps((1, 12, 12), 3, **SMALL), torch.rand(3, 1, 12, 12, generator=rng)
    capsules, latent = model(images), model.latent(images)
    assert isinstance(model, CapsNet)
    torch.testing.assert_close(latent.poses, capsules.poses)
    assert torch.equal(latent.mask.argmax(-1), capsules.activity.argmax(-1))
    assert (latent.mask.sum(-1) == 1).all()
    assert latent.support.shape == (3, 3)


def test_counting_is_for_calls_in_training(rng):
    model, images = SparseCaps((1, 12, 12), **LATENT), torch.rand(4, 1, 12, 12, generator=rng)
    model.latent(images), model.features(images)
    model.eval()(images)
    assert model.mask.n_batches == 0
    model.train()(images)
    assert model.mask.n_batches == 1
    assert model.mask.frequency.sum() == 1


def test_gradient_reaches_every_parameter_but_only_the_kept_capsules(rng):
    model, images = SparseCaps((1, 12, 12), **LATENT), torch.rand(6, 1, 12, 12, generator=rng)
    latent = model.latent(images)
    latent.poses.retain_grad()
    reconstruction_loss(model.reconstruct(latent.masked().poses), images).sum().backward()
    assert torch.equal(latent.poses.grad.abs().sum(-1) > 0, latent.mask > 0)
    assert {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()} == set()


def test_the_decoder_draws_from_all_capsules_it_is_given(rng):
    model, poses = SparseCaps((1, 12, 12), **LATENT), torch.rand(2, 5, 6, generator=rng)
    assert torch.equal(model.reconstruct(poses), model.net.decoder(poses, torch.ones(2, 5)))


@pytest.mark.slow
@pytest.mark.parametrize("support", ["places", pytest.param("runs", marks=pytest.mark.slow)])
def test_training_compiles_whole_with_its_statistics(support, fresh_dynamo, rng):
    """A compiled step changes buffers in place, and weights get the same gradients."""
    torch.manual_seed(0)
    eager, compiled = (SparseCaps((1, 12, 12), **LATENT, boost_every=2, n_iters=2, support=support) for _ in range(2))
    compiled.load_state_dict(eager.state_dict())

    def loss(model, images):
        return reconstruction_loss(model.reconstruct(model(images).poses), images).mean()

    program = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for _ in range(4):
        images = torch.rand(4, 1, 12, 12, generator=rng)
        for step, model in ((program, compiled), (loss, eager)):
            step(model, images).backward()
    assert eager.mask.n_batches == 4 and (eager.mask.boost != 1).any()
    for (name, one), (_, other) in zip(compiled.named_buffers(), eager.named_buffers(), strict=True):
        assert torch.equal(one, other), name
    for (name, one), (_, other) in zip(compiled.named_parameters(), eager.named_parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, msg=name)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"preset": "official"}, ValueError, "SparseCaps: preset must be one of sparse, dense; got 'official'"),
        ({"support": "types"}, ValueError, "SparseCaps: support must be one of places, runs; got 'types'"),
        ({"frequencies": (0.5, 0.1)}, ValueError, "RankMask: frequencies"),
        ({"reconstruction": False}, TypeError, "reconstruction"),
        ({"gamma": 12}, TypeError, "gamma"),
    ],
)
def test_what_cannot_be_built_is_refused(options, error, message):
    with torch.device("meta"), pytest.raises(error, match=message):
        SparseCaps(**options)


def test_other_images_are_refused():
    with pytest.raises(ValueError, match=re.escape("SparseCaps expects images [b, 1, 12, 12], got [2, 1, 12, 11]")):
        SparseCaps((1, 12, 12), **LATENT)(torch.rand(2, 1, 12, 11))


# who wins


def winning_shares(boost_step: float) -> torch.Tensor:
    """How often each of four capsules won in the last 80 of 100 small batches of bars and rings."""
    torch.manual_seed(0)
    options = SMALL | {"kernel": 5, "primary_kernel": 5, "n_latent": 4, "frequencies": (0.15, 0.4)}
    model = SparseCaps((1, 16, 16), boost_step=boost_step, boost_every=1, decay=0.9, **options)
    optimiser, images = (
        torch.optim.Adam(model.parameters(), lr=3e-3),
        load("generated-16", "train").images.float() / 255,
    )
    shares = []
    for batch in images[torch.arange(100 * 8) % len(images)].split(8):
        with torch.no_grad():
            shares.append((model.latent(batch).mask == 1).double().mean(0))
        loss = reconstruction_loss(model.reconstruct(model(batch).poses), batch).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return torch.stack(shares[20:]).mean(0)


@pytest.mark.slow
def test_without_boosting_one_capsule_wins_always():
    """Section 2.3 of the paper: few do."""
    shares = winning_shares(boost_step=0.0)
    assert shares.max() > 0.99, shares


def test_with_boosting_every_capsule_comes_to_win():
    shares = winning_shares(boost_step=0.1)
    assert shares.min() > 0.1 and shares.max() < 0.5, shares


def test_the_capsnet_inside_may_have_the_papers_preset_and_transforms_per_type(rng):
    """Its own preset says sparse or dense; that of CapsNet has a name of its own."""
    images = torch.rand(3, 1, 12, 12, generator=rng)
    torch.manual_seed(0)
    plain = SparseCaps((1, 12, 12), **SMALL, capsnet_preset="paper", sharing="places")
    torch.manual_seed(0)
    net = CapsNet((1, 12, 12), 16, d_class=16, **SMALL, preset="paper", sharing="places")
    assert (
        plain.net.preset == "paper"
        and plain.net.primary.share == 1
        and SparseCaps((1, 12, 12), **SMALL).net.primary.share == 2
    )
    assert plain.net.classes.weight.shape == (2, 16, 4, 16)  # a type, a capsule
    torch.testing.assert_close(plain.latent(images).poses, net(images).poses)
    votes = plain.eval()(images)
    assert votes.poses.shape == (3, 16, 16) and votes.poses.isfinite().all()
    with pytest.raises(ValueError, match="CapsNet: preset must be one of official, paper"):
        SparseCaps((1, 12, 12), **SMALL, capsnet_preset="sparse")
