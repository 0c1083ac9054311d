"""One argument swaps the routing of a layer."""

import pytest
import torch

from torchcaps.layers import EM, ROUTINGS, CapsuleLayer, Capsules, Dynamic, EMCapsules, RoutedCapsules
from torchcaps.ops import LOSSES
from torchcaps.train.tasks.classify import Classify
from torchcaps.train.tasks.logits import ClassifyScores
from torchcaps.train.tasks.spread import ClassifySpread


@pytest.mark.parametrize("name", ROUTINGS)
def test_every_routing_takes_and_gives_vectors(name):
    first, second = CapsuleLayer(12, 6, 8, 8, name), CapsuleLayer(6, 3, 8, 16, name)
    found = second(first(Capsules.of(torch.randn(2, 12, 8))))
    assert found.poses.shape == (2, 3, 16) and found.activity.shape == (2, 3)
    assert ((found.activity >= 0) & (found.activity <= 1)).all()
    # the loss that a routing names is the one for what it gives
    assert (found.score is not None) == (ROUTINGS[name].loss != "margin")
    (found.poses.sum() + found.confidence.sum()).backward()
    for layer in (first, second):
        assert all(parameter.grad is not None for parameter in layer.parameters())


def test_every_pair_of_routings_follows_each_other():
    inputs = Capsules.of(torch.randn(2, 12, 8) * 0.3)
    for one in ROUTINGS:
        between = CapsuleLayer(12, 6, 8, 8, one)(inputs)
        for other in ROUTINGS:
            assert CapsuleLayer(6, 3, 8, 8, other)(between).poses.isfinite().all(), (one, other)


def test_options_reach_the_layer():
    assert CapsuleLayer(4, 2, 8, 8, Dynamic(n_iters=1, couplings="leaky")).routed.couplings == "leaky"
    layer = CapsuleLayer(4, 2, 8, 8, EM(rows=2, n_iters=1)).routed
    assert isinstance(layer, EMCapsules) and (layer.rows, layer.d_in, layer.n_iters) == (2, 4, 1)
    assert isinstance(CapsuleLayer(4, 2, 8, 8).routed, RoutedCapsules)


def test_unknown_routings_and_sizes_are_refused():
    with pytest.raises(ValueError, match=r"routing must be one of dynamic, .*; got 'dinamic'"):
        CapsuleLayer(4, 2, 8, 8, "dinamic")
    with pytest.raises(ValueError, match="poses of 4 rows; d_in=6 or d_out=8 is no multiple"):
        CapsuleLayer(4, 2, 6, 8, "em")


@pytest.mark.parametrize(
    ("routing", "task", "right"),
    [
        ("em", Classify(), "ClassifyScores"),
        ("dynamic", ClassifyScores(), "Classify"),
        ("dynamic", ClassifySpread(), "Classify"),
    ],
)
def test_a_loss_that_does_not_fit_the_routing_is_refused(routing, task, right):
    from torchcaps.data.augment import Batch
    from torchcaps.models import DeepCapsNet

    model = DeepCapsNet((1, 16, 16), 3, routing=routing, channels=4, kernel=5, n_types=2, primary_kernel=5)
    batch = Batch(torch.rand(2, 1, 16, 16), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=f"train it by {right}$"):
        task.losses(model, batch)


@pytest.mark.parametrize("name", ROUTINGS)
def test_every_routing_has_a_loss_and_senseless_ones_are_refused(name, rng):
    found = CapsuleLayer(6, 3, 16, 16, routing=name)(0.3 * torch.randn(2, 6, 16, generator=rng))
    present = torch.eye(3)[:2]
    assert LOSSES[ROUTINGS[name].loss](found, present).isfinite().all()
    senseless = ["cross-entropy", "likelihood"] if found.score is None else ["margin"]
    for loss in senseless:
        with pytest.raises(ValueError, match=f"use .*{LOSSES[ROUTINGS[name].loss].__name__}"):
            LOSSES[loss](found, present)
