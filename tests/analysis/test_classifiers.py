"""Classifiers of features: the same machines as scikit-learn's, gradients through them, and a layer and components by
hand.
"""

import numpy as np
import pytest
import torch

from torchcaps.analysis import classifiers
from torchcaps.analysis.classifiers import (
    SvmDecision,
    fit_linear,
    fit_svm,
    load_svm,
    principal_components,
    processes,
    save_svm,
)

SVC = pytest.importorskip("sklearn.svm").SVC


@pytest.fixture
def blobs(rng):
    """Four classes that overlap, of unequal numbers and in no order; one label is never used."""
    labels = torch.tensor([0, 1, 3, 4])[torch.randint(0, 4, (160,), generator=rng)]
    centres = torch.randn(5, 6, generator=rng)
    return (centres[labels] + torch.randn(160, 6, generator=rng)).float(), labels


@pytest.mark.parametrize("largest", [0, 16_000])  # SVC computes the kernel, or we do
def test_the_machines_are_those_of_scikit_learn(blobs, largest, monkeypatch):
    monkeypatch.setattr("torchcaps.analysis.classifiers.LARGEST_KERNEL", largest)
    features, labels = blobs
    ours = fit_svm(features[:100], labels[:100], C=100.0, gamma=0.1)
    theirs = SVC(C=100.0, gamma=0.1, decision_function_shape="ovo").fit(
        features[:100].double().numpy(), labels[:100].numpy()
    )
    asked = features[100:]
    assert ours.predict(asked).tolist() == theirs.predict(asked.double().numpy()).tolist()
    np.testing.assert_allclose(ours.pairs(asked).numpy(), theirs.decision_function(asked.double().numpy()), atol=1e-8)
    assert sorted(theirs.support_) == sorted(set(theirs.support_)) and len(ours.vectors) == len(theirs.support_)
    assert (ours.predict(asked) != fit_svm(features[:100], labels[:100], C=0.01, gamma=0.1).predict(asked)).any()


@pytest.mark.slow
def test_several_processes_fit_the_same(blobs):
    features, labels = (part[:60] for part in blobs)
    one, two = (fit_svm(features, labels, C=100.0, gamma=0.1, jobs=jobs) for jobs in (1, 2))
    for (name, left), right in zip(one.named_buffers(), two.buffers(), strict=True):
        assert torch.equal(left, right), name


def test_of_equal_votes_the_first_class_wins():
    """Three classes that beat each other in a circle, one vote each."""
    machine = SvmDecision(
        torch.zeros(1, 2), torch.zeros(3, 1), torch.tensor([1.0, -1.0, 1.0]), torch.tensor([2, 5, 7]), gamma=1.0
    )
    assert machine.predict(torch.zeros(4, 2)).tolist() == [2] * 4
    assert machine(torch.zeros(1, 2)).tolist() == [[0.0, 0.0, 0.0]]  # sums of margins: 1 - 1, -1 + 1, 1 - 1


def test_scores_have_the_gradient_of_a_radial_basis_function(blobs):
    features, labels = blobs
    machine = fit_svm(features, labels, C=100.0, gamma=0.1)
    asked = features[:3].double().requires_grad_()
    assert torch.autograd.gradcheck(machine, asked)
    assert machine(asked).shape == (3, 4)


def test_a_machine_comes_back_from_its_file(blobs, tmp_path):
    features, labels = blobs
    machine = fit_svm(features, labels, C=100.0, gamma=0.1)
    save_svm(tmp_path / "svm.npz", machine)
    assert torch.equal(load_svm(tmp_path / "svm.npz").pairs(features), machine.pairs(features))


def test_one_class_is_refused(rng):
    with pytest.raises(ValueError, match=r"two classes at least, got \[3\]"):
        fit_svm(torch.randn(4, 2, generator=rng), torch.full((4,), 3), 1.0, 1.0)


def test_one_layer_separates_what_a_line_can_and_the_decay_is_that_of_the_sum(rng):
    features = torch.randn(200, 3, generator=rng)
    labels = (features[:, 0] > 0.3 * features[:, 1]).long()
    features[:, 2] = 5.0  # says nothing, and has no deviation
    found = fit_linear(features, labels, decay=1e-4)
    assert (found.predict(features) == labels).double().mean() > 0.98
    # at the least of the loss the gradient of the mean cross entropy is -decay times the weight
    known = (features - found.mean) / found.deviation
    wrong = found(features).softmax(-1) - torch.nn.functional.one_hot(labels, 2)
    torch.testing.assert_close(wrong.T @ known / 200, -1e-4 * found.weight, atol=2e-5, rtol=0)


def test_principal_components_are_those_of_largest_variance(rng):
    """Variances 9, 4, 1 along known axes: two are kept, in this order, and distances within them are."""
    axes = torch.linalg.qr(torch.randn(3, 3, generator=rng)).Q
    drawn = torch.randn(4000, 3, generator=rng) * torch.tensor([3.0, 2.0, 1.0])
    found = principal_components(drawn @ axes.T + 7, n=2)
    assert ((found.axes * axes[:, :2]).sum(0).abs() > 0.99).all()
    kept = found(drawn @ axes.T + 7)
    assert kept.mean(0).abs().max() < 1e-3
    torch.testing.assert_close(kept.var(0), torch.tensor([9.0, 4.0]), rtol=0.1, atol=0)


def test_no_more_processes_than_memory_holds(monkeypatch):
    monkeypatch.setattr(classifiers.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for memory, wanted in ((1, 1), (16, 5), (128, 8)):
        has = {"SC_PHYS_PAGES": memory << 18, "SC_PAGE_SIZE": 4096}  # so many GB
        monkeypatch.setattr(classifiers.os, "sysconf", has.__getitem__)
        assert processes() == wanted
