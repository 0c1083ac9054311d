"""`torchcaps reproduce --workers N`: rows and seeds in processes of their own."""

import json
import os
import signal
import sys
import time
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest
from commands import run

from torchcaps import cli
from torchcaps.cli import sweep as sweeps
from torchcaps.cli.sweep import Failed, Failure, Job, devices_for, reproduce_apart, sweep
from torchcaps.papers import RECIPES
from torchcaps.runtime.environment import make_folder
from torchcaps.train import Interrupted

HOME = Path(__file__).parents[2]
# in the place of torchcaps: what it is told to do, when it began and ended, and on which device
CHILD = """
import json, os, signal, sys, time
words = sys.argv[1:]
name, act = words[:2]
begun = time.monotonic()
def leave(signum, frame):
    print("saved", flush=True)
    if act == "stay":
        time.sleep(30)
    sys.exit(1 if act == "spoil" else 128 + signum)
signal.signal(signal.SIGTERM, leave)
print("begun\\n\\n", flush=True)
if act in ("wait", "stay", "spoil"):
    time.sleep(30)
time.sleep(0.3)
with open(name, "w") as file:
    json.dump([begun, time.monotonic(), words[words.index("--device") + 1], os.environ["OMP_NUM_THREADS"]], file)
if act == "fail":
    print("it went wrong", file=sys.stderr)
    sys.exit(3)
if act == "die":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "child.py").write_text(CHILD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweeps, "COMMAND", [sys.executable, "-S", "child.py"])
    monkeypatch.setattr(sweeps, "n_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path


def jobs(**acts: str) -> list[Job]:
    return [Job(name, [name, act]) for name, act in acts.items()]


def told(name: str) -> list:
    return json.loads(Path(name).read_text())


def test_many_may_look_at_one_folder_at_once(tmp_path):
    """Every child sees first whether it can write its result."""
    with ThreadPool(8) as pool:
        pool.map(lambda _: make_folder(tmp_path / "results"), range(2000), chunksize=1)
    assert not list((tmp_path / "results").iterdir())


def test_so_many_at_a_time_and_no_more(place):
    lines = []
    assert sweep(jobs(a="run", b="run", c="run"), 2, "cpu", lines.append) == []
    spans = sorted(told(name)[:2] for name in "abc")
    assert spans[1][0] < spans[0][1], "the second waited for the first"
    assert spans[2][0] > min(spans[0][1], spans[1][1]), "three ran at once"
    assert sorted(lines) == ["a | begun", "b | begun", "c | begun"]


def test_what_fails_is_named_and_the_others_go_on(place):
    failures = sweep(jobs(a="fail", b="run", c="die", d="run"), 2, "cpu", lambda line: None)
    assert sorted(failures) == [Failure("a", 3, "it went wrong"), Failure("c", -9, "begun")]
    assert [str(each) for each in sorted(failures)] == ["a (exit code 3: it went wrong)", "c (signal 9: begun)"]
    assert all(Path(name).exists() for name in "abcd")


def test_several_gpus_are_dealt_out_in_turn(place, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert devices_for("auto") == devices_for("cuda") == ["cuda:0", "cuda:1"]
    assert devices_for("cpu") == ["cpu"] and devices_for("cuda:1") == ["cuda:1"]
    sweep(jobs(a="run", b="run"), 2, "auto", lambda line: None)
    assert sorted(told(name)[2] for name in "ab") == ["cuda:0", "cuda:1"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert devices_for("auto") == ["auto"]


def test_cores_are_shared_unless_the_user_says_otherwise(place, monkeypatch):
    sweep(jobs(a="run"), 2, "cpu", lambda line: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    sweep(jobs(b="run"), 2, "cpu", lambda line: None)
    assert told("a")[3] == "4" and told("b")[3] == "3"


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_once_and_nothing_new_begins(place, which):
    lines = []

    def say(line: str) -> None:
        lines.append(line)
        if len(lines) == 2:  # both have begun
            os.kill(os.getpid(), which)

    begun = time.monotonic()
    with pytest.raises(Interrupted, match="stopped; what was running is saved; the same command goes on") as caught:
        sweep(jobs(a="wait", b="wait", c="wait"), 2, "cpu", say)
    assert caught.value.signum == which
    assert time.monotonic() - begun < 20  # they were asked to leave, and would have waited 30 seconds
    assert sorted(lines) == ["a | begun", "a | saved", "b | begun", "b | saved"]


def test_what_could_not_be_saved_is_named(place):
    lines = []

    def say(line: str) -> None:
        lines.append(line)
        if len(lines) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match=r"saved, but b \(exit code 1: saved\) failed; the same command"):
        sweep(jobs(a="wait", b="spoil"), 2, "cpu", say)


def test_a_second_signal_ends_children_that_do_not_leave(place, monkeypatch):
    """The loop is left at once, and nobody stays behind."""
    lines, started = [], []
    init = sweeps.Child.__init__

    def noted(self, *args) -> None:
        init(self, *args)
        started.append(self)

    def say(line: str) -> None:
        lines.append(line)
        os.kill(os.getpid(), signal.SIGINT)  # at "begun", and again at whatever it says then

    monkeypatch.setattr(sweeps.Child, "__init__", noted)
    monkeypatch.setattr("torchcaps.runtime.environment.SAME_SIGNAL", 0.0)
    with pytest.raises(KeyboardInterrupt):
        sweep(jobs(a="stay"), 1, "cpu", say)
    assert [child.process.returncode for child in started] == [-signal.SIGKILL]


def test_the_command_of_a_child_is_the_same_for_one_row_and_seed(monkeypatch):
    seen = []
    monkeypatch.setattr(sweeps, "sweep", lambda jobs, n, device, say: seen.append((jobs, n, device)) or [])
    options = {"--data": None, "--results": Path("kept"), "--deterministic": True, "--quick": False, "--as-is": False}
    assert reproduce_apart([(RECIPES["digits/plain"], 4)], 2, "cpu", options) == []
    words = ["reproduce", "digits/plain", "--seeds", "4", "--results", "kept", "--deterministic", "--no-table"]
    assert seen == [([Job("digits/plain seed 4", words)], 2, "cpu")]
    with pytest.raises(ValueError, match="--workers takes 1 or more; got 0"):
        reproduce_apart([], 0, "cpu", options)


WORDS = [
    "reproduce",
    "smoke",
    "--row",
    "capsnet-plain",
    "--row",
    "baseline",
    "--seeds",
    "0",
    "--device",
    "cpu",
    "--workers",
    "2",
]


def test_a_sweep_that_failed_in_part_ends_with_1(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        cli.reproduction, "reproduce_apart", lambda pairs, *_: [Failure(pairs[0][0].name, 2, "because")]
    )
    code, out, err = run(capsys, monkeypatch, *WORDS)
    assert code == 1
    assert "torchcaps: 1 of 2 runs failed, the others are done: smoke/capsnet-plain (exit code 2: because)" in err
    assert "wrote figures/smoke/table.md" in out


@pytest.mark.slow
def test_a_sweep_names_what_failed_and_keeps_what_is_done(capsys, monkeypatch, tmp_path):
    """Children as they are; one row's folder cannot be written to, so that it fails."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(HOME))
    lines = []
    monkeypatch.setattr(sweeps, "say", lines.append)
    Path("runs/smoke").mkdir(parents=True)
    Path("runs/smoke/capsnet-plain").write_text("in the way")
    code, out, err = run(capsys, monkeypatch, *WORDS)
    assert code == 1
    assert any(line.startswith("smoke/baseline seed 0 | ") and "20/20" in line for line in lines)
    assert (
        "1 of 2 runs failed, the others are done: smoke/capsnet-plain seed 0 (exit code 2: torchcaps: cannot write to"
        in err
    )
    assert "smoke/baseline seed 0: done, results/smoke/baseline/0.json" in out
    Path("runs/smoke/capsnet-plain").unlink()
    lines.clear()
    code, out, err = run(capsys, monkeypatch, *WORDS)
    assert code == 0, err
    assert not any(line.startswith("smoke/baseline") for line in lines), "what is done was done again"
    assert out.count("done, results/smoke/") == 2


