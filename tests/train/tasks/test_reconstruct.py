"""Learning from images alone: the loss by hand, what is stored, and a run that is resumed, captured and verified."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from torchcaps.data import Labelled, load
from torchcaps.data.augment import Augmentation
from torchcaps.data.batches import Batch
from torchcaps.papers import RECIPES
from torchcaps.results.store import make_result
from torchcaps.results.verify import check_metrics
from torchcaps.train import Options, train
from torchcaps.train.checkpoint import load_checkpoint, tensors_sha256
from torchcaps.train.loading import load_model
from torchcaps.train.tasks.reconstruct import Reconstruct

CPU = torch.device("cpu")


class Grey(nn.Module):
    """Draws every image in one grey, and has two capsules: the second has more support where an image is brighter than
    that.
    """

    def __init__(self, grey: float, boost: float | None = None) -> None:
        super().__init__()
        self.grey = grey
        self.mask = None if boost is None else SimpleNamespace(boost=torch.tensor([boost, 1.0]))

    def forward(self, images):
        return SimpleNamespace(poses=torch.full((len(images), 1, 1, 1), self.grey).expand_as(images))

    def reconstruct(self, poses):
        return poses

    def latent(self, images):
        brightness = images.mean((1, 2, 3))
        return SimpleNamespace(support=torch.stack([torch.full_like(brightness, self.grey), brightness], dim=-1))


def pictures(*greys: int) -> Labelled:
    images = torch.tensor(greys, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 3)
    return Labelled(images, torch.zeros(len(greys), dtype=torch.int64))


def smoke(name: str = "smoke/sparsecaps", **stage):
    run = RECIPES[name].make()
    return replace(run, stages=(replace(run.stages[0], **stage),))


def test_the_loss_is_the_sum_over_the_pixels_and_the_mean_over_the_batch():
    """Six pixels off by 0.5, and six by 0.1: a mean over the pixels would be six times weaker."""
    images = torch.tensor([1.0, 0.6]).view(2, 1, 1, 1).expand(2, 1, 2, 3)
    losses = Reconstruct().losses(Grey(0.5), Batch(images, torch.tensor([3, 4])))
    assert losses["loss"].item() == pytest.approx((6 * 0.25 + 6 * 0.01) / 2)
    assert set(losses) == {"loss"}


def test_the_error_of_every_picture_is_stored_and_its_mean_is_the_metric():
    task, data = Reconstruct(), pictures(255, 0, 255)
    evaluation = task.evaluate(Grey(0.5), data, CPU)
    assert evaluation.metrics == {"squared_error": 1.5}
    assert evaluation.predictions.dtype == torch.uint8 and evaluation.predictions.shape == (3, 2)
    assert task.score(evaluation.predictions[:1].long(), data.labels[:1]) == {"squared_error": 1.5}
    other = task.evaluate(Grey(0.0), data, CPU)
    assert other.metrics == {"squared_error": 4.0}  # 6, 0 and 6
    assert task.score(other.predictions[1:].long(), data.labels[1:]) == {"squared_error": 3.0}


def test_two_bytes_are_enough(rng):
    """Half floats are off by 1 in 2,000 at most, up or down: the mean by far less."""
    data = Labelled(
        torch.randint(0, 256, (500, 1, 2, 3), generator=rng).to(torch.uint8), torch.zeros(500, dtype=torch.int64)
    )
    exact = (data.images.double() / 255 - 0.3).square().sum((1, 2, 3)).mean().item()
    assert Reconstruct().evaluate(Grey(0.3), data, CPU).metrics["squared_error"] == pytest.approx(exact, rel=5e-5)


def test_extras_tell_who_wins():
    """Supports (0.6, 1), (0.6, 0) and (0.6, 0.8). Doubled, the first is ahead of all: 1.2."""
    data = pictures(255, 0, 204)
    plain, boosted = (Reconstruct().extras(Grey(0.6, boost), data, CPU, ()) for boost in (None, 2.0))
    assert (
        plain["winning_frequency"]
        == plain["winning_frequency_without_boost"]
        == pytest.approx({"0": 1 / 3, "1": 2 / 3})
    )
    assert plain["boost"] == {"0": 1.0, "1": 1.0} and boosted["boost"] == {"0": 2.0, "1": 1.0}
    assert boosted["winning_frequency"] == {"0": 1.0, "1": 0.0}
    assert boosted["winning_frequency_without_boost"] == pytest.approx({"0": 1 / 3, "1": 2 / 3})
    assert (
        plain["relative_support"] == boosted["relative_support"] == pytest.approx({"0": 1.0, "1": (0.6 + 0 + 0.75) / 3})
    )
    assert plain["n_images"] == 3


class Moved(Augmentation):
    """Makes all images as bright as drawn: training never shows them as they are."""

    def draw(self, n, rng):
        return torch.randint(200, 256, (n,), generator=rng).to(torch.uint8)

    def apply(self, images, drawn):
        return images.fill_(0) + drawn.view(-1, 1, 1, 1)


def test_the_study_tells_who_wins_among_pictures_as_training_shows_them():
    """Supports are (0.6, brightness): the second wins where training made images bright, and never among them as they
    are.
    """
    model, dark = Grey(0.6, boost=1.0), pictures(0, 0, 0)
    told = Reconstruct().study(model, dark, dark, CPU, seed=0, augment=(Moved(),))
    assert told["winning_frequency_as_trained"] == {"0": 0.0, "1": 1.0}
    assert (told["winning_frequency_least_as_trained"], told["winning_frequency_most_as_trained"]) == (0.0, 1.0)
    assert Reconstruct().extras(model, dark, CPU, ())["winning_frequency"] == {"0": 1.0, "1": 0.0}
    assert (
        Reconstruct().study(Grey(0.6), dark, dark, CPU, seed=0, augment=()) == {}
    )  # without a mask nothing is steered


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    return train(smoke(), name="smoke/sparsecaps", seed=0, options=Options(out=out, progress=False, save_every=5)), out


def test_a_run_learns_moves_its_boosts_and_is_verified(trained):
    run, (finished, _) = smoke(), trained
    assert finished.model.mask.n_batches == 20
    assert (finished.model.mask.boost > 1).any()
    assert finished.curve[-1]["loss"] < 60
    assert set(finished.evaluations) == {"test", "test_ema"}
    assert finished.diagnostics == {}  # latent capsules answer nothing that could be right
    result = json.loads(json.dumps(make_result("smoke/sparsecaps", 0, run, finished)))
    checks = check_metrics(result, run, None)
    assert [check.name for check in checks] == ["test.squared_error", "test_ema.squared_error"]
    assert all(check.passed for check in checks), checks
    result["metrics"]["test"]["squared_error"] *= 0.999
    assert not check_metrics(result, run, None)[0].passed
    assert sum(result["extras"]["winning_frequency"].values()) == pytest.approx(1, abs=1e-5)


def test_evaluation_leaves_the_statistics_alone(trained):
    model, _, _ = load_model(trained[1] / "checkpoint.safetensors", CPU)
    before = tensors_sha256(model.state_dict())
    for part in ("train", "test"):
        Reconstruct().evaluate(model.train(), load("generated-16", part), CPU)
        Reconstruct().extras(model, load("generated-16", part), CPU, ())
    assert model.training and tensors_sha256(model.state_dict()) == before


def test_a_resumed_run_ends_with_the_same_bits(trained, tmp_path):
    """Stopped before, at and after a change of the boosts, which comes with every fifth batch."""
    for stop in (4, 5, 12, None):
        train(
            smoke(),
            name="smoke/sparsecaps",
            seed=0,
            options=Options(out=tmp_path, progress=False, save_every=5, max_steps=stop),
        )
    whole, resumed = (load_checkpoint(out / "checkpoint.safetensors").tensors for out in (trained[1], tmp_path))
    assert {"model/mask.boost", "model/mask.frequency", "model/mask.n_batches"} < set(whole)
    assert tensors_sha256(resumed) == tensors_sha256(whole)
    forgotten = whole | {"model/mask.n_batches": torch.tensor(19)}
    assert tensors_sha256(forgotten) != tensors_sha256(whole)


def test_the_dense_run_has_no_statistics_and_tells_who_would_win(tmp_path):
    run = smoke("smoke/sparsecaps-dense", steps=2)
    finished = train(run, name="x", seed=0, options=Options(out=tmp_path, progress=False))
    assert not [name for name in finished.model.state_dict() if "mask" in name]
    assert finished.extras["boost"] == dict.fromkeys("012345", 1.0)
    assert finished.extras["winning_frequency"] == finished.extras["winning_frequency_without_boost"]
