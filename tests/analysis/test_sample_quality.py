"""Measures of generated images, on images whose answer is known."""

import pytest
import torch

from torchcaps.analysis import sample_quality
from torchcaps.data import Labelled, load
from torchcaps.layers import ExpertCapsules
from torchcaps.papers import RECIPES

CPU = torch.device("cpu")


def test_the_frechet_distance_of_gaussians_is_the_formula(rng):
    """Two clouds made to have exactly these means and covariances, which do not commute."""
    exact = torch.randn(400, 3, generator=rng, dtype=torch.float64)
    exact = exact - exact.mean(0)
    white = exact @ torch.linalg.inv(torch.linalg.cholesky(exact.T.cov())).T
    root_1 = torch.tensor([[2.0, 0, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.float64)
    root_2 = torch.tensor([[1.0, 0, 0], [0, 3, 0], [0, 1, 1]], dtype=torch.float64)
    one, other = white @ root_1.T + 1, white @ root_2.T
    both = (root_1 @ root_1.T) @ (root_2 @ root_2.T)
    root = torch.linalg.eigvals(both).sqrt().sum().real
    wanted = 3 + (root_1 @ root_1.T).trace() + (root_2 @ root_2.T).trace() - 2 * root
    assert sample_quality.frechet_distance(one, other) == pytest.approx(wanted.item(), rel=1e-6)
    assert sample_quality.frechet_distance(one, one) == pytest.approx(0, abs=1e-6)


def test_purity_by_hand():
    """Capsule 0 draws eight sevens and two ones, capsule 1 every class alike."""
    classes = torch.stack([torch.tensor([7] * 8 + [1] * 2), torch.arange(10)], dim=1)
    found = sample_quality.class_purity(classes, 10)
    assert found["modal_class"][0] == 7 and found["modal_share"] == pytest.approx([0.8, 0.1])
    assert (found["n_pure"], found["n_classes_pure"], found["n_classes_modal"]) == (1, 1, 2)
    assert found["entropy_nats"] == pytest.approx([0.5004, 2.3026], abs=1e-4)


def test_a_negative_is_known_by_its_correlation_with_the_mean(rng):
    mean = torch.rand(1, 8, 8, generator=rng)
    pictures = torch.stack([mean, 1 - mean, 0.2 * mean + 0.7, torch.rand(1, 8, 8, generator=rng) * 0.1 - 0.5 * mean])
    assert sample_quality.inverted(pictures, mean).tolist() == [False, True, False, True]


def test_the_spread_is_nothing_for_a_capsule_that_draws_one_picture(rng):
    """Capsule 0 draws one image; capsule 1 two in turn, which differ by 2 in one pixel and so lie 1 from their mean."""
    pictures = torch.rand(1, 2, 1, 4, 4, generator=rng).repeat(6, 1, 1, 1, 1)
    pictures[::2, 1, 0, 2, 3] += 2
    assert sample_quality.spread(pictures).tolist() == pytest.approx([0, 1], abs=1e-6)


@pytest.mark.parametrize("at_once", [1, 7, 5_000])
def test_the_nearest_image_is_found_across_parts(at_once, rng):
    images = torch.randint(0, 256, (30, 1, 4, 4), generator=rng, dtype=torch.uint8)
    pictures = images[[3, 17]].float() / 255
    pictures[1, 0, 0, 0] += 0.25
    found = sample_quality.nearest_distance(pictures, images, at_once)
    assert found[0].item() == pytest.approx(0, abs=2e-3)
    others = torch.cdist(pictures.flatten(1), images.flatten(1) / 255).amin(1)
    torch.testing.assert_close(found, others, atol=2e-3, rtol=0)


def test_a_linear_probe_reads_what_is_there_and_nothing_more(rng):
    labels = torch.arange(200) % 4
    images = torch.randint(0, 40, (200, 1, 2, 2), generator=rng, dtype=torch.uint8)
    images[torch.arange(200), 0, labels // 2, labels % 2] = 200
    data = Labelled(images, labels)
    assert sample_quality.linear_probe(lambda x: x, data, data, CPU) == 100
    blind = sample_quality.linear_probe(lambda x: x.mean((1, 2, 3), keepdim=True), data, data, CPU)
    assert blind < 60


def test_fewer_pictures_than_features_are_whitened_alike(rng):
    """Thirty images span 29 directions: each has variance 1 in them, whichever of the two matrices is used."""
    features = torch.randn(30, 50, generator=rng) @ torch.randn(50, 50, generator=rng)
    for n_features, n_kept in ((50, 29), (20, 20)):
        some = features[:, :n_features]
        mean, whiten = sample_quality._whitening(some)
        assert whiten.shape == (n_features, n_kept)
        white = ((some - mean) @ whiten).double()
        torch.testing.assert_close(white.T @ white / 30, torch.eye(n_kept, dtype=torch.float64), atol=1e-3, rtol=0)


@pytest.mark.slow
def test_the_judge_knows_real_pictures_and_learns_from_training_images_alone():
    train, test = (load("generated-16", part) for part in ("train", "test"))
    judge = sample_quality.train_judge(train, test, CPU, 0, steps=15)
    same, other = (
        sample_quality.train_judge(train, Labelled(test.images[:8], labels), CPU, 0, 1)
        for labels in (test.labels[:8], test.labels[1:9])
    )
    assert all(torch.equal(a, b) for a, b in zip(other.net.parameters(), same.net.parameters(), strict=True))
    assert judge.error_percent < 50
    classes, features = judge(test.images.float() / 255)
    assert 100 * (classes != test.labels).double().mean().item() == pytest.approx(judge.error_percent)
    assert features.shape == (len(test.labels), 128)


def test_the_untrained_layer_is_the_same_one_with_other_weights():
    """As many numbers off the sphere, the same routing; weights by the seed alone."""
    layer = ExpertCapsules(6, 4, 3, 5, n_iters=2, over="outputs", start="lengths", n_plain=2)
    fresh, again, other = (sample_quality.untrained_like(layer, seed) for seed in (1, 1, 2))
    assert repr(fresh) == repr(layer) and "2 of them plain" in repr(layer)
    assert torch.equal(fresh.weight, again.weight) and not torch.equal(fresh.weight, other.weight)
    assert not torch.equal(fresh.weight, layer.weight)


@pytest.mark.slow
def test_a_study_tells_everything_that_the_table_shows():
    model = RECIPES["smoke/experts"].make().build()
    train = load("generated-16", "train")
    first = Labelled(train.images[:60], train.labels[:60])
    found = sample_quality.study(model, first, first, CPU, 0, 3, 5)
    shown = RECIPES["hauser2019/mnist"].claim.beside
    assert {name.removeprefix("extras.") for name in shown} <= set(found)
    assert len(found["restricted_modal_share"]) == len(found["restricted_spread"]) == 4 and found["n_pictures"] == 12
    pixels = first.images.double().flatten(1) / 255
    classes = [pixels[first.labels == label] for label in first.labels.unique()]
    assert found["test_spread"] == pytest.approx(
        [(own - own.mean(0)).square().sum(1).mean().sqrt().item() for own in classes], rel=1e-4
    )
    assert found == sample_quality.study(model, first, first, CPU, 0, 3, 5)  # one seed, one answer
