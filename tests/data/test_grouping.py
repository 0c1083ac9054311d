"""Examples that vary together: by hand for digits and toys, each alone where nothing is known."""

import pytest
import torch

from torchcaps.data import Labelled, groups, load, spec
from torchcaps.data.sets import affnist, smallnorb


def images_with(labels: torch.Tensor) -> Labelled:
    return Labelled(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8), labels)


def n_images(n: int) -> Labelled:
    return images_with(torch.zeros(n, dtype=torch.long))


def test_pairs_show_two_digits():
    pairs = load("generated-pairs", "test")
    found = groups("generated-pairs", "test", pairs)
    assert found.what == "digits" and found.index.equal(pairs.picks)


@pytest.mark.parametrize("name, what", [("generated-16", "images"), ("generated-sentences", "sentences")])
def test_where_nothing_is_known_each_example_is_a_group(name, what):
    examples = load(name, "test")
    found = groups(name, "test", examples)
    assert found.what == what and found.index[:, 0].tolist() == list(range(len(examples.labels)))


def test_transforms_of_one_digit_belong_together():
    found = groups("mnist-40", "affnist-like", n_images(20_000))
    assert found.what == "digits" and found.index[:, 0].tolist() == [*range(10_000)] * 2
    found = groups("mnist-40", "validation_warped", n_images(40))
    assert found.what == "digits" and found.index[:, 0].tolist() == [*range(5)] * 8
    found = groups(spec("mnist-40"), "affnist-like/other-digits", n_images(10_000))
    assert found.index.unique().numel() == 2_500 and found.index[:2_500].equal(found.index[2_500:5_000])


def test_the_official_affnist_says_which_digit_each_image_shows(monkeypatch):
    original = torch.tensor([4, 4, 9])
    monkeypatch.setattr(affnist, "read_all", lambda root: affnist.AffNIST(original, original, original, original))
    assert groups("mnist-40", "affnist", n_images(3)).index.tolist() == [[4], [4], [9]]


@pytest.mark.parametrize(
    "data, part",
    [
        ("smallnorb-48", "test"),
        ("smallnorb-48", "smallnorb-48/test"),
        ("mnist", "smallnorb-48"),
        ("mnist", "smallnorb-48/test"),
    ],
)
def test_images_of_one_toy_belong_together(monkeypatch, data, part):
    labels, toys = torch.tensor([0, 0, 1, 1]), torch.tensor([3, 5, 3, 3])
    monkeypatch.setattr(smallnorb, "instances", lambda split, root: {"test": toys}[split])
    found = groups(data, part, images_with(labels))
    assert (found.what, found.index.tolist()) == ("toys", [[3], [5], [13], [13]])
    with pytest.raises(ValueError, match="which toys its 3 images show is not known"):
        groups(data, part, images_with(labels[:3]))


def test_a_part_of_the_training_toys_is_not_taken_for_the_test_part(monkeypatch):
    monkeypatch.setattr(smallnorb, "instances", lambda split, root: torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="validation of smallnorb-48: which toys"):
        groups("smallnorb-48", "validation", n_images(3))


def test_folds_and_viewpoints_have_their_own_toys(monkeypatch):
    held = groups("smallnorb-48-folds", "test", images_with(torch.tensor([0, 4, 4])))
    assert held.index.unique().tolist() == [0, 40]
    columns = ([7, 2, 4], [0, 0, 3], [0, 20, 0], [0, 0, 0])
    factors = smallnorb.Factors(*(torch.tensor(column) for column in columns))
    monkeypatch.setattr(smallnorb, "factors", lambda split, root: {"test": factors}[split])
    novel = groups("smallnorb-48-viewpoint-azimuth", "test", images_with(torch.tensor([1])))
    assert novel.index.tolist() == [[12]]
    familiar = groups("smallnorb-48-viewpoint-elevation-familiar", "test", images_with(torch.tensor([3])))
    assert familiar.index.tolist() == [[32]]  # the one light that is held out
