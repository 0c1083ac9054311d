"""The losses of a ladder capsule network, and what is told of a trained one."""

from dataclasses import replace

import pytest
import torch

from torchcaps.data import Labelled
from torchcaps.data.batches import Batch
from torchcaps.models import Baseline, LCapsNet
from torchcaps.ops import code_loss, margin_loss
from torchcaps.ops.ladder import distance_loss, mean_code_loss
from torchcaps.papers import RECIPES
from torchcaps.train import Options, train
from torchcaps.train.recipe import Run, Stage
from torchcaps.train.tasks.ladder import ClassifyLadder

CPU = torch.device("cpu")
SMALL = {"channels": 8, "kernel": 3, "n_types": 2, "d_primary": 4, "primary_kernel": 3, "d_class": 6, "n_kept": 5}


@pytest.fixture
def model():
    return LCapsNet((1, 12, 12), 3, **SMALL)


@pytest.fixture
def batch(rng):
    return Batch(torch.rand(4, 1, 12, 12, generator=rng), torch.tensor([0, 2, 1, 1]))


@pytest.mark.parametrize("withdrawn", [False, True])
def test_the_loss_is_that_of_the_classes_plus_that_of_the_code(model, batch, withdrawn):
    losses = ClassifyLadder(code_weight=0.01, withdrawn=withdrawn).losses(model, batch)
    primary, laddered = model.ladder(batch.images)
    shown = torch.eye(3)[batch.labels]
    classes = distance_loss(laddered.misfit, shown) if withdrawn else margin_loss(laddered.capsules.activity, shown)
    code = (mean_code_loss if withdrawn else code_loss)(laddered.kept.code, primary.activity)
    torch.testing.assert_close(losses["margin"], classes.mean())
    torch.testing.assert_close(losses["code"], 0.01 * code.mean())
    torch.testing.assert_close(losses["loss"], losses["margin"] + losses["code"])
    wrong = 100 * (laddered.capsules.activity.argmax(-1) != batch.labels).float().mean()
    torch.testing.assert_close(losses["error_percent"], wrong)


def test_capsules_that_are_not_kept_learn_from_the_code_alone(model, batch):
    """The class loss leaves them alone; epsilon draws them to 0."""

    def gradient(code_weight: float) -> torch.Tensor:
        seen = []
        handle = model.primary.register_forward_hook(
            lambda *args: seen.append(args[-1].poses) or args[-1].poses.retain_grad()
        )
        ClassifyLadder(code_weight=code_weight).losses(model, batch)["loss"].backward()
        handle.remove()
        return seen[0].grad.abs().sum(-1)

    kept = model.ladder(batch.images)[1].kept.code.bool()
    assert (gradient(0.0)[~kept] == 0).all() and (gradient(0.0)[kept] > 0).all()
    assert (gradient(1e-4)[~kept] > 0).all()


def test_the_answer_is_the_most_active_class(model, rng):
    data = Labelled(
        torch.randint(0, 256, (7, 1, 12, 12), dtype=torch.uint8, generator=rng), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    )
    found = ClassifyLadder().evaluate(model, data, CPU)
    assert found.predictions.tolist() == model(data.images.float() / 255).activity.argmax(-1).tolist()


def test_the_loss_of_an_image_is_its_margin_loss():
    scores, labels = torch.tensor([[0.9, 0.3], [0.2, 0.5]]), torch.tensor([0, 1])
    found = ClassifyLadder().image_losses(None, scores, labels)
    assert found.tolist() == pytest.approx([0.5 * 0.2**2, 0.4**2 + 0.5 * 0.1**2])


