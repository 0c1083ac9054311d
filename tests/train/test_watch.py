"""A watched part: a curve in the journal, and nothing else."""

from dataclasses import replace

import pytest
import torch

from torchcaps.cli.listing import _tell_one
from torchcaps.data import Labelled, load
from torchcaps.data.augment import Crop
from torchcaps.ops import margin_loss
from torchcaps.papers import RECIPES
from torchcaps.results.claims import Claim, Recipe
from torchcaps.results.statistics import UNCHECKED, label, measured
from torchcaps.results.store import make_result
from torchcaps.results.tables import measures, row_of
from torchcaps.train import Options, train
from torchcaps.train.checkpoint import tensors_sha256
from torchcaps.train.evaluate import sample
from torchcaps.train.recipe import Watch
from torchcaps.train.splits import check

CPU = torch.device("cpu")
BATCH = 128
EPOCH = 512 // BATCH


def watched(tmp_path, name="baseline", rule=None, steps=2 * EPOCH, resume_at=None, ema=0.0, **changes):
    run = RECIPES[f"smoke/{name}"].make()
    run = replace(run, stages=(replace(run.stages[0], batch=BATCH, steps=steps, ema=ema, watch=rule, **changes),))
    for most in (resume_at, None) if resume_at else (None,):
        options = Options(out=tmp_path, progress=False, log_every=2, max_steps=most)
        trained = train(run, name=name, seed=0, options=options)
    return run, trained


def lines_of(trained):
    return [line for line in trained.curve if "watched_test_loss" in line]


def test_it_tells_loss_and_error_after_every_epoch_and_at_the_end_what_the_run_is_judged_by(tmp_path):
    run, trained = watched(tmp_path, rule=Watch(n_images=10**6))
    lines = lines_of(trained)
    assert [(line["step"], line["epoch"]) for line in lines] == [(EPOCH, 1), (2 * EPOCH, 2)]
    test = trained.evaluations["test"]
    assert lines[-1]["watched_test_error_percent"] == pytest.approx(test.metrics["error_percent"])
    data = load("generated-16", "test")
    picked = test.answers.log_softmax(-1)[torch.arange(256), data.labels]
    assert lines[-1]["watched_test_loss"] == pytest.approx(-picked.mean().item(), rel=1e-5)
    order = torch.randperm(256, generator=torch.Generator().manual_seed(82019))
    spread = -picked[order].view(2, BATCH).mean(1)
    assert lines[-1]["watched_test_loss_sd"] == pytest.approx(spread.std().item(), rel=1e-4)
    stored = make_result("smoke/baseline", 0, run, trained)["curve"]
    assert sum("watched_test_loss" in line for line in stored) == 2, "a result file keeps all of them"


@pytest.mark.parametrize("beside", [{"rule": Watch()}, {"ema": 0.9}], ids=["watch", "average"])
def test_nothing_else_of_the_run_depends_on_it(tmp_path, beside):
    """Nor on an average of the weights."""
    (_, with_it), (_, without) = watched(tmp_path / "1", **beside), watched(tmp_path / "2")
    assert tensors_sha256(with_it.model.state_dict()) == tensors_sha256(without.model.state_dict())
    losses = [[line["loss"] for line in one.curve if "loss" in line] for one in (with_it, without)]
    assert losses[0] == losses[1] and with_it.steps == without.steps


@pytest.mark.slow
def test_a_resumed_run_has_every_line_once(tmp_path):
    _, whole = watched(tmp_path / "1", rule=Watch(n_images=64), steps=3 * EPOCH)
    for at in (EPOCH, EPOCH + 1):
        _, resumed = watched(tmp_path / str(at), rule=Watch(n_images=64), steps=3 * EPOCH, resume_at=at)
        assert lines_of(resumed) == lines_of(whole)


def test_every_second_epoch_and_a_share_of_the_images(tmp_path):
    _, trained = watched(tmp_path, rule=Watch(every=2, n_images=32), steps=5 * EPOCH)
    assert [line["epoch"] for line in lines_of(trained)] == [2, 4]
    assert "watched_test_loss_sd" not in lines_of(trained)[0], "of less than two batches there is no spread"


def test_the_margin_loss_is_watched_without_the_reconstruction(tmp_path):
    _, trained = watched(tmp_path, "capsnet-plain", Watch(n_images=10**6))
    scores, labels = trained.evaluations["test"].answers, load("generated-16", "test").labels
    margin = 0.05 * margin_loss(scores, torch.nn.functional.one_hot(labels, 10).float()).mean()
    assert lines_of(trained)[-1]["watched_test_loss"] == pytest.approx(margin.item(), rel=1e-5)


