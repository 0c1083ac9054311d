"""Images made from a seed: the same everywhere, and worth learning."""

import pytest
import torch

from torchcaps.data import fingerprint, info, load, status
from torchcaps.data.sets import generated

SETS = ["generated", "generated-16", "generated-40", "generated-48", "generated-96"]
SETS += ["generated-32-rgb", "generated-48-stereo", "generated-96-stereo"]


@pytest.mark.parametrize("name", SETS)
def test_the_parts_are_as_announced(name):
    for split, n in (("train", info(name).n_train), ("test", info(name).n_test)):
        data = load(name, split)
        assert list(data.images.shape) == [n, *info(name).shape] and data.images.dtype == torch.uint8
        assert data.labels.dtype == torch.int64
        counts = data.labels.bincount(minlength=info(name).n_classes)
        assert counts.max() - counts.min() <= 1
    assert status(name) == "built in"


@pytest.mark.parametrize("name", SETS)
def test_the_seed_alone_decides_the_images(name):
    before = torch.get_rng_state()
    one = fingerprint(load(name, "train", seed=1))
    torch.manual_seed(123)
    assert fingerprint(load(name, "train", seed=1)) == one != fingerprint(load(name, "train", seed=2))
    torch.set_rng_state(before)
    load(name, "train")
    assert torch.get_rng_state().equal(before), "the global generator is left alone"


def test_colours_are_of_the_same_shapes_and_tell_nothing_of_the_class():
    grey, labels = generated.read_split("train", 0, 32)
    rgb, same = generated.read_split("train", 0, 32, 3)
    assert torch.equal(labels, same)
    tints = rgb.double().sum((2, 3)) / grey.double().sum((2, 3))  # [n 3]
    assert tints.min() > 0.49 and tints.max() < 1.01 and tints.std() > 0.1
    by_class = torch.stack([tints[labels == label].mean(0) for label in range(10)])
    assert by_class.std() < 0.05


def test_train_and_test_share_no_image():
    train, test = (load("generated", split).images.flatten(1) for split in ("train", "test"))
    assert torch.cat([train, test]).unique(dim=0).shape[0] == len(train) + len(test)


@pytest.mark.parametrize("name", SETS[:2])  # the larger ones are drawn by the same rule, and take seconds
def test_a_linear_classifier_learns_most_of_it(name):
    """Least squares from pixels to classes; one in ten would be chance."""
    train, test = load(name, "train"), load(name, "test")

    def pixels(images):
        return torch.cat([images.flatten(1) / 255, torch.ones(len(images), 1)], dim=1).double()

    x, y = pixels(train.images), torch.nn.functional.one_hot(train.labels, 10).double()
    weight = torch.linalg.solve(x.T @ x + 10 * torch.eye(x.shape[1], dtype=x.dtype), x.T @ y)
    accuracy = ((pixels(test.images) @ weight).argmax(1) == test.labels).double().mean()
    assert accuracy > 0.9
