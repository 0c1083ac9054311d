"""Efficient-CapsNet (Mazzia 2021)."""

import pytest
import torch
from torch.nn.functional import nll_loss

from torchcaps.data.augment import Batch
from torchcaps.layers import ROUTINGS
from torchcaps.models import DeepCapsNet, EfficientCapsNet
from torchcaps.ops import margin_loss
from torchcaps.papers import RECIPES
from torchcaps.train.tasks.by_routing import TASKS, task_for
from torchcaps.train.tasks.classify import Classify
from torchcaps.train.tasks.logits import ClassifyLikelihood

SMALL = {"channels": (4, 4, 4, 8), "hidden": (8, 8)}


def n_parameters(*args, **options) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in EfficientCapsNet(*args, **options).parameters())


def test_parameter_counts_are_the_papers():
    assert n_parameters(reconstruction=False) == 161_824  # "161K"
    for preset in ("smallnorb", "smallnorb-official"):
        assert n_parameters((2, 48, 48), 5, preset=preset, reconstruction=False) == 151_664  # "151K"


def test_parameters_by_hand():
    stem = (25 * 32 + 3 * 32) + (9 * 32 * 64 + 3 * 64) + (9 * 64 * 64 + 3 * 64) + (9 * 64 * 128 + 3 * 128)
    filters, classes = 128 * 9 * 9 + 128, 16 * 10 * 8 * 16 + 16 * 10
    assert n_parameters(reconstruction=False) == stem + filters + classes
    decoder = 160 * 512 + 512 + 512 * 1024 + 1024 + 1024 * 784 + 784
    assert n_parameters() == stem + filters + classes + decoder


@pytest.mark.parametrize(("preset", "passed"), [("smallnorb", 0.0), ("smallnorb-official", -0.3)])
def test_the_authors_network_lets_a_part_of_what_is_negative_through(preset, passed):
    stem = EfficientCapsNet((2, 23, 26), 4, preset=preset, **SMALL).stem
    assert [float(stage[1](torch.tensor(-1.0))) for stage in stem] == pytest.approx([passed] * 4)


@pytest.mark.parametrize(
    ("preset", "image"), [("mnist", (1, 14, 17)), ("smallnorb", (2, 23, 26)), ("smallnorb-official", (2, 23, 26))]
)
def test_it_starts_alive_and_every_parameter_learns(preset, image):
    torch.manual_seed(0)
    model, images = EfficientCapsNet(image, 4, preset=preset, **SMALL), torch.rand(8, *image)
    assert 0.2 < model.primary_capsules(images).activity.median() < 0.95
    assert model(images).poses.shape == (8, 4, 16) and 0.05 < model(images).activity.median() < 0.95
    losses = Classify().losses(model, Batch(images, torch.arange(8) % 4))
    losses["loss"].backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for name, p in model.named_parameters() if "0.bias" not in name)


def test_the_reconstruction_weighs_what_the_paper_says():
    """0.392 of the mean squared difference of a pixel."""
    torch.manual_seed(0)
    model = EfficientCapsNet(**SMALL).eval()
    task, images, labels = RECIPES["mazzia2021/mnist"].make().stages[0].task, torch.rand(3, 1, 28, 28), torch.arange(3)
    capsules = model(images)
    drawn = model.reconstruct(capsules.poses, labels)
    wanted = margin_loss(capsules.activity, torch.eye(10)[labels]).mean() + 0.392 * (drawn - images).square().mean()
    torch.testing.assert_close(task.losses(model, Batch(images, labels))["loss"], wanted)


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="an image of 9x28 is too small for kernels of 5, 3, 3, 3"):
        EfficientCapsNet((1, 9, 28))
    with pytest.raises(ValueError, match="poses of 8 dimensions, got 12; give a multiple"):
        EfficientCapsNet(channels=(4, 4, 4, 12))
    with pytest.raises(ValueError, match="preset must be one of mnist, smallnorb, smallnorb-official; got 'norb'"):
        EfficientCapsNet(preset="norb")
    with pytest.raises(ValueError, match="has no decoder; build and train it with reconstruction=True"):
        EfficientCapsNet(reconstruction=False).reconstruct(torch.ones(1, 10, 16), torch.tensor([0]))


def test_every_routing_has_a_task_and_that_of_self_routing_is_the_likelihood_of_the_activity():
    assert {routing.loss for routing in ROUTINGS.values()} <= {*TASKS}
    torch.manual_seed(0)
    args = {"channels": 4, "kernel": 5, "n_types": 2, "primary_kernel": 5}
    model = DeepCapsNet((1, 16, 16), 3, routing="self-routing", **args)
    batch = Batch(torch.rand(4, 1, 16, 16), torch.tensor([0, 1, 2, 0]))
    task = task_for("self-routing")
    assert isinstance(task, ClassifyLikelihood)
    wanted = nll_loss(model(batch.images).activity.log(), batch.labels)
    torch.testing.assert_close(task.losses(model, batch)["loss"], wanted)
