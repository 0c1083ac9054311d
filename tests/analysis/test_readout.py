"""The regression finds what a pose holds and nothing else."""

import pytest
import torch
from torch.nn.functional import one_hot

from torchcaps.analysis.readout import CHOOSE, FIT, SCORE, deviations, explain, fit_ridge, r_squared, split


def test_to_know_the_class_earns_nothing_even_where_factors_depend_on_it(rng):
    classes = torch.arange(2000) % 4
    factors = 10 * classes[:, None].double() + torch.randn(2000, 1, generator=rng).double()
    parts = torch.arange(2000) // 4 % 3
    assert explain(one_hot(classes).double(), classes, factors, parts).r2.item() == pytest.approx(0, abs=0.01)
    assert explain(factors, classes, factors, parts).r2.item() == pytest.approx(1, abs=1e-3)


def test_every_class_has_a_space_of_its_own(rng):
    """The same number means left in one class and right in the other: one regression for both would find nothing."""
    classes, factors = torch.arange(2000) % 2, torch.randn(2000, 1, generator=rng).double()
    poses, parts = factors * (1 - 2 * classes[:, None]), torch.arange(2000) // 2 % 3
    assert explain(poses, classes, factors, parts).r2.item() > 0.999
    assert explain(poses, torch.zeros_like(classes), factors, parts).r2.item() < 0.02


def test_a_unit_that_is_dead_in_the_fitted_pictures_does_not_shout_in_the_others(rng):
    classes, factors = torch.arange(900) % 3, torch.randn(900, 1, generator=rng).double()
    parts = torch.arange(900) // 3 % 3
    unit = torch.randn(900, generator=rng).double()
    silent = (classes == 0) & (parts != SCORE)
    unit[silent] = 1e-5 * unit[silent]
    assert explain(torch.stack([factors[:, 0], unit], dim=1), classes, factors, parts).r2.item() > 0.95


def test_a_class_that_hardly_ever_wins_is_predicted_by_the_mean(rng):
    """It was never fitted, and it neither fails nor spoils the rest."""
    classes, factors = torch.zeros(600, dtype=torch.long), torch.randn(600, 1, generator=rng).double()
    parts = torch.arange(600) % 3
    classes[(parts == SCORE).nonzero()[:20]] = 1
    assert explain(1e6 * factors, classes, factors, parts).r2.item() == pytest.approx(1 - 20 / 200, abs=0.08)


def test_ridge_by_hand():
    """x = -1, 0, 1 and y = 1, 2, 6: the slope is 5 / (2 + strength) about the mean of 3."""
    x, y = torch.tensor([[9.0], [10.0], [11.0]]).double(), torch.tensor([[1.0], [2.0], [6.0]]).double()
    for strength, slope in ((0.0, 2.5), (3.0, 1.0), (8.0, 0.5)):
        said = fit_ridge(x, y).predict(torch.tensor([[14.0]]).double(), torch.tensor([strength]).double())
        assert said.item() == pytest.approx(3 + 4 * slope)


def test_ridge_is_the_solution_of_its_normal_equations(rng):
    x, y = torch.randn(50, 7, generator=rng).double(), torch.randn(50, 3, generator=rng).double()
    strengths = torch.tensor([0.1, 1.0, 100.0]).double()
    said = fit_ridge(x, y).predict(x, strengths)
    centred, target = x - x.mean(0), y - y.mean(0)
    for k, strength in enumerate(strengths):
        weights = torch.linalg.solve(centred.T @ centred + strength * torch.eye(7).double(), centred.T @ target[:, k])
        torch.testing.assert_close(said[:, k], y[:, k].mean() + centred @ weights)


def test_r_squared_by_hand():
    """Two classes with means 1 and 11 of what is judged; a strength without end predicts the fitted means 0 and 10."""
    classes = torch.tensor([0] * 22 + [1] * 22)
    factors = torch.tensor([-1.0, 1.0] * 10 + [0.0, 2.0] + [9.0, 11.0] * 10 + [10.0, 12.0]).double()[:, None]
    judged = torch.arange(44) % 22 >= 20
    strengths = torch.tensor([[0.0], [1e12]]).double()
    found = r_squared(factors, classes, factors, ~judged, judged, strengths)
    assert found.flatten().tolist() == pytest.approx([1.0, 1 - 8 / 4])


def test_deviations_are_about_the_mean_of_each_class():
    poses = torch.tensor([[0.0, 5.0], [2.0, 5.0], [100.0, 5.0], [106.0, 5.0]]).double()
    assert deviations(poses, torch.tensor([4, 4, 7, 7])).tolist() == pytest.approx([5**0.5, torch.inf])


def test_scored_digits_are_never_fitted():
    labels = torch.arange(500) % 10
    part = split(labels, 0)
    assert part.bincount().tolist() == [200, 50, 250]
    for label in range(10):
        counts = part[labels == label].bincount(minlength=3)
        assert counts[FIT] in range(19, 22) and counts[CHOOSE] in range(4, 7) and counts[SCORE] in range(24, 27)
