"""Bug 5 of ports: test images augmented, the test set used to select, training accuracy reported as test.

As in test_known_bugs, each check passes on ours and is shown to fail on a wrong variant.
"""

from dataclasses import replace

import pytest
import torch

from torchcaps.analysis.metrics import error_percent
from torchcaps.data import load
from torchcaps.data.augment import Shift
from torchcaps.data.batches import Batch, Batches, in_order
from torchcaps.papers import RECIPES
from torchcaps.train import Options, train
from torchcaps.train.tasks.classify import Classify

CPU = torch.device("cpu")


def check_evaluation_sees_every_image_once_as_it_is(batches_of):
    data = load("generated-16", "test")
    seen = torch.cat([batch.images for batch in batches_of(data, 100, CPU)])
    assert torch.equal(seen, data.images.float() / 255)


def shifted_like_training_images(data, batch, device):
    batches = Batches(data, batch, (Shift(2),), device)
    batches.new_epoch(torch.Generator().manual_seed(0))
    for step in range(batches.n_steps):
        yield batches.at(torch.tensor(step))


def without_the_last_part(data, batch, device):
    for start in range(0, len(data.labels) - batch + 1, batch):
        part = slice(start, start + batch)
        yield Batch(data.images[part].float() / 255, data.labels[part])


def test_evaluation_sees_every_image_once_as_it_is():
    check_evaluation_sees_every_image_once_as_it_is(in_order)
    for wrong in (shifted_like_training_images, without_the_last_part):
        with pytest.raises(AssertionError):
            check_evaluation_sees_every_image_once_as_it_is(wrong)


def check_choices_never_see_the_test_set(train_to_choose, tmp_path, monkeypatch):
    asked = []
    with monkeypatch.context() as patch:
        patch.setattr("torchcaps.train.splits.load", lambda name, split, root, seed: asked.append(split) or load(name, split, root, seed))
        trained = train_to_choose(tmp_path)
    assert set(asked) == {"train"}
    assert set(trained.evaluations) == {"validation", "validation_ema"}
    assert len(trained.evaluations["validation"].predictions) == 64


def with_held_out_images(out):
    run = replace(RECIPES["smoke/capsnet"].make(), hold_out=64)
    return train(run, name="x", seed=0, options=Options(out=out / "held-out", progress=False))


def by_test_error(out):
    return train(RECIPES["smoke/capsnet"].make(), name="x", seed=0, options=Options(out=out / "by-test", progress=False))


def test_choices_never_see_the_test_set(tmp_path, monkeypatch):
    check_choices_never_see_the_test_set(with_held_out_images, tmp_path, monkeypatch)
    with pytest.raises(AssertionError):
        check_choices_never_see_the_test_set(by_test_error, tmp_path, monkeypatch)


def check_the_reported_error_is_that_of_the_test_images(out):
    run = RECIPES["smoke/capsnet-plain"].make()
    trained = train(run, name="x", seed=0, options=Options(out=out, progress=False))
    test = load(run.data, "test")
    with torch.no_grad():
        said = trained.model.eval()(test.images.float() / 255).activity.argmax(-1)
    assert torch.equal(trained.evaluations["test"].predictions.long(), said)
    assert trained.evaluations["test"].metrics["error_percent"] == error_percent(said, test.labels)


def test_the_reported_error_is_that_of_the_test_images(tmp_path, monkeypatch):
    check_the_reported_error_is_that_of_the_test_images(tmp_path / "ours")
    evaluate = Classify.evaluate
    monkeypatch.setattr(
        Classify, "evaluate", lambda self, model, data, *how: evaluate(self, model, load("generated-16", "train"), *how)
    )
    with pytest.raises(AssertionError):
        check_the_reported_error_is_that_of_the_test_images(tmp_path / "of the training images")
