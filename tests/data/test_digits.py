"""scikit-learn's digits, and the stratified split that they and hold_out share."""

import sys

import pytest
import torch

from torchcaps.data import DataError, fingerprint, info, load, status
from torchcaps.data.sets.digits import stratified_indices

SETS = ["digits", "digits-writers"]


@pytest.mark.parametrize("name", SETS)
def test_the_parts_are_as_announced_and_make_up_the_whole(name):
    pytest.importorskip("sklearn")
    train, test = load(name, "train"), load(name, "test")
    assert list(train.images.shape) == [info(name).n_train, *info(name).shape] and train.images.dtype == torch.uint8
    assert list(test.images.shape) == [info(name).n_test, *info(name).shape] and test.labels.dtype == torch.int64
    assert len(train.labels) + len(test.labels) == 1797 and status(name) == "built in"
    assert (train.labels.bincount() + test.labels.bincount()).tolist() == [
        178,
        182,
        177,
        183,
        181,
        182,
        181,
        179,
        174,
        180,
    ]
    assert train.images.max() == 255 and train.images.min() == 0


def test_upsampling_keeps_the_image():
    """Averaging each 2x2 block gives a slightly blurred copy of the original 8x8 digit."""
    datasets = pytest.importorskip("sklearn.datasets")
    ours = torch.nn.functional.avg_pool2d(load("digits-writers", "train").images.float(), 2).flatten(1)
    original = torch.from_numpy(datasets.load_digits().images[: len(ours)]).float().flatten(1)
    similarity = torch.nn.functional.cosine_similarity(ours, original)
    assert similarity.min() > 0.95


def test_the_seed_alone_decides_the_test_digits():
    pytest.importorskip("sklearn")
    one, again, other = (fingerprint(load("digits", "test", seed=seed)) for seed in (1, 1, 2))
    assert one == again != other
    assert fingerprint(load("digits-writers", "test", seed=1)) == fingerprint(load("digits-writers", "test", seed=2))


def test_each_class_gives_a_fifth():
    pytest.importorskip("sklearn")
    counts = load("digits", "test", seed=5).labels.bincount() / load("digits", "train", seed=5).labels.bincount()
    assert (counts - 0.25).abs().max() < 0.01


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"pip install 'torchcaps\[experiments\]'"):
        load("digits", "train")


@pytest.mark.parametrize("seed", range(5))
def test_shares_are_rounded_and_nobody_is_on_both_sides(seed):
    labels = torch.tensor([0] * 3 + [1] * 50 + [2] * 147 + [4] * 7)[
        torch.randperm(207, generator=torch.Generator().manual_seed(seed))
    ]
    for n in (1, 10, 103, 206):
        rest, held = stratified_indices(labels, n, seed)
        assert torch.cat([rest, held]).sort().values.equal(torch.arange(207)) and len(held) == n
        wanted = labels.bincount() * n / 207
        assert ((labels[held].bincount(minlength=5) - wanted).abs() < 1.5).all()
        assert held.equal(held.sort().values) and rest.equal(rest.sort().values)


def test_roundings_favour_no_class():
    """One of ten equal classes gives the single held-out image: over many seeds, each does."""
    labels = torch.arange(100) % 10
    chosen = torch.cat([labels[stratified_indices(labels, 1, seed)[1]] for seed in range(500)])
    assert chosen.bincount(minlength=10).min() > 20
