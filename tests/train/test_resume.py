"""A run that was broken off and resumed ends with the same bits as one that was not."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import run as command

from torchcaps.data.augment import Shift
from torchcaps.data.batches import Hard, Records
from torchcaps.papers import RECIPES
from torchcaps.runtime.environment import noted_signals
from torchcaps.runtime.metrics_log import read_metrics
from torchcaps.train import Options, train
from torchcaps.train.checkpoint import load_checkpoint, tensors_sha256
from torchcaps.train.recipe import Watch
from torchcaps.train.step import TrainingStep

KILL_RUN = Path(__file__).with_name("kill_run.py")
# golden and resumed runs repeat to the bit at equal thread counts only
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(Path(__file__).parents[2]),
    "OMP_NUM_THREADS": str(torch.get_num_threads()),
}


def finish(out: Path, **options) -> str:
    """Train the smoke recipe to its end; the hash of its weights and of everything else in the last checkpoint."""
    options = {"log_every": 2, "save_every": 3, "progress": False} | options
    train(RECIPES["smoke/capsnet"].make(), name="smoke/capsnet", seed=0, options=Options(out=out, **options))
    return tensors_sha256(load_checkpoint(out / "checkpoint.safetensors").tensors)


def losses(out: Path) -> list[tuple]:
    return [(line["step"], line["loss"]) for line in read_metrics(out / "metrics.jsonl")]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("unbroken")
    finish(out)
    return out


# when, and how many whole checkpoints that leaves
KILLED = {"inside-1": 0, "inside-3": 2, "aside-2": 1, "between-3": 3}


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    """Runs that were killed while they wrote a checkpoint, by moment and number of the checkpoint."""
    out = tmp_path_factory.mktemp("killed")
    done = subprocess.run([sys.executable, str(KILL_RUN), str(out), *KILLED], env=ENVIRONMENT, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return out


@pytest.mark.parametrize("moment", KILLED)
def test_a_killed_run_resumes_to_the_same_bits(unbroken, killed, moment):
    """The last: after the checkpoint of step 9 a log line of steps 9 and 10 must still be their mean."""
    whole = killed / moment / "checkpoint.safetensors"
    assert whole.exists() == (KILLED[moment] > 0)
    if whole.exists():
        assert load_checkpoint(whole).about["step"] == 3 * KILLED[moment]
    assert finish(killed / moment) == tensors_sha256(load_checkpoint(unbroken / "checkpoint.safetensors").tensors)
    assert losses(killed / moment) == losses(unbroken)


def test_the_comparison_sees_a_single_different_step(unbroken, tmp_path):
    assert finish(tmp_path, max_steps=19) != tensors_sha256(
        load_checkpoint(unbroken / "checkpoint.safetensors").tensors
    )


def test_stopping_anywhere_changes_nothing(unbroken, tmp_path):
    for stop in (1, 5, 12):
        finish(tmp_path, max_steps=stop)
    assert finish(tmp_path) == tensors_sha256(load_checkpoint(unbroken / "checkpoint.safetensors").tensors)
    whole = dict(losses(unbroken))
    assert {step: loss for step, loss in losses(tmp_path) if step in whole and step > 12} == {
        s: x for s, x in whole.items() if s > 12
    }
    assert [step for step, _ in losses(tmp_path)] == sorted(
        {step for step, _ in losses(tmp_path)}
    )  # nothing written twice


def test_epochs_go_on_in_the_same_order_across_their_ends(tmp_path):
    """Generated-16 has 32 batches of 16 an epoch; the run is stopped before, at and after the end of the first."""
    recipe = RECIPES["smoke/capsnet-plain"].make()
    run = replace(recipe, stages=(replace(recipe.stages[0], steps=40),))
    hashes = []
    for number, stops in enumerate([(), (31, 32, 33)]):
        for stop in (*stops, None):
            options = Options(out=tmp_path / str(number), progress=False, max_steps=stop)
            trained = train(run, name="x", seed=1, options=options)
        hashes.append(tensors_sha256(trained.model.state_dict()))
    assert hashes[0] == hashes[1]


BY_STEPS = {
    "records": {"records": Records(64), "steps": 20, "batch": 256},  # an epoch of 512 images in 9 places has 18 batches
    "every_steps": {"watch": Watch(n_images=50, every_steps=3), "steps": 8, "batch": 128},
}


@pytest.mark.parametrize(
    ("case", "stops"), [pytest.param("records", (5, 19), marks=pytest.mark.slow), ("every_steps", (2, 3, 4))]
)
def test_records_and_a_watch_by_steps_go_on_as_they_were(tmp_path, case, stops):
    recipe = RECIPES["smoke/baseline"].make()
    run = replace(recipe, augment=(Shift(1),), stages=(replace(recipe.stages[0], **BY_STEPS[case]),))
    found = []
    for number, each in enumerate([(), stops]):
        for stop in (*each, None):
            options = Options(out=tmp_path / str(number), progress=False, log_every=1, max_steps=stop)
            trained = train(run, name="x", seed=1, options=options)
        lines = [(line["step"], line.get("loss"), line.get("watched_test_loss")) for line in trained.curve]
        found.append((tensors_sha256(trained.model.state_dict()), lines))
    assert found[0] == found[1]
    assert [step for step, _, watched in lines if watched is not None] == ([3, 6] if case == "every_steps" else [])


def test_hard_images_go_on_as_they_were(tmp_path):
    """Eight steps an epoch: stopped while images are unseen, at an end, and in an epoch drawn by losses alone."""
    recipe = RECIPES["smoke/capsnet-plain"].make()
    stage = replace(recipe.stages[0], hard=Hard(share=0.25), steps=44)
    run, hashes = replace(recipe, stages=(stage,)), []
    for number, stops in enumerate([(), (3, 13, 32, 43)]):
        for stop in (*stops, None):
            out = tmp_path / str(number)
            train(run, name="x", seed=1, options=Options(out=out, progress=False, log_every=1, max_steps=stop))
        found = load_checkpoint(out / "checkpoint.safetensors").tensors
        hashes.append((tensors_sha256(found), losses(out)))
    assert hashes[0] == hashes[1]
    assert found["step/images/known"].isfinite().sum() > 400


@pytest.mark.slow
def test_a_changing_beta1_and_mixed_images_go_on_as_they_were(tmp_path):
    run, hashes = RECIPES["smoke/em-capsnet-mixup"].make(), []
    for number, stops in enumerate([(), (3, 9)]):  # before and after the optimiser trusts its spread
        for stop in (*stops, None):
            out = tmp_path / str(number)
            train(run, name="x", seed=0, options=Options(out=out, progress=False, max_steps=stop))
        hashes.append(tensors_sha256(load_checkpoint(out / "checkpoint.safetensors").tensors))
    assert hashes[0] == hashes[1]


def test_stages_follow_each_other_and_resume(tmp_path):
    recipe = RECIPES["smoke/capsnet-plain"].make()
    stage = recipe.stages[0]
    run = replace(recipe, stages=(replace(stage, steps=7), replace(stage, steps=5, batch=8, learning_rate=1e-4)))
    hashes = []
    for number, stops in enumerate([(), (7, 9)]):
        for stop in (*stops, None):
            trained = train(
                run,
                name="x",
                seed=1,
                options=Options(out=tmp_path / str(number), progress=False, log_every=1, max_steps=stop),
            )
        assert trained.steps == 12
        assert [line["stage"] for line in trained.curve] == [0] * 7 + [1] * 5
        hashes.append(tensors_sha256(trained.model.state_dict()))
    assert hashes[0] == hashes[1]


@pytest.mark.slow
@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_from_outside_saves_and_leaves_cleanly(tmp_path, which):
    """The command is told to stop in the middle; it saves, says so, and the next call goes on."""
    command = [
        sys.executable,
        "-m",
        "torchcaps",
        "train",
        "digits/stratified",
        "--out",
        str(tmp_path),
        "--device",
        "cpu",
    ]
    process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    begun = time.monotonic()
    while not (tmp_path / "metrics.jsonl").exists() or not (tmp_path / "metrics.jsonl").read_text():
        assert time.monotonic() - begun < 120, "the run never logged"
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    process.send_signal(which)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + which
    step = load_checkpoint(tmp_path / "checkpoint.safetensors").about["step"]
    assert f"stopped at step {step} and saved" in error
    assert "Traceback" not in error


def test_one_signal_by_two_senders_is_one_and_a_later_one_leaves_at_once(monkeypatch):
    """A cluster tells every process, and torchrun or a sweep tells its own once more."""
    with noted_signals() as caught:
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        assert caught == [signal.SIGTERM]
        monkeypatch.setattr("torchcaps.runtime.environment.SAME_SIGNAL", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_leaves_cleanly(tmp_path, monkeypatch, capsys, which):
    once = TrainingStep.once

    def once_then_signal(self):
        once(self)
        if int(self.counter) == 4:
            os.kill(os.getpid(), which)

    monkeypatch.setattr(TrainingStep, "once", once_then_signal)
    before = signal.getsignal(which)
    code, _, error = command(capsys, monkeypatch, "train", "smoke/capsnet", "--out", str(tmp_path), "--device", "cpu")
    assert code == 128 + which and "stopped at step 4 and saved" in error and "Traceback" not in error
    assert load_checkpoint(tmp_path / "checkpoint.safetensors").about["step"] == 4
    assert signal.getsignal(which) is before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda_a_deterministic_run_resumes_to_the_same_bits(tmp_path):
    hashes = []
    for number, stops in enumerate([(), (), (7,)]):
        for stop in (*stops, None):
            hashed = finish(tmp_path / str(number), device="cuda", deterministic=True, max_steps=stop)
        hashes.append(hashed)
    assert hashes[0] == hashes[1] == hashes[2]
