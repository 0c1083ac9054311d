"""The loop: what it trains on, what it evaluates on, what it says."""

import json
import os
import shutil
import signal
import subprocess
import sys
import types
from dataclasses import dataclass, replace

import pytest
import torch
from smoke import smoke

from torchcaps.data import fingerprint, load
from torchcaps.papers import RECIPES
from torchcaps.results.store import make_result
from torchcaps.runtime.environment import commit
from torchcaps.train import Diverged, Interrupted, Options, train
from torchcaps.train.checkpoint import load_checkpoint
from torchcaps.train.recipe import Stage, Stop
from torchcaps.train.splits import part
from torchcaps.train.tasks import Task
from torchcaps.train.tasks.classify import Classify

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The smoke recipe trained to its end, and where."""
    out = tmp_path_factory.mktemp("whole")
    return smoke(out), out


def test_training_lowers_the_loss_and_reports_every_step(whole):
    trained, out = whole
    curve = [line["loss"] for line in trained.curve]
    assert len(curve) == trained.steps == 20
    assert sum(curve[-5:]) < 0.9 * sum(curve[:5])
    assert set(trained.evaluations) == {"test", "test_ema"}
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines == trained.curve


def test_a_logged_loss_is_the_mean_since_the_last_log_line(whole, tmp_path):
    each = [line["loss"] for line in whole[0].curve]
    by_five = [line["loss"] for line in smoke(tmp_path, log_every=5).curve]
    assert by_five == pytest.approx([sum(each[n : n + 5]) / 5 for n in range(0, 20, 5)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"views": ("placed",)}, "views are of held-out images, and this run holds none out"),
        (
            {"stages": (Stage(stop=Stop(accuracy=99.0)),)},
            "a stage stops by 'validation', and this run has test; stop by one of those",
        ),
        ({"data": "generated-pairs", "keep_scores": True}, "generated-pairs has two classes in an image"),
    ],
    ids=str,
)
def test_what_could_only_fail_later_is_refused_at_once(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        smoke(tmp_path, run=replace(RECIPES["smoke/capsnet"].make(), **change))


def test_further_test_sets_are_tested_and_named(tmp_path):
    pytest.importorskip("sklearn")
    run = replace(RECIPES["smoke/capsnet"].make(), tests=("digits-writers",))  # of the same shape
    trained = smoke(tmp_path, run=run)
    assert set(trained.evaluations) == {"test", "test_ema", "digits-writers", "digits-writers_ema"}
    digits = load("digits-writers", "test")
    assert trained.evaluations["digits-writers"].metrics == Classify().evaluate(trained.model, digits, CPU).metrics
    assert trained.data["digits-writers"] == fingerprint(digits) != trained.data["test"]


def test_a_probe_writes_into_the_journal_and_changes_nothing(whole, tmp_path):
    run = RECIPES["smoke/capsnet"].make()
    probing = replace(run, stages=(replace(run.stages[0], probe_every=8),))
    plain, probed = whole[0], smoke(tmp_path, run=probing)
    seen = [line for line in probed.curve if "logit_change_2" in line]
    assert [line["step"] for line in seen] == [8, 16] and all(line["logit_change_3"] > 0 for line in seen)
    assert [line["loss"] for line in probed.curve if "loss" in line] == [line["loss"] for line in plain.curve]
    assert probed.evaluations["test"].metrics == plain.evaluations["test"].metrics


def test_a_task_without_a_probe_says_so(tmp_path):
    run = RECIPES["smoke/baseline"].make()
    with pytest.raises(ValueError, match=r"asks ClassifyLogits for probes, and it has no probe\(model, images\)"):
        smoke(tmp_path, run=replace(run, stages=(replace(run.stages[0], probe_every=8),)))


def test_a_result_keeps_what_the_routing_did(whole):
    found = make_result("smoke/capsnet", 0, RECIPES["smoke/capsnet"].make(), whole[0])["diagnostics"]
    assert len(found["passes"]) == 5 and found["n_iters"] == 3
    assert found["passes"][2]["accuracy_percent"] == pytest.approx(
        100 - whole[0].evaluations["test"].metrics["error_percent"]
    )


def test_a_part_that_a_run_has_not_is_refused():
    with pytest.raises(ValueError, match="no part 'validation'; it has train, test"):
        part(RECIPES["smoke/capsnet"].make(), "validation", None, 0)


def test_the_first_step_that_is_not_finite_is_named_and_the_last_good_checkpoint_kept(tmp_path, monkeypatch):
    losses, calls = Classify.losses, []

    def poisoned(self, model, batch):
        calls.append(1)
        values = losses(self, model, batch)
        return values | {"loss": values["loss"] * (float("nan") if len(calls) == 8 else 1.0)}

    monkeypatch.setattr(Classify, "losses", poisoned)
    with pytest.raises(Diverged, match="not finite at step 8; the last good checkpoint is"):
        smoke(tmp_path, log_every=10, save_every=3)
    kept = load_checkpoint(tmp_path / "checkpoint.safetensors")
    assert kept.about["step"] == 6
    assert all(tensor.isfinite().all() for tensor in kept.part("model").values())


def test_another_run_in_the_same_folder_is_refused(whole):
    run = RECIPES["smoke/capsnet"].make()
    with pytest.raises(ValueError, match=r"belongs to another run \(stages\[0\].batch: 16, 8\)"):
        smoke(whole[1], run=replace(run, stages=(replace(run.stages[0], batch=8),)))


def test_another_seed_in_the_same_folder_is_refused(tmp_path):
    """Under another seed other images are held out: the run would go on with weights that have seen them."""
    run = RECIPES["smoke/capsnet"].make()
    smoke(tmp_path, max_steps=1)
    with pytest.raises(ValueError, match=r"belongs to another run \(seed: 0, 1\)"):
        train(run, name="smoke/capsnet", seed=1, options=Options(out=tmp_path, progress=False))


def test_training_leaves_the_global_generator_alone(tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    smoke(tmp_path, max_steps=2)
    assert torch.equal(torch.rand(3), expected)


def test_seeds_differ_and_repeat(tmp_path):
    run = RECIPES["smoke/capsnet-plain"].make()
    last = []
    for number, seed in enumerate([0, 0, 1]):
        options = Options(out=tmp_path / str(number), progress=False)
        last.append(train(run, name="x", seed=seed, options=options).curve[-1]["loss"])
    assert last[0] == last[1] != last[2]


def test_the_average_of_the_weights_follows_them(tmp_path):
    """With decay 0 after one step it would be the weights; with 0.9 it is nine tenths old, one tenth new."""
    smoke(tmp_path, max_steps=1)
    first = load_checkpoint(tmp_path / "checkpoint.safetensors")
    smoke(tmp_path, max_steps=2)
    second = load_checkpoint(tmp_path / "checkpoint.safetensors")
    for name, average in second.part("step/ema").items():
        expected = 0.9 * first.tensors[f"step/ema/{name}"] + 0.1 * second.tensors[f"model/{name}"]
        torch.testing.assert_close(average, expected)


def test_progress_shows_loss_accuracy_speed_and_time_left(tmp_path, capsys):
    smoke(tmp_path, progress=True)
    shown = capsys.readouterr().err
    assert "loss" in shown
    assert "accuracy" in shown
    assert "images/s" in shown
    assert "0:00:00" in shown


@pytest.mark.slow
def test_without_a_terminal_progress_is_a_line_now_and_then(tmp_path, capsys, monkeypatch):
    """As in a log file: a bar alone would show nothing before its end."""
    smoke(tmp_path / "short", progress=True)
    assert "5/20 loss" not in capsys.readouterr().err
    monkeypatch.setattr("torchcaps.runtime.metrics_log.LINE_EVERY", 0.0)
    smoke(tmp_path / "long", progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert sum(line.startswith(f"{step}/20 loss ") for step in range(1, 20) for line in lines) == 19


def test_weights_that_are_not_finite_are_never_saved(tmp_path, monkeypatch):
    """A finite loss can have an infinite gradient; then the loss shows it one step late, after a checkpoint perhaps."""
    backward, calls = Task.backward, []

    def poisoned(self, model, batch, losses):
        backward(self, model, batch, losses)
        calls.append(1)
        if len(calls) == 6:
            model.conv.weight.grad.fill_(float("nan"))

    monkeypatch.setattr(Task, "backward", poisoned)
    with pytest.raises(Diverged, match="the weights are not finite after step 6; the last good checkpoint is"):
        smoke(tmp_path, log_every=10, save_every=3)
    assert load_checkpoint(tmp_path / "checkpoint.safetensors").about["step"] == 3


def test_a_signal_during_the_last_evaluation_is_not_swallowed(tmp_path, monkeypatch):
    evaluate = Classify.evaluate

    def interrupted(self, *args):
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Classify, "evaluate", interrupted)
        # the average is evaluated too, and a second signal leaves at once
        with pytest.raises((Interrupted, KeyboardInterrupt)):
            smoke(tmp_path)
    assert smoke(tmp_path).evaluations["test"].metrics["error_percent"] >= 0


def test_a_result_names_those_who_trained_it_not_those_who_asked(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_COMMIT", "a" * 40)
    smoke(tmp_path, max_steps=10)
    monkeypatch.setenv("TORCHCAPS_COMMIT", "b" * 40)
    assert [maker["commit"][0] for maker in smoke(tmp_path).made_by] == ["a", "b"]
    monkeypatch.setenv("TORCHCAPS_COMMIT", "c" * 40)
    assert [maker["commit"][0] for maker in smoke(tmp_path).made_by] == ["a", "b"]  # it was finished


def test_a_task_of_ones_own_resumes(tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Mine(Classify):
        pass

    run = RECIPES["smoke/capsnet-plain"].make()
    run = replace(run, stages=(replace(run.stages[0], task=Mine()),))
    smoke(tmp_path, run=run, max_steps=5)
    assert smoke(tmp_path, run=run).steps == 20


def test_what_a_task_prepares_is_what_the_average_starts_from(tmp_path):
    @dataclass(frozen=True, kw_only=True)
    class Zeroed(Classify):
        def init(self, model, batch):
            model.conv.weight.data.zero_()

    run = RECIPES["smoke/capsnet"].make()
    run = replace(run, stages=(replace(run.stages[0], task=Zeroed(), learning_rate=0.0),))
    smoke(tmp_path, run=run, max_steps=1)
    assert not load_checkpoint(tmp_path / "checkpoint.safetensors").tensors["step/ema/conv.weight"].any()


def test_training_leaves_the_numerics_as_they_were(tmp_path):
    torch.use_deterministic_algorithms(True, warn_only=True)
    smoke(tmp_path, max_steps=1)
    assert torch.is_deterministic_algorithms_warn_only_enabled()


def test_tensorboard_gets_every_number_where_it_is_installed(tmp_path, monkeypatch):
    written = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            written.append((folder.name, purge_step))

        def add_scalar(self, name, value, step):
            written.append((name, step))

        def close(self):
            written.append("closed")

    stub = types.ModuleType("torch.utils.tensorboard")
    stub.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stub)
    monkeypatch.setattr("torchcaps.runtime.metrics_log.find_spec", lambda name: True)
    smoke(tmp_path, max_steps=2)
    assert written[0] == ("tensorboard", 1)
    assert {("loss", 1), ("loss", 2), ("error_percent", 2)} <= set(written)
    assert written[-1] == "closed"


def test_a_guest_in_another_repository_does_not_claim_its_commit(tmp_path, monkeypatch):
    if shutil.which("git") is None:
        pytest.skip("needs git")
    monkeypatch.delenv("TORCHCAPS_COMMIT", raising=False)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "theirs").write_text("")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "theirs"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr("torchcaps.runtime.environment.__file__", str(tmp_path / "runtime" / "environment.py"))
    assert commit() == {"commit": "unknown", "dirty": True}
