"""What a run counts as training, compiling, saving and evaluation."""

import time

import pytest
from smoke import smoke

from torchcaps.papers import RECIPES
from torchcaps.train import evaluate, loop
from torchcaps.train.checkpoint import load_checkpoint, save_checkpoint
from torchcaps.train.recipe import Watch
from torchcaps.train.step import TrainingStep
from torchcaps.train.tasks.classify import Classify
from torchcaps.train.vary import vary


def test_a_resumed_run_counts_the_seconds_from_before(tmp_path):
    smoke(tmp_path, max_steps=1)
    path = tmp_path / "checkpoint.safetensors"
    found = load_checkpoint(path)
    save_checkpoint(path, found.tensors, found.about | {"seconds": 1000.0})
    assert smoke(tmp_path, max_steps=2).seconds > 1000


LONG = 1000.0  # seconds


@pytest.fixture
def takes_long(monkeypatch):
    """Let functions seem to take LONG seconds more."""
    passed, clock = [], time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + LONG * len(passed))

    def slow(owner, name: str) -> None:
        once = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **how: passed.append(name) or once(*args, **how))

    return slow


def test_compiling_evaluation_and_saving_are_not_counted_as_training(tmp_path, monkeypatch, takes_long):
    """On a CPU nothing is compiled, so a step that claims to be unprepared stands for a GPU's."""
    ready = []
    monkeypatch.setattr(TrainingStep, "unprepared", property(lambda step: not ready))
    monkeypatch.setattr(TrainingStep, "prepare", lambda step: ready.append(True))
    for owner, name in ((TrainingStep, "prepare"), (loop, "_save"), (Classify, "evaluate"), (evaluate, "dead_on")):
        takes_long(owner, name)
    run = vary(RECIPES["smoke/capsnet"].make(), {"watch": Watch(n_images=16, every_steps=5)})
    # dead layers once, the watched sample four times, at the end the weights and their average
    wanted = {"training": 0, "compiling": 1, "saving": 1, "evaluation": 1 + 4 + 2}
    # a checkpoint is due every minute
    found = smoke(tmp_path / "once", run=run, save_every=100).phases
    assert {name: int(seconds / LONG) for name, seconds in found.items()} == wanted
    takes_long(TrainingStep, "__call__")
    assert smoke(tmp_path / "slow", run=run, save_every=100).phases["training"] > 20 * LONG


def test_a_resumed_run_counts_the_training_from_before(tmp_path):
    first = smoke(tmp_path, max_steps=10).phases["training"]
    checkpoint = load_checkpoint(tmp_path / "checkpoint.safetensors")
    assert checkpoint.about["phases"]["training"] == pytest.approx(first, abs=0.05)
    held = checkpoint.about["phases"] | {"training": 1000.0}
    save_checkpoint(tmp_path / "checkpoint.safetensors", checkpoint.tensors, checkpoint.about | {"phases": held})
    found = smoke(tmp_path)
    assert 1000 < found.phases["training"] < 1100
    # nothing is left to train: the same seconds again
    assert smoke(tmp_path).phases["training"] == pytest.approx(found.phases["training"], abs=0.05)
