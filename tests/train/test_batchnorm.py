"""Statistics of batch norm of unmixed training images, beside those that training remembered."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from torchcaps.data import Labelled
from torchcaps.data.augment import Crop, Mixup
from torchcaps.papers import RECIPES
from torchcaps.results.store import make_result
from torchcaps.results.verify import check_metrics
from torchcaps.train import Options, train
from torchcaps.train.batchnorm import unmixed_statistics
from torchcaps.train.checkpoint import tensors_sha256

CPU = torch.device("cpu")


@pytest.fixture
def data(rng) -> Labelled:
    return Labelled(torch.randint(0, 256, (12, 2, 6, 6), dtype=torch.uint8, generator=rng), torch.arange(12) % 3)


def network() -> nn.Sequential:
    """Behind the first norm, one whose input is normalised by each batch itself; and what must not be left out here."""
    return nn.Sequential(nn.BatchNorm2d(2, momentum=0.3), nn.Dropout(0.9), nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))


def test_they_are_means_over_batches_of_images_that_are_not_mixed(data):
    """All images once, in three batches of four: the mean is that of all, whichever batch they are in."""
    found = unmixed_statistics(network(), data, 4, (Mixup(),), 3, CPU, seed=0)
    torch.testing.assert_close(found["0.running_mean"], (data.images / 255).mean((0, 2, 3)))
    assert set(found) == {f"{layer}.running_{kind}" for layer in (0, 3) for kind in ("mean", "var")}
    one = unmixed_statistics(network(), Labelled(*(part[:4] for part in data)), 4, (Mixup(),), 5, CPU, seed=0)
    torch.testing.assert_close(one["0.running_var"], (data.images[:4] / 255).transpose(0, 1).flatten(1).var(1))


def test_images_are_cropped_as_in_training(data):
    mean = unmixed_statistics(network(), data, 4, (Crop(6, border=2), Mixup()), 3, CPU, seed=0)["0.running_mean"]
    assert not torch.allclose(mean, (data.images / 255).mean((0, 2, 3)), atol=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(data, training):
    model = network().train(training)
    before = tensors_sha256(model.state_dict())
    found = unmixed_statistics(model, data, 4, (), 2, CPU, seed=0)
    assert tensors_sha256(model.state_dict()) == before
    assert all(layer.training == training for layer in model.modules()) and model[0].momentum == 0.3
    assert not torch.equal(found["0.running_mean"], model[0].running_mean)


@pytest.mark.slow
def test_a_run_has_them_as_further_numbers_and_all_else_stays(tmp_path):
    plain = RECIPES["smoke/em-capsnet-mixup"].make()
    run = replace(plain, stages=(replace(plain.stages[0], steps=3, unmixed=2),))
    plain = replace(run, stages=(replace(run.stages[0], unmixed=0),))
    one, other = (
        train(each, name="x", seed=0, options=Options(out=tmp_path / str(n), progress=False))
        for n, each in enumerate((plain, run))
    )
    assert set(one.evaluations) == {"test"} and set(other.evaluations) == {"test", "test_unmixed"}
    assert torch.equal(one.evaluations["test"].answers, other.evaluations["test"].answers)
    assert not torch.equal(other.evaluations["test"].answers, other.evaluations["test_unmixed"].answers)
    assert tensors_sha256(one.model.state_dict()) == tensors_sha256(other.model.state_dict())
    checks = check_metrics(make_result("x", 0, run, other), run, None)
    assert len(checks) == 2 and all(check.passed for check in checks)


def test_a_network_without_batch_norm_is_refused_before_it_trains(tmp_path):
    run = RECIPES["smoke/capsnet"].make()
    run = replace(run, stages=(replace(run.stages[0], unmixed=2),))
    with pytest.raises(
        ValueError,
        match=r"`unmixed` takes statistics of batch normalisation anew and 'capsnet' has none; leave it at 0",
    ):
        train(run, name="x", seed=0, options=Options(out=tmp_path, progress=False))
