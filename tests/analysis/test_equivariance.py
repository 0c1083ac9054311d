"""Factors are found in the poses that hold them, through any model."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from torchcaps.analysis.equivariance import equivariance, pose_of, side_by_side
from torchcaps.analysis.known_digits import FACTORS, RANGES, known_digits
from torchcaps.data import Labelled
from torchcaps.data.augment import Shift, Standardise
from torchcaps.data.sets.generated import generate
from torchcaps.layers import Capsules
from torchcaps.models import Baseline, CapsNet

CPU = torch.device("cpu")
FRAME = (28, 28)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def digits() -> Labelled:
    return Labelled(*generate(500, 28, seeded(3)))


@pytest.fixture(scope="module")
def known(digits):
    """The images that `equivariance` makes of these digits with its own settings."""
    return known_digits(digits, FRAME, seeded(), copies=4)


@pytest.fixture
def drawn_once(known, monkeypatch):
    """Nobody draws these images again: `equivariance` would make the same ones."""
    monkeypatch.setattr("torchcaps.analysis.equivariance.known_digits", lambda *args, **how: known)


class Told(nn.Module):
    """A model that was told its answers, and gives them in the order of the images."""

    image = (1, 28, 28)

    def __init__(self, poses: torch.Tensor, classes: torch.Tensor) -> None:
        super().__init__()
        self.poses, self.classes, self.start = poses, classes, 0

    def pose_features(self, images):
        part = slice(self.start, self.start + len(images))
        self.start += len(images)
        return self.poses[part], self.classes[part]


def linear_poses(
    factors: torch.Tensor, classes: torch.Tensor, rng: torch.Generator, noise: float = 0.01
) -> torch.Tensor:
    """Eight numbers, another mixture of the factors in every class, about another mean."""
    low, high = torch.tensor(list(RANGES.values())).double()[: factors.shape[1]].T
    mix = torch.randn(10, factors.shape[1], 8, generator=rng).double()
    means = torch.randn(10, 8, generator=rng).double()
    told = torch.einsum("nk,nkf->nf", (factors - low) / (high - low), mix[classes])
    return (told + means[classes] + noise * torch.randn(len(factors), 8, generator=rng)).float()


def test_what_a_pose_holds_is_found_and_what_it_does_not_hold_is_not(digits, known, rng):
    poses = linear_poses(known.factors[:, :3], known.labels, rng)
    found = equivariance(Told(poses, known.labels), digits, CPU)
    assert tuple(found.r2) == FACTORS
    assert min(found.r2[name] for name in FACTORS[:3]) > 0.99
    assert max(abs(found.r2[name]) for name in FACTORS[3:]) < 0.03
    assert found.n_features == 8 and found.error_percent == 0


def test_to_know_the_class_earns_nothing(drawn_once, digits, known, rng):
    poses = one_hot(known.labels, 10) + 0.1 * torch.randn(len(known.labels), 10, generator=rng)
    assert max(equivariance(Told(poses, known.labels), digits, CPU).r2.values()) <= 0.02


def test_shuffled_factors_are_not_found(drawn_once, known, digits, rng):
    shuffled = known.factors[torch.randperm(len(known.factors), generator=rng)]
    poses = linear_poses(shuffled, known.labels, rng)
    assert max(equivariance(Told(poses, known.labels), digits, CPU).r2.values()) <= 0.02


def test_labels_decide_who_is_right_but_not_what_is_explained(digits, known, rng):
    poses = linear_poses(known.factors, known.labels, rng)
    wrong = Labelled(digits.images, digits.labels[torch.randperm(len(digits.labels), generator=rng)])
    found = equivariance(Told(poses, known.labels), wrong, CPU)
    assert min(found.r2.values()) > 0.99
    assert found.error_percent == pytest.approx(90, abs=6)


def test_numbers_that_never_change_say_nothing_and_break_nothing(drawn_once, known, digits, rng):
    constant = torch.full((len(known.labels), 3), 0.1)
    alone = equivariance(Told(constant, known.labels), digits, CPU)
    assert all(-0.05 < value <= 0 for value in alone.r2.values())
    poses = linear_poses(known.factors, known.labels, rng)
    beside = equivariance(Told(torch.cat([poses, constant], dim=1), known.labels), digits, CPU)
    assert min(beside.r2.values()) > 0.99


def test_the_same_seed_gives_the_same_numbers(digits):
    model = Baseline(preset="small")
    first, again, other = (equivariance(model, digits, CPU, copies=1, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.r2 != other.r2


def test_the_winning_capsule_gives_the_pose(rng):
    capsules = Capsules(torch.randn(5, 3, 4, generator=rng), torch.rand(5, 3, generator=rng))
    model = nn.Identity()
    model.forward = lambda images: capsules
    poses, classes = pose_of(model, torch.zeros(5, 1, 28, 28))
    assert torch.equal(classes, capsules.activity.argmax(1))
    assert all(torch.equal(poses[n], capsules.poses[n, classes[n]]) for n in range(5))


def test_a_network_without_capsules_gives_what_its_last_layer_sees(digits):
    model, images = Baseline(preset="small").eval(), digits.images[:9] / 255
    poses, classes = pose_of(model, images)
    torch.testing.assert_close(model.classes(poses).argmax(-1), classes)
    torch.testing.assert_close(poses, model.features(images))


@pytest.mark.parametrize("make", [CapsNet, Baseline])
def test_models_are_measured_as_they_are_evaluated_and_left_as_they_were(make, digits):
    small = (
        {"channels": 8, "kernel": 9, "n_types": 2, "reconstruction": False} if make is CapsNet else {"preset": "small"}
    )
    model, seen = make((1, 32, 30), 10, **small), []
    model.register_forward_pre_hook(lambda model, inputs: seen.append((model.training, inputs[0])))
    found = equivariance(model, digits, CPU, augment=(Shift(2), Standardise()), copies=1)
    assert model.training and all(parameter.grad is None for parameter in model.parameters())
    assert not any(training for training, _ in seen)
    images = torch.cat([images for _, images in seen])
    torch.testing.assert_close(images.mean((1, 2, 3)), torch.zeros(len(images)), atol=1e-5, rtol=0)
    assert images.shape[1:] == (1, 32, 30) and len(images) == found.n_fitted + found.n_scored == 500 - found.n_left_out
    assert found.n_features == (16 if make is CapsNet else 32)


def test_a_table_puts_models_side_by_side_and_json_holds_a_result(drawn_once, digits, known):
    one = equivariance(Told(known.factors.float(), known.labels), digits, CPU)
    other = replace(one, r2=dict.fromkeys(FACTORS, -0.25), n_features=192)
    lines = side_by_side({"capsnet": one, "cnn": other}).splitlines()
    assert lines[0].split() == ["R²", "capsnet", "cnn"] and len({len(line) for line in lines}) == 1
    assert [line.split()[-2:] for line in lines[1:7]] == [["1.000", "-0.250"]] * 6
    assert lines[7].split()[-2:] == ["6", "192"]
    assert json.loads(json.dumps(one.plain()))["r2"] == one.r2
    with pytest.raises(ValueError, match="the same digits with the same copies and seed"):
        side_by_side({"capsnet": one, "cnn": replace(other, seed=1)})


def test_what_cannot_be_measured_is_refused(digits):
    with pytest.raises(ValueError, match="give more digits or more copies"):
        equivariance(Baseline(preset="small"), Labelled(digits.images[:8], digits.labels[:8]), CPU)
    with pytest.raises(ValueError, match="Identity returns Tensor; give it pose_features"):
        pose_of(nn.Identity(), torch.zeros(1, 1, 28, 28))
