"""Training on hard images: each loss is kept at its image, whatever runs the step."""

import json
from dataclasses import replace

import pytest
import torch

from torchcaps.data import Labelled, load
from torchcaps.data.batches import Batches, Hard
from torchcaps.ops import margin_loss
from torchcaps.papers import RECIPES
from torchcaps.results.verify import check_course
from torchcaps.train import Options, splits, train
from torchcaps.train.capture import Before
from torchcaps.train.evaluate import n_steps_of
from torchcaps.train.plain import to_plain
from torchcaps.train.recipe import Run, Stage, stored_run
from torchcaps.train.step import TrainingStep
from torchcaps.train.tasks.classify import Classify
from torchcaps.train.vary import parsed, vary

CPU = torch.device("cpu")
HARD = Hard(share=0.5, fresh=0.25)


def hard_run(recipe: str = "smoke/capsnet", **changed) -> Run:
    return vary(RECIPES[recipe].make(), {"hard": HARD} | changed)


def make_step(data: Labelled | None = None, **changed) -> TrainingStep:
    run = hard_run(**changed)
    torch.manual_seed(0)
    batches = Batches(load(run.data, "train") if data is None else data, 16, (), CPU, hard=HARD)
    batches.new_epoch(torch.Generator().manual_seed(0))
    return TrainingStep(run.stages[0], run.build(), batches, 200, CPU)


def test_each_loss_is_kept_at_its_image():
    step = make_step()
    with torch.no_grad():
        batch = step.batches.at(torch.tensor(0))
        present = torch.nn.functional.one_hot(batch.labels, 10).float()
        wanted = margin_loss(step.model(batch.images), present)
    step()
    first, second = step.batches.plan[0][:2]
    torch.testing.assert_close(step.batches.losses[first], wanted)
    assert wanted.std() > 0 and step.batches.losses.isinf().sum() == len(step.batches.losses) - 16
    step()
    assert step.batches.losses[second].isfinite().all()


def test_an_image_with_a_wrong_label_is_shown_in_every_epoch():
    """Two classes of 32 equal images each, white above or below: the one with the other label cannot be learnt."""
    images, labels = torch.zeros(64, 1, 16, 16, dtype=torch.uint8), torch.arange(64) % 2
    images[labels == 0, :, :8], images[labels == 1, :, 8:] = 255, 255
    labels[7] = 1 - labels[7]
    step, rng = make_step(Labelled(images, labels), reconstruction=False), torch.Generator().manual_seed(0)
    epochs = []
    for _ in range(20):
        step.batches.look()
        step.batches.new_epoch(rng)
        epochs.append(set(step.batches.plan[0].flatten().tolist()))
        for _ in range(step.batches.n_steps):
            step()
    assert all(7 in epoch for epoch in epochs[5:])
    assert step.batches.losses.argmax() == 7 and step.batches.losses.median() < 0.1 * step.batches.losses[7]
    assert len({image for epoch in epochs[5:] for image in epoch}) == 64  # the others take turns


def test_a_warm_up_leaves_no_trace_in_the_losses():
    step = make_step()
    before = Before(step)
    step.once()
    assert step.batches.losses.isfinite().any()
    before.put_back()
    assert step.batches.losses.isinf().all()


def test_a_compiled_step_keeps_the_same_losses():
    plain, compiled = (make_step(reconstruction=False, n_iters=1) for _ in range(2))
    torch._dynamo.reset()
    compiled.forward = torch.compile(compiled._forward, dynamic=False, backend="aot_eager")
    for step in (plain, compiled):
        step()
        step()
    torch.testing.assert_close(compiled.batches.losses, plain.batches.losses)
    assert compiled.read_means() == pytest.approx(plain.read_means())


def test_an_epoch_is_a_share_of_the_images():
    stage, data = replace(hard_run().stages[0], steps=None, epochs=3), load("generated-16", "train")
    assert n_steps_of(stage, data) == 3 * (256 // 16) and len(data.labels) == 512
    run = replace(hard_run(), stages=(stage,))
    assert run.cost() == replace(run, stages=(replace(stage, hard=None),)).cost() / 2


def test_a_typed_and_a_stored_run_are_the_run():
    assert parsed("Hard(share=0.5)") == HARD
    assert stored_run(json.loads(json.dumps(to_plain(hard_run())))) == hard_run()
    old = to_plain(RECIPES["smoke/capsnet"].make())
    del old["stages"][0]["hard"]  # written before there was the choice
    assert stored_run(old) == RECIPES["smoke/capsnet"].make() and Stage().hard is None


def test_a_task_without_a_loss_of_each_image_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"asks ClassifyLogits for hard images, and it has no losses_per_image\(model"):
        train(hard_run("smoke/baseline"), name="x", seed=0, options=Options(out=tmp_path, progress=False))


class OtherLosses(Classify):
    def losses(self, model, batch):
        return super().losses(model, batch)


class Rising(Classify):
    def losses_at(self, model, batch, done, n_steps):
        return self.losses(model, batch)


class OwnImages(OtherLosses):
    def losses_per_image(self, model, batch):
        return super().losses_per_image(model, batch)


def test_a_task_whose_own_losses_would_not_be_asked_is_refused():
    data, stage = "generated-16", hard_run().stages[0]
    for task, name in ((OtherLosses(), "losses"), (Rising(), "losses_at")):
        with pytest.raises(ValueError, match=rf"has a {name} that losses_per_image\(model, batch\) does not know"):
            splits.check(replace(hard_run(), data=data, stages=(replace(stage, task=task),)))
    splits.check(replace(hard_run(), data=data, stages=(replace(stage, task=OwnImages()),)))


def test_the_steps_of_a_result_are_checked_by_the_shorter_epoch():
    run = replace(hard_run(), stages=(replace(hard_run().stages[0], steps=None, epochs=3),))
    assert check_course({"steps": 48, "curve": [{"step": 48}], "metrics": {}}, run)[0].passed
    assert not check_course({"steps": 96, "curve": [{"step": 96}], "metrics": {}}, run)[0].passed


def test_both_ways_to_the_losses_are_one():
    model, batch = RECIPES["smoke/capsnet"].make().build(), make_step().batches.at(torch.tensor(0))
    losses, each = Classify().losses_per_image(model, batch)
    assert losses == Classify().losses(model, batch)
    assert each.shape == (16,) and torch.equal(losses["margin"], model.margin_weight() * each.mean())
