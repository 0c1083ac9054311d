import re

import pytest
import torch
from torch import nn

from torchcaps.layers import Capsules, EMCapsules
from torchcaps.ops import DENSITIES, em_routing, own_output_prior

SHAPES = {"none": (6, 3), "inputs": (3,), "all": ()}
INF = float("inf")


def layer_with(sharing="none", **options):
    """Betas of zero hide mistakes, so they are drawn."""
    layer = EMCapsules(6, None if sharing == "all" else 3, 2, 4, 5, sharing=sharing, **options)
    for beta in (layer.beta_use, layer.beta_ignore):
        if beta is not None:
            nn.init.normal_(beta)
    return layer


def capsules_of(rng, n_in=6, batch=(2,)):
    return Capsules.scored(torch.randn(*batch, n_in, 2, 4, generator=rng), torch.randn(*batch, n_in, generator=rng))


@pytest.mark.parametrize("sharing", ["none", "inputs"])
@pytest.mark.parametrize("density", DENSITIES)
def test_it_is_the_op_on_its_weights(sharing, density, rng):
    layer, capsules = layer_with(sharing, density=density), capsules_of(rng)
    assert layer.weight.shape == (*SHAPES[sharing], 4, 5)
    assert layer.bias.shape == (*SHAPES[sharing], 2, 5)
    assert layer.beta_use.shape == layer.beta_ignore.shape == SHAPES[sharing]
    parameters = layer.weight, layer.bias, layer.beta_use, layer.beta_ignore
    wanted = em_routing(capsules.score, capsules.poses, *parameters, density=density)
    found = layer(capsules)
    assert torch.equal(found.poses, wanted.poses) and torch.equal(found.score, wanted.scores)
    *_, last = layer.steps(capsules)
    torch.testing.assert_close(last.scores, wanted.scores)
    assert last.used.shape == (2, 6, 3)


@pytest.mark.parametrize("n_in", [1, 2, 9])
def test_with_one_transform_for_all_there_are_as_many_outputs_as_inputs(n_in, rng):
    layer, capsules = EMCapsules(None, None, 2, 4, 5, sharing="all", init="paper"), capsules_of(rng, n_in)
    found = layer(capsules)
    assert found.poses.shape == (2, n_in, 2, 5) and found.activity.shape == (2, n_in)
    betas = torch.zeros(n_in), torch.zeros(n_in)
    prior = own_output_prior(capsules.score)
    assert torch.equal(
        found.poses, em_routing(capsules.score, capsules.poses, layer.weight, layer.bias, *betas, prior=prior).poses
    )
    if n_in > 1:
        assert (found.poses[:, 0] - found.poses[:, 1]).abs().max() > 1e-3  # the symmetry is broken


def test_masks_go_on_to_the_next_layer_where_every_input_has_its_output(rng):
    first, second = layer_with("all").double(), EMCapsules(6, 3, 2, 5, 5, sharing="inputs").double()
    first.n_in = second.n_in = None
    some = capsules_of(rng)
    capsules = Capsules.scored(some.poses.double(), some.score.double().index_fill(1, torch.tensor([4, 5]), -INF))
    between = first(capsules)
    assert (between.score[:, 4:] == -INF).all() and between.score[:, :4].isfinite().all()
    cut = Capsules.scored(capsules.poses[:, :4], capsules.score[:, :4])
    torch.testing.assert_close(second(between), second(first(cut)))


def test_costs_may_be_separate_tied_or_none(rng):
    capsules = capsules_of(rng)
    whole, tied, free = (layer_with(cost=cost) for cost in ("separate", "tied", "none"))
    sizes = [sum(p.numel() for p in layer.parameters()) for layer in (whole, tied, free)]
    assert sizes[0] - 18 == sizes[1] == sizes[2]
    for layer, beta_ignore in ((tied, tied.beta_use), (free, torch.zeros(6, 3))):
        wanted = em_routing(capsules.score, capsules.poses, layer.weight, layer.bias, layer.beta_use, beta_ignore)
        assert torch.equal(layer(capsules).score, wanted.scores)