def test_rows_that_train_nothing_wait_for_their_networks(capsys, monkeypatch, tmp_path):
    """They are carried out here, one after the other: what they fit is shared, and --jobs is for them."""
    order = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        cli.reproduction, "reproduce_apart", lambda pairs, *_: order.extend(row.name for row, _ in pairs) or []
    )
    monkeypatch.setattr(cli.reproduction, "train_recipe", lambda recipe, *_, **how: order.append(recipe.name))
    words = [
        "reproduce",
        "rawlinson2018",
        "--row",
        "like-sparse-svm-a",
        "--seeds",
        "0",
        "--quick",
        "--device",
        "cpu",
        "--workers",
        "2",
    ]
    code, _, err = run(capsys, monkeypatch, *words)
    assert code == 0, err
    assert order == ["rawlinson2018/like-sparse", "rawlinson2018/like-sparse-svm-a"]


def test_only_training_is_for_processes_that_were_started_together(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    code, _, err = run(capsys, monkeypatch, "reproduce", "smoke/capsnet")
    assert code == 2
    assert err.startswith(
        "torchcaps (process 2 of 2): 2 processes were started together, which is for `torchcaps train` alone"
    )


def test_a_failed_sweep_is_an_error_of_its_own():
    assert issubclass(Failed, RuntimeError) and not issubclass(Failed, ValueError)