def test_the_same_images_every_time_and_of_all_classes():
    """The classes of smallNORB take turns: every fifth image would be of one class."""
    data = Labelled(torch.arange(24_300).view(-1, 1, 1, 1), torch.arange(24_300) % 5)
    some = sample(data, 2500)
    assert torch.equal(some.images, sample(data, 2500).images) and len(some.images.unique()) == 2500
    assert torch.equal(some.images.flatten() % 5, some.labels) and some.labels.bincount().min() > 400


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hold_out": 64}, "a stage watches 'test', and this run has validation; watch one of those"),
        ({"data": "generated-pairs"}, "two classes in an image: no stopping rule, no probe, no watch"),
    ],
)
def test_what_cannot_be_watched_is_refused(changes, message):
    run = RECIPES["smoke/em-capsnet"].make()
    with pytest.raises(ValueError, match=message):
        check(replace(run, stages=(replace(run.stages[0], watch=Watch()),), **changes))


def test_rows_watch_what_they_are_not_judged_by_alone():
    """A curve of test images is in some rows of images, one of validation sentences in all of sentences."""
    runs = {name: run for name, recipe in RECIPES.items() if (run := recipe.make()).trains}
    watching = {name: stage.watch.part for name, run in runs.items() for stage in run.stages if stage.watch}
    of_tests = [name for name, part in watching.items() if part == "test"]
    kinds = ("", "-capsnet", "-cnn", "-float32", "-mixup-half", "-cnn-mixup-half", "-r2")
    of_matrices = ("", "-small", "-soft", "-r2", "-r2-norm-mixup", "-r2-l2", "-r2-l2-long", "-l2-long")
    wanted = {
        "heinsen2019/smallnorb": kinds,
        "hinton2018/smallnorb": of_matrices,
        "jeong2019/mnist": ("-k70-curve", "-shift-k70-curve"),
        "sabour2017/": ("mnist-authors", "mnist-authors-records", "smallnorb-authors-long"),
    }
    assert set(of_tests) == {row + kind for row, kinds in wanted.items() for kind in kinds}
    rest = set(watching) - set(of_tests)
    assert rest and all(name.startswith("heinsen2019/sst") and watching[name] == "validation" for name in rest)
    assert not any(runs[name].stages[0].stop for name in watching)


def test_a_window_that_does_not_fit_is_refused_in_evaluation_too():
    with pytest.raises(ValueError, match="does not fit into images of 60x96"):
        Crop(96, border=16).fixed(torch.zeros(1, 2, 60, 96, dtype=torch.uint8))


@pytest.mark.parametrize(("name", "value", "least"), [("every_steps", -5, 0), ("every", 0, 1), ("n_images", 0, 1)])
def test_a_watch_that_never_looks_is_refused(name, value, least):
    with pytest.raises(ValueError, match=f"{name} of at least {least}; got {value}; give {name}={least} or more"):
        Watch(**{name: value})


def test_it_may_count_steps_instead_of_epochs(tmp_path):
    _, trained = watched(tmp_path, rule=Watch(n_images=50, every_steps=3), steps=2 * EPOCH)
    assert [line["step"] for line in lines_of(trained)] == [3, 6]


def test_the_best_of_a_curve_is_its_least_error_and_the_last_stays_what_the_row_says(tmp_path, capsys):
    run, trained = watched(tmp_path, rule=Watch(every_steps=2))
    result = make_result("smoke/baseline", 0, run, trained)
    for line, error in zip(
        (line for line in result["curve"] if "watched_test_loss" in line), (9, 4, 6, 7), strict=True
    ):
        line["watched_test_error_percent"] = error
    assert measured(result)["best_watched_test_error_percent"] == 4
    claim = Claim(table="1", row="x", metric="test.error_percent", beside=("curve.best_watched_test_error_percent",))
    recipe = Recipe("smoke/baseline", lambda: run, claim)
    row = row_of(recipe, ([result], 0))
    assert row.values == {0: result["metrics"]["test"]["error_percent"]}
    assert row.beside == (("best_watched_test_error_percent", (4,)),)
    assert row.mark("best_watched_test_error_percent") == UNCHECKED
    assert row.ours().endswith("; best checkpoint, selected on test: 4.000†")
    assert "| best checkpoint, selected on test† |" in measures([row], ["best_watched_test_error_percent"])
    _tell_one(recipe, row)
    assert "best checkpoint, selected on test  4.000†" in capsys.readouterr().out
    assert label("half_credit_error_percent") == "half_credit_error_percent"


def test_the_best_of_a_sample_is_not_offered_as_that_of_the_test_set(tmp_path):
    run, trained = watched(tmp_path, rule=Watch(n_images=255, every_steps=2))
    result = make_result("smoke/baseline", 0, run, trained)
    assert len(lines_of(trained)) == 4 and "best_watched_test_error_percent" not in measured(result)
    claim = Claim(table="1", row="x", metric="test.error_percent", beside=("curve.best_watched_test_error_percent",))
    assert row_of(Recipe("smoke/baseline", lambda: run, claim), ([result], 0)).beside == ()