def test_poses_alone_are_there_for_certain(rng):
    layer, poses = layer_with(), capsules_of(rng).poses
    assert torch.equal(layer(poses).poses, layer(Capsules.scored(poses, torch.full((2, 6), INF))).poses)


@pytest.mark.parametrize("batch", [(), (1,), (2, 3)])
def test_it_takes_any_leading_axes(batch, rng):
    found = layer_with()(capsules_of(rng, batch=batch))
    assert found.poses.shape == (*batch, 3, 2, 5) and found.activity.shape == (*batch, 3)


def test_it_starts_like_the_authors_code():
    layer = EMCapsules(64, 64, 4, 4, 4, init="paper")
    assert layer.weight.std().item() == pytest.approx(1 / 4, rel=0.03)
    assert not any(parameter.any() for parameter in (layer.bias, layer.beta_use, layer.beta_ignore))
    assert EMCapsules(6, 3, 2, 4, 5, bias=False).bias is None


@pytest.mark.parametrize("sharing", SHAPES)
def test_every_sharing_learns_a_few_samples_by_heart(sharing, rng):
    """Which of three kinds of capsules is there: cross entropy of the scores."""
    layers = [layer_with(sharing), *([EMCapsules(6, 3, 2, 5, 5)] if sharing == "all" else [])]
    model = nn.Sequential(*layers)
    capsules, labels = capsules_of(rng, batch=(6,)), torch.arange(6) % 3
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(40):
        loss = nn.functional.cross_entropy(model(capsules).logit, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.4 * losses[0], losses


def test_it_exports_with_a_free_batch_and_a_free_number_of_inputs(rng):
    layer, free = EMCapsules(None, 3, 2, 4, 5, sharing="inputs"), torch.export.Dim.AUTO
    program = torch.export.export(layer, (torch.randn(2, 6, 2, 4),), dynamic_shapes=({0: free, 1: free},))
    poses = torch.randn(5, 9, 2, 4, generator=rng)
    torch.testing.assert_close(program.module()(poses), layer(poses))


def test_the_backend_is_handed_on_and_named():
    with pytest.raises(ValueError, match="backend must be auto"):
        EMCapsules(6, 3, 2, 4, 5, backend="magic")(torch.randn(6, 2, 4))
    assert EMCapsules(6, 3, 2, 4, 5).backend_here() == "reference"
    assert EMCapsules(None, None, 2, 4, 5, sharing="all", backend="reference").backend_here() == "reference"


@pytest.mark.parametrize("shape", [(2, 1, 2, 4), (2, 7, 2, 4), (2, 6, 1, 4), (2, 6, 2, 1), (2, 4)])
def test_other_shapes_are_refused(shape):
    message = f"EMCapsules expects [..., 6 capsules, 2 rows, 4 dimensions each], or vectors of 8; got {list(shape)}"
    with pytest.raises(ValueError, match=re.escape(message)):
        EMCapsules(6, 3, 2, 4, 5)(torch.ones(shape))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_in": None}, "one transform per pair needs to know n_in; give it, or share with sharing='inputs'"),
        ({"n_out": None}, "n_out may be None only with sharing='all'; give a number"),
        ({"sharing": "all"}, "one transform for all makes as many outputs as inputs; give n_out=None, got 3"),
        ({"sharing": "types"}, "sharing must be one of none, places, inputs, all; got 'types'"),
        ({"cost": "free"}, "cost must be one of separate, tied, none; got 'free'"),
        ({"density": "cauchy"}, "density must be one of gaussian, student-t, laplace, k-means; got 'cauchy'"),
    ],
)
def test_what_cannot_be_built_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        EMCapsules(**{"n_in": 6, "n_out": 3, "rows": 2, "d_in": 4, "d_out": 5} | options)


def test_it_prints_what_it_is():
    wanted = "EMCapsules(Nonex2x4 -> 3x2x5, n_iters=3, sharing=inputs, cost=tied, density=gaussian)"
    assert repr(EMCapsules(None, 3, 2, 4, 5, sharing="inputs", cost="tied")) == wanted
