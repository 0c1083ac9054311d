"""Mixup of two images shows both classes, each by its share."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from torchcaps.data import Labelled
from torchcaps.data.augment import Crop, Mixup, class_shares, main_labels
from torchcaps.data.batches import Batch, Batches
from torchcaps.models import CapsNet
from torchcaps.papers import RECIPES
from torchcaps.train.tasks.classify import Classify
from torchcaps.train.tasks.logits import ClassifyLogits

CPU = torch.device("cpu")


def greys(n: int) -> Labelled:
    """Image i is grey level i all over and of class i."""
    return Labelled(torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1).expand(n, 1, 4, 4), torch.arange(n))


def mixed_epoch(n: int = 40, batch: int = 8, seed: int = 0) -> list[Batch]:
    batches = Batches(greys(n), batch, (Crop(4, border=1), Mixup()), CPU)
    batches.new_epoch(torch.Generator().manual_seed(seed))
    return [batches.at(torch.tensor(step)) for step in range(n // batch)]


def test_an_image_is_the_blend_that_its_labels_and_share_tell():
    for batch in mixed_epoch():
        told = batch.shares * batch.labels + (1 - batch.shares) * batch.others
        torch.testing.assert_close(255 * batch.images, told.view(-1, 1, 1, 1).expand_as(batch.images))


def test_every_image_is_blended_with_another_one_of_its_batch():
    epoch = mixed_epoch()
    for batch in epoch:
        assert (batch.labels != batch.others).all()
        assert set(batch.others.tolist()) == set(batch.labels.tolist())
    assert (
        torch.cat([batch.labels for batch in epoch]).sort().values.equal(torch.arange(40))
    )  # an epoch still shows all of them


def test_any_other_image_is_as_likely_to_be_mixed_in():
    pairs = torch.cat(
        [torch.stack([batch.labels, batch.others]) for seed in range(600) for batch in mixed_epoch(4, 4, seed)], dim=1
    )
    counts = torch.zeros(4, 4).index_put_((pairs[0], pairs[1]), torch.ones(pairs.shape[1]), accumulate=True)
    assert counts.diagonal().eq(0).all()
    assert ((counts[~torch.eye(4, dtype=torch.bool)] - 200).abs() < 60).all()  # five standard deviations


def test_each_image_has_a_share_of_its_own_from_the_beta_distribution(rng):
    shares = Mixup(0.2).draw(50_000, rng)
    assert shares.unique().numel() > 25_000  # many are 0 or 1 but for the last bits
    assert shares.mean().item() == pytest.approx(0.5, abs=0.01)
    assert shares.var().item() == pytest.approx(0.25 / 1.4, rel=0.02)
    assert (shares - 0.5).abs().pow(4).mean().item() == pytest.approx(_fourth_moment(0.2), rel=0.02)
    assert shares.equal(Mixup(0.2).draw(50_000, torch.Generator().manual_seed(0)))


def _fourth_moment(alpha: float) -> float:
    """Fourth moment of Beta(alpha, alpha) about its middle."""
    return 3 / (16 * (2 * alpha + 1) * (2 * alpha + 3))


def test_the_loss_is_that_of_both_classes_weighted_by_their_shares(rng):
    """In the cross entropy and in the margin loss alike."""
    images, labels, others = torch.rand(6, 1, 16, 16, generator=rng), torch.arange(6) % 5, (torch.arange(6) + 2) % 5
    shares = torch.tensor([0.0, 0.2, 0.4, 0.7, 0.9, 1.0])
    small = {"channels": 8, "kernel": 5, "n_types": 2, "primary_kernel": 5, "reconstruction": False}
    linear, capsnet = nn.Sequential(nn.Flatten(), nn.Linear(256, 5)), CapsNet((1, 16, 16), 5, **small)
    for task, model in ((ClassifyLogits(), linear), (Classify(), capsnet)):
        one = [task.losses(model, Batch(images[n : n + 1], labels[n : n + 1]))["loss"] for n in range(6)]
        other = [task.losses(model, Batch(images[n : n + 1], others[n : n + 1]))["loss"] for n in range(6)]
        wanted = (shares * torch.stack(one) + (1 - shares) * torch.stack(other)).mean()
        torch.testing.assert_close(task.losses(model, Batch(images, labels, others, shares))["loss"], wanted)


def test_an_answer_in_training_is_held_against_the_larger_part():
    batch = Batch(
        torch.zeros(3, 1, 1, 1), torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0]), torch.tensor([0.9, 0.1, 0.6])
    )
    assert main_labels(batch).tolist() == [0, 2, 2]
    assert class_shares(batch, 3).argmax(-1).tolist() == [0, 2, 2]
    assert class_shares(batch, 3).sum(-1).tolist() == pytest.approx([1, 1, 1])
    assert main_labels(batch._replace(others=None, shares=None)).tolist() == [0, 1, 2]


def test_a_decoder_cannot_redraw_two_classes_from_one():
    run = RECIPES["smoke/capsnet"].make()
    model = replace(run, augment=(Mixup(),)).build()
    batch = Batch(torch.rand(2, 1, 16, 16), torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([0.7, 0.2]))
    with pytest.raises(ValueError, match="redraws one class and Mixup shows two; build the model without a decoder"):
        Classify().losses(model, batch)


@pytest.mark.slow
def test_a_step_with_mixed_images_compiles_whole(fresh_dynamo, rng):
    batch = Batch(
        torch.rand(2, 1, 4, 4, generator=rng), torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([0.7, 0.2])
    )
    model, task = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), ClassifyLogits()
    compiled = torch.compile(task.losses, backend="aot_eager", dynamic=False, fullgraph=True)
    torch.testing.assert_close(compiled(model, batch), task.losses(model, batch))
