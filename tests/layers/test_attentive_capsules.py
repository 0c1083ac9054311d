"""Layers of three routings: self-attention, self-routing, inverted attention."""

import re

import pytest
import torch
from torch import nn
from torch.nn.functional import logsigmoid, normalize

from torchcaps.layers import Capsules, InvertedCapsules, SelfAttentionCapsules, SelfRoutedCapsules
from torchcaps.ops import inverted_routing, length, self_attention_routing, self_routing

LAYERS = (SelfAttentionCapsules, SelfRoutedCapsules, InvertedCapsules)
INF = float("inf")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_they_are_the_ops_on_their_weights():
    poses, activity = torch.randn(2, 6, 4), torch.rand(2, 6)
    capsules = Capsules(poses, activity)
    layer = SelfAttentionCapsules(6, 3, 4, 5)
    nn.init.normal_(layer.prior)
    found = layer(capsules)
    torch.testing.assert_close(found.poses, self_attention_routing(poses, layer.weight, layer.prior))
    torch.testing.assert_close(found.activity, length(found.poses))
    layer = SelfRoutedCapsules(6, 3, 4, 5)
    found, wanted = layer(capsules), self_routing(activity, poses, layer.weight, layer.route)
    torch.testing.assert_close(found.poses, wanted.poses)
    torch.testing.assert_close(logsigmoid(found.score), wanted.log_activity)
    layer = InvertedCapsules(6, 3, 4, 5, 3)
    found = layer(capsules)
    torch.testing.assert_close(
        found.poses, inverted_routing(poses, layer.weight, 3, scale=layer.scale, bias=layer.bias)
    )
    torch.testing.assert_close(found.score, layer.score(found.poses).squeeze(-1))
    for one in (SelfAttentionCapsules(6, 3, 4, 5), SelfRoutedCapsules(6, 3, 4, 5), layer):
        *_, last = one.steps(capsules)
        torch.testing.assert_close(last.poses, one(capsules).poses)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_masked_input_counts_for_nothing_whatever_it_holds(layer):
    made, poses, score = layer(6, 3, 4, 5), torch.randn(2, 6, 4), torch.randn(2, 6)
    score[:, 2] = -INF
    wanted = made(Capsules.scored(poses, score))
    for other in (9.0, float("nan")):
        found = made(Capsules.scored(poses.index_fill(1, torch.tensor([2]), other), score))
        torch.testing.assert_close(found, wanted)


def test_the_activities_of_self_routing_sum_to_one_and_their_logits_stay_finite():
    layer = SelfRoutedCapsules(6, 3, 4, 5)
    found = layer(torch.randn(4, 6, 4))
    torch.testing.assert_close(found.activity.sum(-1), torch.ones(4))
    nn.init.zeros_(layer.route)
    with torch.no_grad():
        layer.route[..., 0] = 1e3
    certain = layer(torch.ones(1, 6, 4))
    assert certain.score.isfinite().all() and certain.activity.argmax() == 0


@pytest.mark.parametrize("size", [0.3, 0.9])
@pytest.mark.parametrize(("n_in", "n_out"), [(2, 2), (16, 10), (288, 32), (2, 100), (200, 200), (1152, 10)], ids=str)
def test_any_number_of_inputs_and_outputs_starts_alive(n_in, n_out, size):
    poses = normalize(torch.randn(4, n_in, 8), dim=-1) * size
    assert 0.15 < SelfAttentionCapsules(n_in, n_out, 8, 16)(poses).activity.median() < 0.8
    if n_in * n_out < 10_000:
        found = InvertedCapsules(n_in, n_out, 8, 16)(poses)
        assert found.activity.std() > 0.05 and 0.2 < found.activity.median() < 0.8
        (step,) = SelfRoutedCapsules(n_in, n_out, 8, 16).steps(poses)
        assert 0.1 < step.logits.std() < 2 and 0.1 < length(step.poses).median() < 3


@pytest.mark.parametrize("size", [0.01, 30.0])
def test_calibration_takes_inputs_of_any_length(size):
    poses = normalize(torch.randn(8, 32, 8), dim=-1) * size
    for layer in (SelfRoutedCapsules(32, 10, 8, 16), InvertedCapsules(32, 10, 8, 16)):
        returned = layer.calibrate(poses)
        torch.testing.assert_close(layer(poses), returned)
        *_, last = layer.steps(poses)
        assert 0.4 < last.logits.std() < 3


@pytest.mark.parametrize("layer", LAYERS)
def test_shapes_and_silent_inputs_are_refused(layer):
    message = f"{layer.__name__} expects [..., 6 capsules, 4 dimensions each], got [2, 1, 4]"
    with pytest.raises(ValueError, match=re.escape(message)):
        layer(6, 3, 4, 5)(torch.ones(2, 1, 4))
    with pytest.raises(ValueError, match="calibrate: the inputs are all zero or not finite; give a batch"):
        layer(6, 3, 4, 5).calibrate(torch.zeros(2, 6, 4))


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS)
def test_they_export_with_a_free_batch(layer):
    made, free = layer(6, 3, 4, 5), torch.export.Dim.AUTO
    program = torch.export.export(made, (torch.randn(2, 6, 4),), dynamic_shapes=({0: free},))
    poses = torch.randn(5, 6, 4)
    torch.testing.assert_close(program.module()(poses), made(poses))
