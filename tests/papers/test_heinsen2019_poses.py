"""Toys under changing viewpoints: images in the right order, poses of the right capsule, distances that are kept."""

import math

import pytest
import torch

from torchcaps.data import Labelled
from torchcaps.data.augment import Standardise, as_seen
from torchcaps.data.augment.mixup import Mixup
from torchcaps.data.sets.smallnorb import Factors
from torchcaps.models import EMCapsNet
from torchcaps.papers.heinsen2019.drawing import pose_changes, pose_trajectories, stereo_pairs
from torchcaps.papers.heinsen2019.poses import FIXED, Tracks, changes, in_degrees, scaled, sequences, tracks

matplotlib = pytest.importorskip("matplotlib")
SMALL = {"channels": 4, "strides": (2,), "n_types": 2, "n_parts": 3, "d_pose": 3}
TOYS = [(0, 1), (0, 5), (3, 0)]  # category, instance


@pytest.fixture(scope="module")
def shuffled():
    """Every view of three toys under every light, in no order."""
    every = [(c, i, e, a, light) for c, i in TOYS for e in range(9) for a in range(0, 36, 2) for light in (0, 3)]
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(0)).tolist()
    labels, *factors = (torch.tensor(column) for column in zip(*(every[n] for n in order), strict=True))
    images = torch.randint(0, 256, (len(every), 2, 9, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return Labelled(images, labels), Factors(*factors)


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = EMCapsNet((2, 9, 9), 5, **SMALL)
        for layer in (made.parts, made.classes):
            torch.nn.init.normal_(layer.beta_use)
        return made


@pytest.mark.parametrize(
    ("vary", "degrees"), [("azimuth", list(range(0, 360, 20))), ("elevation", list(range(30, 75, 5)))]
)
def test_a_sequence_changes_one_thing_in_order(shuffled, vary, degrees):
    data, factors = shuffled
    toys, found, indices = sequences(data.labels, factors, vary)
    assert toys == TOYS and found == degrees and indices.shape == (3, len(degrees))
    for toy, row in zip(toys, indices, strict=True):
        assert {(int(data.labels[n]), int(factors.instance[n])) for n in row} == {toy}
        assert [in_degrees(vary, int(getattr(factors, vary)[n])) for n in row] == degrees
        assert all({int(getattr(factors, name)[n]) for n in row} == {value} for name, value in FIXED[vary].items())


def test_what_is_not_whole_is_refused(shuffled):
    data, factors = shuffled
    gone = torch.ones(len(data.labels), dtype=torch.bool)
    gone[sequences(data.labels, factors, "azimuth")[2][1, 4]] = False
    with pytest.raises(ValueError, match="some toy lacks an image for some azimuth"):
        sequences(data.labels[gone], Factors(*(part[gone] for part in factors)), "azimuth")
    with pytest.raises(ValueError, match="need as many viewpoints"):
        sequences(data.labels[gone], factors, "azimuth")
    with pytest.raises(ValueError, match="azimuth or elevation; got 'lighting'"):
        sequences(data.labels, factors, "lighting")


def test_a_track_is_of_images_as_the_run_shows_them(shuffled, model):
    data, factors = shuffled
    found = tracks(model, data, factors, "elevation", (Standardise(), Mixup()))
    seen = as_seen(data.images[found.indices[2]], (Standardise(),))
    with torch.no_grad():
        torch.testing.assert_close(found.poses[2], model.eval()(seen).poses[:, 3])
    plain = tracks(model, data, factors, "elevation")
    assert not torch.allclose(found.poses, plain.poses)


def test_a_track_is_the_pose_of_the_toys_own_class(shuffled, model):
    data, factors = shuffled
    found = tracks(model, data, factors, "elevation")
    assert found.poses.shape == (3, 9, 3, 3)
    with torch.no_grad():
        capsules = model.eval()(data.images[found.indices[2]].float() / 255)
    torch.testing.assert_close(found.poses[2], capsules.poses[:, 3])  # the last toy is of category 3
    assert found.right[2].tolist() == (capsules.confidence.argmax(-1) == 3).tolist()


def test_changes_by_hand():
    """A vector that turns by 90 degrees and one that doubles, beside their first views."""
    poses = torch.tensor([[[2.0, 0.0], [0.0, 3.0]], [[0.0, 2.0], [0.0, 6.0]]])  # v r e
    found = changes(poses)
    torch.testing.assert_close(found.distance, torch.tensor([[0.0, 0.0], [math.sqrt(8) / 2, 1.0]]))
    torch.testing.assert_close(found.norm, torch.tensor([[1.0, 1.0], [1.0, 2.0]]))
    torch.testing.assert_close(found.cosine, torch.tensor([[1.0, 1.0], [0.0, 1.0]]))


def test_points_of_a_plane_keep_all_distances_whatever_space_they_lie_in(rng):
    plane = torch.randn(12, 2, generator=rng, dtype=torch.float64)
    turned = plane @ torch.linalg.qr(torch.randn(4, 4, generator=rng, dtype=torch.float64)).Q[:2] + 3
    found = scaled(turned)
    torch.testing.assert_close(
        torch.cdist(found.points, found.points).double(), torch.cdist(plane, plane), atol=1e-5, rtol=1e-4
    )
    assert found.stress < 1e-6


def test_every_step_of_the_scaling_lowers_what_is_lost(rng):
    points = torch.randn(20, 4, generator=rng)
    lost = [scaled(points, n_steps=n).stress for n in (0, 1, 2, 5, 20, 300)]
    assert lost == sorted(lost, reverse=True) and lost[-1] < 0.98 * lost[0] and lost[-1] > 0.05


@pytest.mark.parametrize("points", [torch.zeros(5, 4), torch.ones(1, 3), torch.arange(6.0).view(6, 1)])
def test_points_that_fall_together_or_on_a_line_are_scaled_too(points):
    found = scaled(points)
    assert found.points.shape == (len(points), 2) and found.points.isfinite().all() and found.stress < 1e-6


def test_the_figures_show_every_toy_and_say_how_many_are_recognised(shuffled, model):
    data, factors = shuffled
    found = {vary: tracks(model, data, factors, vary) for vary in ("elevation", "azimuth")}
    figure, words = pose_changes(found["azimuth"], "azimuth", 6)
    lines = figure.axes[0].lines
    assert len(figure.axes) == 3 * 3 and len(lines) == len(TOYS) + 2  # one that does not move, and the mean
    torch.testing.assert_close(
        torch.tensor(lines[-1].get_ydata()), changes(found["azimuth"].poses).distance[..., 0].mean(0)
    )
    assert f"is predicted for {int(found['azimuth'].right.sum())} of 54 images" in words
    figure, words = pose_trajectories(found)
    panels = [axes for axes in figure.axes if axes.lines]
    assert [axes.get_title(loc="left") for axes in panels] == [
        "animal 1",
        "truck 0",
    ] * 2  # the first toy of each category
    assert len(panels[0].lines) == 9 + 2 and len(panels[2].lines) == 18 + 2  # a polygon for each view, two circles
    figure, words = stereo_pairs(data, factors)
    assert len(figure.axes) == 2 and figure.axes[0].images[0].get_array().shape == (2 * 9, 18 * 9)


def test_a_toy_that_is_mistaken_somewhere_is_orange():
    right = torch.tensor([[True, True], [True, False]])
    found = Tracks([(0, 0), (1, 0)], [0, 20], torch.zeros(2, 2).long(), torch.randn(2, 2, 1, 2), right)
    figure, words = pose_changes(found, "azimuth", 6)
    first, second, *_ = figure.axes[0].lines
    assert first.get_color() != second.get_color() and "3 of 4 images" in words
    assert words.count("at 20") == 3  # distance, norm and cosine: the farthest view is the last one, and is told once
