"""The regression finds what a pose holds and nothing else; the test digits are transformed by exactly the factors they
claim.
"""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from torchcaps.analysis.equivariance import (
    CHOOSE,
    FACTORS,
    FIT,
    RANGES,
    SCORE,
    deviations,
    draw_factors,
    equivariance,
    explain,
    fit_ridge,
    known_digits,
    pose_of,
    r_squared,
    side_by_side,
    split,
    thickened,
)
from torchcaps.data import Labelled
from torchcaps.data.augment import Shift, Standardise
from torchcaps.data.sets.affine import BRIGHT, matrices
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


def square(row: int, column: int, side: int = 3) -> Labelled:
    """Ink from this place on, a class of its own."""
    image = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    image[..., row : row + side, column : column + side] = 255
    return Labelled(image, torch.zeros(1, dtype=torch.long))


def centres_of_mass(images: torch.Tensor) -> torch.Tensor:
    """(row, column) about each image's centre. [n 2]"""
    ink = images[:, 0].double()
    rows, columns = (torch.arange(size) - (size - 1) / 2 for size in ink.shape[1:])
    mass = ink.sum((1, 2))
    return torch.stack([(ink.sum(2) * rows).sum(1) / mass, (ink.sum(1) * columns).sum(1) / mass], dim=1)


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


def test_not_even_where_the_factors_depend_on_the_class(rng):
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


def test_the_same_seed_gives_the_same_numbers(digits):
    model = Baseline(preset="small")
    first, again, other = (equivariance(model, digits, CPU, copies=1, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.r2 != other.r2


def test_scored_digits_are_never_fitted(digits):
    part = split(digits.labels, 0)
    assert part.bincount().tolist() == [200, 50, 250]
    for label in range(10):
        counts = part[digits.labels == label].bincount(minlength=3)
        assert counts[FIT] in range(19, 22) and counts[CHOOSE] in range(4, 7) and counts[SCORE] in range(24, 27)


def test_factors_are_independent_and_fill_their_ranges(rng):
    factors = draw_factors(20_000, rng)
    for column, (low, high) in zip(factors.T, RANGES.values(), strict=True):
        assert low <= column.min() < low + 0.01 * (high - low) and high - 0.01 * (high - low) < column.max() <= high
    off_diagonal = torch.corrcoef(factors.T) - torch.eye(len(FACTORS))
    assert off_diagonal.abs().max() < 0.03
    assert factors[:, 0].unique().tolist() == [-2, -1, 0, 1, 2]


def test_a_picture_moves_as_its_factors_say():
    """A square off the centre: its middle goes where the affine map takes it, then down and right."""
    known = known_digits(square(9, 18), FRAME, seeded(), copies=200)
    down_right, (rotation, scale, shear, _) = known.factors[:, :2], known.factors[:, 2:].unbind(1)
    maps = matrices(torch.stack([rotation, shear, scale, scale, rotation, rotation], dim=1))
    expected = maps @ torch.tensor([10 - 13.5, 19 - 13.5]).double() + down_right
    torch.testing.assert_close(centres_of_mass(known.images), expected, atol=0.15, rtol=0)
    assert len(known.images) == 200


@pytest.mark.parametrize("frame", [(28, 28), (21, 32), (40, 40), (47, 60)])
def test_the_frame_is_the_models_own(frame):
    known = known_digits(square(13, 13, side=2), frame, seeded(), copies=20)
    assert known.images.shape == (20, 1, *frame)
    of_odd_sides = torch.tensor(frame) % 2 / 2  # which have no middle between two pixels
    torch.testing.assert_close(centres_of_mass(known.images), known.factors[:, :2] - of_odd_sides, atol=0.05, rtol=0)


def test_no_ink_leaves_the_frame():
    """Digits that are kept have all their ink; those that some shift would cut are left out."""
    digits = Labelled(*generate(300, 28, seeded(5)))
    tight, roomy = (known_digits(digits, frame, seeded(), copies=2) for frame in (FRAME, (60, 60)))
    kept = torch.isin(roomy.factors[:, 2], tight.factors[:, 2])
    assert len(roomy.images) == 600 and 300 < len(tight.images) < 600
    n_ink = [(images > BRIGHT).sum((1, 2, 3)) for images in (tight.images, roomy.images[kept])]
    assert torch.equal(*n_ink)
    middle = slice(30 - 14 + 2, 30 + 14 - 2)  # whence no shift by 2 takes ink out of 28
    inside = torch.ones(600, dtype=torch.bool)
    for axis in (0, 1):
        along = (roomy.images > BRIGHT).any(3 - axis)[:, 0]  # [n 60]: the rows, then the columns, with ink
        first, last = along.byte().argmax(1), 59 - along.flip(1).byte().argmax(1)
        moved = roomy.factors[:, axis]
        inside &= (first - moved >= middle.start) & (last - moved < middle.stop)
    assert torch.equal(kept, inside)


def test_fewer_copies_are_the_first_part_of_more(digits):
    few, many = (known_digits(digits, FRAME, seeded(), copies=copies, chunk=77 * copies) for copies in (1, 3))
    n = len(few.labels)
    assert all(torch.equal(one, other[:n]) for one, other in zip(few, many, strict=True))
    assert torch.equal(many.labels, digits.labels[many.sources])


@pytest.mark.parametrize("width", [-2.0, -1.0, -0.5, 0.0, 0.25, 1.0, 2.0])
def test_a_stroke_gains_so_many_pixels_of_ink(width):
    bars = torch.zeros(2, 1, 41, 41, dtype=torch.uint8)
    bars[0, :, :, 18:23] = 255
    bars[1, 0] = 255 * ((torch.arange(41)[:, None] - torch.arange(41)).abs() <= 3).byte()
    made = thickened(bars, torch.full((2,), width))
    upright, diagonal = ((made[n, 0, 20].double().sum() - bars[n, 0, 20].double().sum()) / 255 for n in (0, 1))
    assert upright.item() == pytest.approx(width, abs=0.01)
    assert (diagonal / 2**0.5).item() == pytest.approx(width, rel=0.1, abs=0.01), "a row crosses it at 45 degrees"


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
    with pytest.raises(ValueError, match="at most 28x28"):
        known_digits(Labelled(*generate(2, 48, seeded())), FRAME, seeded(), copies=1)
    with pytest.raises(ValueError, match="fit into 16x16; give digits with more empty space"):
        known_digits(digits, (16, 16), seeded(), copies=1)
    with pytest.raises(ValueError, match="give more digits or more copies"):
        equivariance(Baseline(preset="small"), Labelled(digits.images[:8], digits.labels[:8]), CPU)
    with pytest.raises(ValueError, match="Identity returns Tensor; give it pose_features"):
        pose_of(nn.Identity(), torch.zeros(1, 1, 28, 28))