def test_extras_tell_how_far_the_kept_stand_out(model, rng):
    data = Labelled(
        torch.randint(0, 256, (7, 1, 12, 12), dtype=torch.uint8, generator=rng), torch.zeros(7, dtype=torch.long)
    )
    found = ClassifyLadder().extras(model, data, CPU, ())
    with torch.no_grad():
        primary, laddered = model.ladder(data.images.float() / 255)
    kept = laddered.kept.code.bool()
    assert (found["n_kept"], found["n_images"], found["n_capsules"]) == (5.0, 7, model.classes.n_in)
    assert found["kept_activity"] == pytest.approx(primary.activity[kept].mean().item(), rel=1e-5)
    assert found["other_activity"] == pytest.approx(primary.activity[~kept].mean().item(), rel=1e-5)
    assert found["never_kept"] == int((~kept.any(0)).sum())
    assert ClassifyLadder().extras(Baseline((1, 12, 12), preset="small"), data, CPU, ()) == {}


def test_it_learns(tmp_path):
    """Seventy steps on bars and half rings; guessing would be wrong on nine in ten."""
    run = RECIPES["smoke/lcapsnet"].make()
    run = replace(run, augment=(), stages=(replace(run.stages[0], steps=70, ema=0.0),))
    trained = train(run, name="x", seed=0, options=Options(out=tmp_path, progress=False))
    assert trained.evaluations["test"].metrics["error_percent"] < 40


MORE = [("told", 1), ("told", 2), ("linear", 0)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "seed"), [("told", 0), *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)]
)
def test_kernels_of_9x9_learn_at_once_if_classes_are_told_first(start, seed, tmp_path):
    """Thirty steps at the full learning rate. Networks without this start still have 60 to 70 % error, whatever the
    seed.
    """
    args = {"channels": 64, "kernel": 9, "n_types": 8, "primary_kernel": 9, "d_class": 4, "n_kept": 18, "start": start}
    stage = Stage(task=ClassifyLadder(), steps=30, batch=16, learning_rate=2e-3)
    run = Run(data="generated", model="lcapsnet", model_args=args, stages=(stage,))
    wrong = (
        train(run, name="x", seed=seed, options=Options(out=tmp_path, progress=False))
        .evaluations["test"]
        .metrics["error_percent"]
    )
    assert wrong < 10 if start == "told" else wrong > 40


def test_a_stage_that_follows_does_not_tell_again(model, batch):
    task = ClassifyLadder()
    task.init(model, batch)
    told = model.classes.makers["down"].bias.clone()
    task.init(model, Batch(1 - batch.images, batch.labels))
    assert told.any() and torch.equal(told, model.classes.makers["down"].bias)
    task.init(Baseline((1, 12, 12), preset="small"), batch)  # which has nothing to tell


def test_the_mean_of_the_withdrawn_code_may_stand_beside_the_papers_margin(model, batch):
    losses = ClassifyLadder(code_weight=0.01, mean_code=True).losses(model, batch)
    primary, laddered = model.ladder(batch.images)
    torch.testing.assert_close(losses["margin"], ClassifyLadder().losses(model, batch)["margin"])
    torch.testing.assert_close(losses["code"], 0.01 * mean_code_loss(laddered.kept.code, primary.activity).mean())


@pytest.mark.parametrize(("done", "share"), [(0, 0.0), (25, 0.5), (50, 1.0), (90, 1.0)])
def test_a_ramp_raises_the_weight_of_the_code_over_its_fraction_of_the_steps(model, batch, done, share):
    whole = ClassifyLadder(code_weight=0.01).losses(model, batch)
    found = ClassifyLadder(code_weight=0.01, ramp=0.5).losses_at(model, batch, torch.tensor(done), 100)
    torch.testing.assert_close(found["code"], share * whole["code"])
    torch.testing.assert_close(found["loss"], whole["margin"] + share * whole["code"])
    same = ClassifyLadder(code_weight=0.01).losses_at(model, batch, torch.tensor(done), 100)
    assert torch.equal(same["loss"], whole["loss"])


def test_a_network_may_order_its_kept_capsules_by_activity(batch):
    model = LCapsNet((1, 12, 12), 3, **SMALL, order="activity")
    primary, laddered = model.ladder(batch.images)
    kept = primary.activity.gather(-1, laddered.kept.index)
    assert (kept.diff() <= 0).all()
    with pytest.raises(ValueError, match="order must be one of index, activity; got 'size'"):
        LCapsNet((1, 12, 12), 3, **SMALL, order="size")
