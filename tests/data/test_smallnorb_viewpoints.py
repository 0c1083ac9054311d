"""smallNORB by viewpoint: what is trained on, what is held out of it, what is new."""

import os

import pytest
import torch

from torchcaps.data import DATASETS, DataError, info, load, spec, status
from torchcaps.data.sets.smallnorb import N_VIEWS, Factors, by_viewpoint, part_of
from torchcaps.data.sources.formats import Labelled
from torchcaps.data.specs import VIEWPOINTS

REAL_FILES = os.environ.get("TORCHCAPS_DATA")


@pytest.fixture(scope="module")
def factors():
    """As in the official test part: five toys of each of five categories, all views, all lights."""
    toys = [
        (toy, e, a, light)
        for toy in (0, 1, 2, 3, 5)
        for _ in range(5)
        for e in range(9)
        for a in range(0, 36, 2)
        for light in range(6)
    ]
    return Factors(*torch.tensor(toys).unbind(1))


@pytest.mark.parametrize("vary", ["azimuth", "elevation"])
def test_every_image_is_in_one_part(factors, vary):
    parts = {part: part_of(factors, vary, part) for part in ("train", "familiar", "novel")}
    assert sum(part.int() for part in parts.values()).eq(1).all()
    assert [int(part.sum()) for part in parts.values()] == list(N_VIEWS.values())


def test_the_views_are_those_of_hinton_2018(factors):
    def seen(vary, part):
        return set(getattr(factors, vary)[part_of(factors, vary, part)].tolist())

    assert seen("azimuth", "train") == seen("azimuth", "familiar") == {30, 32, 34, 0, 2, 4}  # 300 to 40 degrees
    assert seen("azimuth", "novel") == set(range(6, 30, 2))  # 60 to 280
    assert seen("elevation", "train") == seen("elevation", "familiar") == {0, 1, 2}
    assert seen("elevation", "novel") == {3, 4, 5, 6, 7, 8}


@pytest.mark.parametrize("vary", ["azimuth", "elevation"])
def test_what_is_held_out_of_the_familiar_views_is_one_light_of_each(factors, vary):
    """So every toy is trained on from every familiar side, and no light, toy or side is missing on either side."""
    train, aside = (part_of(factors, vary, part) for part in ("train", "familiar"))
    views = factors.instance * 1000 + factors.elevation * 100 + factors.azimuth
    assert set(views[train].tolist()) == set(views[aside].tolist())
    assert views[aside].unique(return_counts=True)[1].tolist() == [5] * len(
        views[aside].unique()
    )  # once for each category
    for part in (train, aside):
        counts = factors.lighting[part].bincount()
        assert counts.min() > 0.9 * counts.max() and len(counts) == 6


def test_images_and_labels_go_together(factors):
    n = len(factors.instance)
    numbered = Labelled(torch.arange(n).view(n, 1, 1, 1).to(torch.uint8), torch.arange(n) % 256)
    found = by_viewpoint(numbered, factors, "azimuth", "novel")
    assert len(found.labels) == N_VIEWS["novel"] and torch.equal(found.images.flatten().long(), found.labels)


def test_the_sets_say_whose_toys_they_are_and_how_large():
    names = [name for name in DATASETS if spec(name).split in VIEWPOINTS]
    assert len(names) == 8
    for name in names:
        about = info(name)
        assert about.name == name and "official test part" in about.about and about.n_train == N_VIEWS["train"]
        assert about.n_test == N_VIEWS["familiar" if spec(name).familiar else "novel"]
        assert about.shape == ((2, 48, 48) if spec(name).size else (2, 96, 96))


def test_without_the_table_of_viewpoints_the_error_names_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path))
    with pytest.raises(DataError, match=r"testing-info\.mat of smallnorb"):
        load("smallnorb-viewpoint-azimuth", "train", tmp_path)


@pytest.mark.skipif(not REAL_FILES, reason="TORCHCAPS_DATA names no folder")
@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("vary", ["azimuth", "elevation"])
def test_the_real_sets_are_as_large_as_they_say(vary):
    if not status("smallnorb", REAL_FILES).startswith("complete"):
        pytest.skip("smallNORB is not there")
    train, novel = (load(f"smallnorb-48-viewpoint-{vary}", split, REAL_FILES) for split in ("train", "test"))
    familiar = load(f"smallnorb-48-viewpoint-{vary}-familiar", "test", REAL_FILES)
    assert [len(part.labels) for part in (train, familiar, novel)] == list(N_VIEWS.values())
    assert all(part.labels.bincount().unique().numel() == 1 for part in (train, familiar, novel))
    keys = {image.numpy().tobytes() for image in train.images}
    assert not any(image.numpy().tobytes() in keys for image in familiar.images)
