"""The network of Heinsen 2019, figure 5."""

from math import inf

import pytest
import torch
from torch import nn

from torchcaps.models import EMSentenceNet

SMALL = {"n_layers": 3, "d_embedding": 8, "n_classes": 4, "d_features": 6, "n_parts": 5}


def n_parameters(*args, **options) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in EMSentenceNet(*args, **options).parameters())


@pytest.fixture
def model():
    """Betas of zero hide mistakes, so they are drawn."""
    model = EMSentenceNet(**SMALL)
    for name, parameter in model.named_parameters():
        if "beta" in name or name == "depth":
            nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize(("n_classes", "count"), [(5, 140_480), (2, 138_944)])
def test_parameter_counts_are_the_papers(n_classes, count):
    assert n_parameters(37, 1280, n_classes) == count


def test_parameters_by_hand():
    depth, features = 37 * 1280, (1280 * 64 + 64) + 2 * 64
    parts = 64 * 64 * 2 + 64 * 2 + 2 * 64  # any number of inputs
    classes = 64 * 5 * 2 * 2 + 64 * 5 * 2 + 2 * 64 * 5
    assert n_parameters() == depth + features + parts + classes
    assert n_parameters(depth=False) == features + parts + classes
    assert n_parameters(cost="tied") == n_parameters() - 64 - 64 * 5


def test_every_token_in_every_layer_is_a_capsule(model, rng):
    embeddings = torch.randn(2, 7, 3, 8, generator=rng)
    capsules = model.primary_capsules(embeddings)
    assert capsules.poses.shape == (2, 7 * 3, 1, 6) and capsules.activity.shape == (2, 21)
    torch.testing.assert_close(capsules.poses[1, 4 * 3 + 2, 0], model.features(embeddings[1, 4, 2] + model.depth[2]))
    assert (capsules.score == inf).all()
    found = model(embeddings)
    assert found.poses.shape == (2, 4, 1, 2) and found.activity.shape == (2, 4)


def test_scores_are_the_log_odds_of_being_there(model, rng):
    present = torch.tensor([[1.0, 0.25, 0.0]])
    scores = model.primary_capsules(torch.randn(1, 3, 3, 8, generator=rng), present).score
    torch.testing.assert_close(scores.sigmoid(), present.repeat_interleave(3, dim=1))
    assert (scores[0, :3] == inf).all() and (scores[0, 6:] == -inf).all()


@pytest.mark.parametrize("padding", [0.0, 1e4, float("nan")])
def test_padding_changes_neither_values_nor_gradients(model, padding, rng):
    model = model.double()
    embeddings = torch.randn(2, 5, 3, 8, generator=rng, dtype=torch.float64)
    padded = torch.cat([embeddings, torch.full((2, 4, 3, 8), padding, dtype=torch.float64)], dim=1)
    present = torch.tensor([1] * 5 + [0] * 4).bool().expand(2, 9)
    results = [model(embeddings), model(padded, present)]
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
    found = [torch.autograd.grad(capsules.score.sin().sum(), list(model.parameters())) for capsules in results]
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)


def test_order_of_tokens_does_not_matter_but_that_of_layers_does(model, rng):
    """Position is for the transformer to encode; depth is told by a parameter."""
    embeddings = torch.randn(2, 5, 3, 8, generator=rng)
    wanted = model(embeddings)
    torch.testing.assert_close(model(embeddings.flip(1)), wanted)
    assert not torch.allclose(model(embeddings.flip(2)).score, wanted.score, atol=1e-3)
    model.depth = None
    torch.testing.assert_close(model(embeddings.flip(2)), model(embeddings))


def test_a_gradient_reaches_every_parameter(model, rng):
    nn.functional.cross_entropy(model(torch.randn(6, 5, 3, 8, generator=rng)).logit, torch.arange(6) % 4).backward()
    assert {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()} == set()


def test_it_starts_as_the_paper_says():
    model = EMSentenceNet(3, 256, 5)
    assert not model.depth.any() and not model.parts.beta_use.any()
    assert model.features[0].weight.std().item() == pytest.approx((2 / 256) ** 0.5, rel=0.05)
    assert [type(part) for part in model.features] == [nn.Linear, nn.SiLU, nn.LayerNorm]


def test_steps_end_where_the_model_does(model, rng):
    embeddings = torch.randn(2, 5, 3, 8, generator=rng)
    *_, last = model.steps(embeddings)
    assert last.used.shape == (2, 5, 4)
    torch.testing.assert_close(last.scores, model(embeddings).score)


def test_it_runs_under_autocast(model, rng):
    embeddings = torch.randn(2, 5, 3, 8, generator=rng)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(embeddings)
    assert mixed.poses.dtype == mixed.score.dtype == torch.float32
    torch.testing.assert_close(mixed.score, model(embeddings).score, rtol=0.1, atol=0.3)


def test_it_learns_a_few_sentences_by_heart(rng):
    model, labels = EMSentenceNet(**SMALL), torch.arange(6) % 4
    embeddings, present = torch.randn(6, 5, 3, 8, generator=rng), torch.ones(6, 5)
    present[::2, 3:] = 0
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(40):
        loss = nn.functional.cross_entropy(model(embeddings, present).logit, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0], losses


@pytest.mark.parametrize("shape", [(2, 0, 3, 8), (2, 5, 2, 8), (2, 5, 3, 7), (5, 3, 8)])
def test_other_embeddings_are_refused(model, shape):
    with pytest.raises(
        ValueError, match=r"EMSentenceNet expects embeddings \[b, at least one token, 3 layers, 8 dimensions\], got"
    ):
        model(torch.zeros(shape))


def test_other_masks_are_refused(model):
    with pytest.raises(ValueError, match=r"present must be \[2, 5\], one number per token, got \[2, 4\]"):
        model(torch.zeros(2, 5, 3, 8), torch.ones(2, 4))
