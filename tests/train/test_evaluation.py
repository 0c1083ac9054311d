"""Evaluation sees every image once, as it is; choices never see the test set; the error that is reported is that of the
test images.
"""

from dataclasses import replace

import pytest
import torch

from torchcaps.analysis.metrics import error_percent
from torchcaps.data import load
from torchcaps.data.augment.base import Batch
from torchcaps.data.augment.images import Shift
from torchcaps.data.batches.images import Batches, in_order
from torchcaps.papers import RECIPES
from torchcaps.train import Options, train

CPU = torch.device("cpu")


def shifted_like_training_images(data, batch, device):
    batches = Batches(data, batch, (Shift(2),), device)
    batches.new_epoch(torch.Generator().manual_seed(0))
    for step in range(batches.n_steps):
        yield batches.at(torch.tensor(step))


def without_the_last_part(data, batch, device):
    for start in range(0, len(data.labels) - batch + 1, batch):
        part = slice(start, start + batch)
        yield Batch(data.images[part].float() / 255, data.labels[part])


@pytest.mark.parametrize(
    ("batches_of", "right"), [(in_order, True), (shifted_like_training_images, False), (without_the_last_part, False)]
)
def test_evaluation_sees_every_image_once_as_it_is(batches_of, right):
    data = load("generated-16", "test")
    seen = torch.cat([batch.images for batch in batches_of(data, 100, CPU)])
    assert torch.equal(seen, data.images.float() / 255) == right


@pytest.mark.parametrize(
    ("hold_out", "splits", "part"), [(64, {"train"}, "validation"), (0, {"train", "test"}, "test")]
)
def test_choices_never_see_the_test_set(tmp_path, monkeypatch, hold_out, splits, part):
    asked = []
    monkeypatch.setattr(
        "torchcaps.train.splits.load",
        lambda name, split, root, seed: asked.append(split) or load(name, split, root, seed),
    )
    run = replace(RECIPES["smoke/capsnet"].make(), hold_out=hold_out)
    trained = train(run, name="x", seed=0, options=Options(out=tmp_path, progress=False, max_steps=2, as_is=True))
    assert set(asked) == splits
    assert set(trained.evaluations) == {part, f"{part}_ema"}
    assert len(trained.evaluations[part].predictions) == (hold_out or len(load("generated-16", "test").labels))


def test_the_reported_error_is_that_of_the_test_images(tmp_path):
    run = RECIPES["smoke/capsnet-plain"].make()
    trained = train(run, name="x", seed=0, options=Options(out=tmp_path, progress=False))
    test = load(run.data, "test")
    with torch.no_grad():
        said = trained.model.eval()(test.images.float() / 255).activity.argmax(-1)
    assert torch.equal(trained.evaluations["test"].predictions.long(), said)
    assert trained.evaluations["test"].metrics["error_percent"] == error_percent(said, test.labels)
