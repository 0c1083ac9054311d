"""Spread loss in training: the margin rises with the steps, and several crops are averaged."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from torchcaps.data import Labelled
from torchcaps.data.augment import Batch, Crop
from torchcaps.layers import Capsules
from torchcaps.papers import RECIPES
from torchcaps.train import Options, train
from torchcaps.train.tasks.classify import Classify
from torchcaps.train.tasks.spread import ClassifySpread


class Fixed(nn.Module):
    """The same two activities whatever the image."""

    def forward(self, images):
        score = torch.tensor([0.6, 0.4]).logit().expand(len(images), 2)
        return Capsules.scored(torch.zeros(len(images), 2, 1), score)


@pytest.mark.parametrize(("done", "margin"), [(0, 0.2), (10, 0.55), (20, 0.9), (70, 0.9)])
def test_the_margin_rises_over_its_part_of_the_steps(done, margin):
    task = ClassifySpread(rise=0.2)
    losses = task.losses_at(
        Fixed(), Batch(torch.zeros(2, 1, 3, 3), torch.tensor([0, 1])), torch.tensor(done), n_steps=100
    )
    wanted = (max(0, margin - 0.2) ** 2 + (margin + 0.2) ** 2) / 2
    torch.testing.assert_close(losses["loss"], torch.tensor(wanted))
    assert losses["error_percent"] == 50


@pytest.mark.slow
def test_a_run_uses_the_margin_of_its_step_and_resumes_to_the_bit(tmp_path):
    run = RECIPES["smoke/matrix-capsnet"].make()
    run = replace(run, stages=(replace(run.stages[0], steps=6, batch=4),))

    def curve(name, **options):
        found = train(run, name="spread", seed=0, options=Options(out=tmp_path / name, log_every=1, **options))
        return [line["loss"] for line in found.curve if "loss" in line]

    whole = curve("whole", progress=False)
    curve("parts", progress=False, max_steps=3)
    assert curve("parts", progress=False) == whole
    assert whole[-1] > 3 * whole[0]  # 9 others · margin²: from 0.2 to 0.9


class Corner(nn.Module):
    """Votes for class 1 where the first pixel is lit: by 0.9, else for class 0 by 0.52."""

    def forward(self, images):
        lit = images[:, 0, 0, 0] > 0
        score = torch.where(lit, torch.tensor(0.9).logit(), torch.tensor(0.48).logit())
        return Capsules.scored(torch.zeros(len(images), 2, 1), torch.stack([-score, score], 1))


class Lengths(Corner):
    """The same with lengths in place of scores."""

    decoder = None

    def forward(self, images):
        activity = super().forward(images).activity
        return Capsules(torch.zeros(len(images), 2, 1), activity)


def test_lengths_are_averaged_over_crops_too():
    images = torch.zeros(2, 1, 12, 12, dtype=torch.uint8)
    images[1, 0, 4, 4] = 255
    data = Labelled(images, torch.tensor([0, 1]))
    found = Classify(shifts=3).extras(Lengths(), data, torch.device("cpu"), (Crop(6),))
    assert found == {"error_percent_13_crops": 0.0}
    assert Classify().extras(Lengths(), data, torch.device("cpu"), (Crop(6),)) == {}
    assert Classify(shifts=3).quick() == Classify()


def test_crops_along_the_diagonals_are_averaged():
    images = torch.zeros(2, 1, 12, 12, dtype=torch.uint8)
    images[1, 0, 4, 4] = 255  # first pixel of the crop that starts at (4, 4): the centre's moved by 1
    data, task = Labelled(images, torch.tensor([0, 1])), ClassifySpread(shifts=3)
    augment = (Crop(6),)
    assert task.evaluate(Corner(), data, torch.device("cpu"), augment).metrics == {"error_percent": 50}
    found = task.extras(Corner(), data, torch.device("cpu"), augment)
    # one of 13 crops gives 0.9 to class 1, the others 0.48: 0.512 on average
    assert found == {"error_percent_13_crops": 0.0}
    assert ClassifySpread().extras(Corner(), data, torch.device("cpu"), augment) == {}
    with pytest.raises(ValueError, match="need images 6 pixels larger than what the network sees, and these are 2"):
        task.extras(Corner(), data, torch.device("cpu"), (Crop(10),))


def test_lengths_are_refused():
    class Lengths(nn.Module):
        def forward(self, images):
            return Capsules.of(torch.zeros(len(images), 2, 1))

    with pytest.raises(
        ValueError, match=r"ClassifySpread needs .*scores, .* length is their activity; train it by Classify$"
    ):
        ClassifySpread().losses(Lengths(), Batch(torch.zeros(2, 1, 3, 3), torch.tensor([0, 1])))
