import re

import pytest
import torch
from torch import nn

from torchcaps.layers import Capsules, LazyRoutedCapsules
from torchcaps.ops import LazyWeights, lazy_routing

INF = float("inf")


def test_it_is_the_op_on_its_weights(rng):
    layer, poses = LazyRoutedCapsules(6, 3, 4, 5, 3), torch.randn(2, 6, 4, generator=rng)
    nn.init.normal_(layer.score_bias)
    scores = torch.einsum("bid,id->bi", poses, layer.score) / 6**0.5 + layer.score_bias
    weights = LazyWeights(*(getattr(layer, name) for name in LazyWeights._fields))
    wanted = lazy_routing(scores, poses, weights, layer.beta_use, layer.beta_ignore, 3)
    found = layer(poses)
    torch.testing.assert_close(found, Capsules.scored(wanted.poses, wanted.credit.sum(-2)))
    torch.testing.assert_close(layer.credit(poses), wanted.credit)
    *_, last = layer.steps(poses)
    torch.testing.assert_close(last.poses, wanted.poses)


@pytest.mark.parametrize("n_in", [1, 6, 50])
def test_without_n_in_any_number_of_inputs_will_do(n_in, rng):
    layer, poses = LazyRoutedCapsules(None, 3, 4, 5), torch.randn(2, n_in, 4, generator=rng)
    found = layer(poses)
    assert found.poses.shape == (2, 3, 5) and found.activity.shape == (2, 3)
    order = torch.randperm(n_in, generator=rng)
    torch.testing.assert_close(layer(poses[:, order]), found)


@pytest.mark.parametrize("n_in", [6, None])
def test_a_masked_input_is_as_good_as_not_there(n_in, rng):
    layer, poses = LazyRoutedCapsules(n_in, 3, 4, 5), torch.randn(2, 6, 4, generator=rng)
    score = torch.full((2, 6), INF)
    score[:, 4:] = -INF
    found = layer(Capsules.scored(poses, score))
    torch.testing.assert_close(
        layer(Capsules.scored(poses.index_fill(1, torch.tensor([4, 5]), float("nan")), score)), found
    )
    assert (layer.credit(Capsules.scored(poses, score))[:, 4:] == 0).all()
    if n_in is None:
        torch.testing.assert_close(layer(poses[:, :4]), found)


def test_an_input_counts_by_its_activity(rng):
    layer, poses = LazyRoutedCapsules(6, 3, 4, 5), torch.randn(2, 6, 4, generator=rng)
    half = layer(Capsules.scored(poses, torch.zeros(2, 6)))
    torch.testing.assert_close(half, layer(poses / 2))


def test_outputs_are_of_order_one_whatever_the_length(rng):
    for n_in in (10, 1000):
        found = LazyRoutedCapsules(n_in, 8, 16, 12)(torch.randn(4, n_in, 16, generator=rng)).poses
        torch.testing.assert_close(found.mean(-1), torch.zeros(4, 8), atol=1e-4, rtol=0)
        torch.testing.assert_close(found.var(-1, correction=0), torch.ones(4, 8), atol=1e-2, rtol=0)


def test_a_stack_learns_a_few_sequences_by_heart(rng):
    """Single numbers at the end are the classes' logits."""
    model = nn.Sequential(LazyRoutedCapsules(None, 8, 4, 6), LazyRoutedCapsules(8, 3, 6, 1))
    poses, labels = torch.randn(6, 20, 4, generator=rng), torch.arange(6) % 3
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(40):
        loss = nn.functional.cross_entropy(model(poses).poses.squeeze(-1), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0], losses


def test_it_exports_with_a_free_batch_and_a_free_number_of_inputs(rng):
    layer, free = LazyRoutedCapsules(None, 3, 4, 5), torch.export.Dim.AUTO
    program = torch.export.export(layer, (torch.randn(2, 6, 4),), dynamic_shapes=({0: free, 1: free},))
    poses = torch.randn(5, 9, 4, generator=rng)
    torch.testing.assert_close(program.module()(poses), layer(poses))


@pytest.mark.parametrize("shape", [(2, 1, 4), (2, 7, 4), (2, 6, 1), (6,)])
def test_other_shapes_are_refused(shape):
    message = f"LazyRoutedCapsules expects [..., 6 capsules, 4 dimensions each], got {list(shape)}"
    with pytest.raises(ValueError, match=re.escape(message)):
        LazyRoutedCapsules(6, 3, 4, 5)(torch.ones(shape))


def test_it_prints_what_it_is():
    assert repr(LazyRoutedCapsules(6, 3, 4, 5)) == "LazyRoutedCapsules(6x4 -> 3x5, n_iters=2, normalise=True)"
