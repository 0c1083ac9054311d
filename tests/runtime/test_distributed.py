"""Two processes that train together do what one would, and a run that loses one goes on from its last checkpoint."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from weakref import ref

import pytest
import torch
from commands import free_port
from one_of_two import CASES, go, made, normalise, normalise_poses

from torchcaps.papers import RECIPES
from torchcaps.runtime.distributed import Lost, _leave_the_lost
from torchcaps.train.checkpoint import load_checkpoint, tensors_sha256

HERE = Path(__file__).parent
ENVIRONMENT = os.environ | {"PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
CLOSE = 1e-5


def start(rank: int, port: int, out: Path, *names: str) -> subprocess.Popen:
    numbers = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": 2,
        "LOCAL_WORLD_SIZE": 2,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    environment = os.environ | ENVIRONMENT | {name: str(value) for name, value in numbers.items()}
    command = [sys.executable, str(HERE / "one_of_two.py"), str(out), *names]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """Folder of both processes; a single one has begun a run for them. One pytest worker starts them, the others
    wait.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "two"
    done = folder / "done"
    try:
        folder.mkdir()
    except FileExistsError:
        begun = time.monotonic()
        while not done.exists():
            assert time.monotonic() - begun < 200, "the other worker never came to an end"
            time.sleep(0.1)
    else:
        try:
            go(CASES["capsnet"], folder / "one then two", max_steps=7)
            start_both(folder, [0, -signal.SIGKILL])
        finally:
            done.write_text("")
    return folder


@pytest.fixture(scope="module")
def both(out) -> list[dict]:
    return written(out)


def start_both(out: Path, codes: list[int], *names: str) -> None:
    port = free_port()
    both = [start(rank, port, out, *names) for rank in (0, 1)]
    try:
        texts = [process.communicate(timeout=400)[0] for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == codes, texts


def written(out: Path) -> list[dict]:
    return [json.loads((out / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict:
    """Results of one process on the same batches; each case is run once, when it is asked for."""
    folder, known = tmp_path_factory.mktemp("one"), {}

    def case(name: str) -> dict:
        if name not in known:
            known[name] = go(CASES[name], folder / name)
        return known[name]

    return case


def assert_same_curve(one: list, other: list, allowed: float = CLOSE) -> None:
    assert [step for step, _ in one] == [step for step, _ in other]
    off = max(abs(x - y) / abs(x) for (_, x), (_, y) in zip(one, other, strict=True))
    assert off <= allowed, f"losses differ by up to {off:.1e} of their size, allowed {allowed:.0e}"


def test_the_comparison_of_curves_sees_a_difference():
    with pytest.raises(AssertionError, match=r"2\.0e-05"):
        assert_same_curve([[1, 1.0]], [[1, 1.00002]])
    with pytest.raises(AssertionError):
        assert_same_curve([[1, 1.0]], [[2, 1.0]])


@pytest.mark.parametrize("name", CASES)
def test_two_processes_have_the_losses_of_one(name, both, alone):
    assert len(alone(name)["losses"]) >= 5
    assert_same_curve(alone(name)["losses"], both[0][name]["losses"])


@pytest.mark.parametrize("name", [*CASES, "dropout"])
def test_processes_hold_the_same_numbers(name, both):
    """Their logs are equal to the bit; that their weights are is checked wherever one is saved."""
    assert both[0][name]["losses"] == both[1][name]["losses"]


# draws inside the network, which each process makes for itself: dropout, or on and off of neurons and experts
DRAWS = {"baseline", "pooled-sentences", "rbm", "experts-persistent"}
# networks in which rounding errors grow, or turn the rank of a masked capsule: so many steps are compared
GROWS = {
    "em-capsnet": 4,
    "em-capsnet-mixup": 7,
    "stackedcaps-em": 7,
    "matrix-capsnet-norm": 4,
    "inverted-capsnet": 6,
    "efficient-capsnet": 7,
}


@pytest.mark.slow
def test_every_network_has_the_losses_of_one_process(tmp_path):
    names = [name.removeprefix("smoke/") for name in RECIPES if name.startswith("smoke/")]
    assert len(names) >= 23 and set(names) > DRAWS | set(GROWS)
    start_both(tmp_path, [0, 0], *names)
    first, second = written(tmp_path)
    for name in names:
        assert first[name]["losses"] == second[name]["losses"]
        if name not in DRAWS:
            n = GROWS.get(name, 20)
            assert_same_curve(go(made(name), tmp_path / f"{name} alone")["losses"][:n], first[name]["losses"][:n])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_two_processes_on_one_gpu_come_close_to_one(tmp_path, monkeypatch):
    """By gloo, since nccl refuses that; without a graph, against one process with it. Convolutions in bfloat16 round by
    the part.
    """
    monkeypatch.setenv("TEST_DEVICE", "cuda")
    names = ["capsnet", "sparsecaps", "experts"]
    start_both(tmp_path, [0, 0], *names)
    first, second = written(tmp_path)
    for name in names:
        assert first[name]["losses"] == second[name]["losses"]
        alone = go(made(name), tmp_path / f"{name} alone", device="cuda")["losses"]
        assert_same_curve(alone[:10], first[name]["losses"][:10], 2e-2)


def test_a_stopping_rule_stops_all_at_the_same_step(both, alone):
    assert both[0]["stopped"]["steps"] == both[1]["stopped"]["steps"] == alone("stopped")["steps"] < 20


@pytest.mark.parametrize(("name", "alone"), [("batch norm", normalise), ("pose norm", normalise_poses)])
def test_batch_norm_is_that_of_the_whole_batch(both, name, alone):
    """Against one process, for images PyTorch's own, in float64: outputs, gradients, and what is remembered."""
    whole = alone(0, 1)
    parts = [found[name] for found in both]
    for number, (output, gradient, weight, bias) in enumerate(whole["steps"]):
        ours = [part["steps"][number] for part in parts]
        both_outputs, both_gradients = ([x for one in ours for x in one[kind]] for kind in (0, 1))
        torch.testing.assert_close(torch.tensor(both_outputs), torch.tensor(output))
        # the loss of each process is the mean over its own half
        torch.testing.assert_close(torch.tensor(both_gradients) / 2, torch.tensor(gradient))
        for kind, wanted in ((2, weight), (3, bias)):
            torch.testing.assert_close(torch.tensor([one[kind] for one in ours]).mean(0), torch.tensor(wanted))
    for part in parts:
        for key, wanted in whole["state"].items():
            torch.testing.assert_close(torch.tensor(part["state"][key]), torch.tensor(wanted))


def test_what_is_drawn_inside_a_network_is_drawn_again_on_resume(both):
    assert both[0]["dropout resumed"]["sha"] == both[0]["dropout"]["sha"]


def test_a_checkpoint_of_two_goes_on_in_one(out, both, alone):
    resumed = go(CASES["capsnet"], out / "two then one")
    assert_same_curve(alone("capsnet")["losses"], resumed["losses"])
    assert [maker.get("processes") for maker in resumed["made_by"]] == [2, None]


def test_a_checkpoint_of_one_goes_on_in_two(both, alone):
    assert_same_curve(alone("capsnet")["losses"], both[0]["one then two"]["losses"])
    assert [maker.get("processes") for maker in both[0]["one then two"]["made_by"]] == [None, 2]


def test_only_one_writes(out):
    """A log line for each step, in order, none twice; no file that was left aside."""
    lines = [json.loads(line)["step"] for line in (out / "capsnet" / "metrics.jsonl").read_text().splitlines()]
    assert lines == list(range(1, 21))
    assert not list(out.rglob("*.part"))


def test_processes_that_differ_are_not_saved(both, out):
    for found in both:
        assert found["different"].startswith(
            "Diverged: the processes hold different numbers after step 3, which is not saved"
        )
    assert not (out / "different" / "checkpoint.safetensors").exists()


def test_what_a_task_prepares_is_the_first_process_s(both, tmp_path):
    assert both[0]["prepared"] == both[1]["prepared"]
    assert_same_curve(go(made("capsnet-plain", 5), tmp_path)["losses"], both[0]["prepared"]["losses"])


def test_a_signal_to_one_stops_both_and_loses_nothing(both):
    for found in both:
        assert found["told"].startswith("Interrupted: stopped at step 5 and saved")
        assert found["told, then resumed"]["sha"] == found["capsnet"]["sha"]


def test_who_is_left_alone_says_so_and_the_run_goes_on(out, both, alone):
    """The second process was killed in step 11; the last checkpoint is of step 9."""
    assert both[0]["left alone"].startswith("Lost: another process of this run is gone")
    assert load_checkpoint(out / "killed" / "checkpoint.safetensors").about["step"] == 9
    assert_same_curve(alone("capsnet")["losses"], go(CASES["capsnet"], out / "killed")["losses"])


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for threads as Linux shows them")
def test_no_thread_of_a_group_outlives_it(both):
    """One that lets go of a tensor while Python ends aborts the process, in 7 of 20 trials in which they came last."""
    for found in both:
        assert found["threads"] and not found["threads after"]
    assert both[0]["threads left alone"] == []


def test_nothing_that_an_error_went_through_holds_the_group(monkeypatch):
    """A caller's own words around it change nothing, nor does an error without a cause."""
    monkeypatch.setattr("torchcaps.runtime.distributed.distributed.destroy_process_group", lambda: None)

    class Group:
        pass

    def waits():
        group = Group()
        held.append(ref(group))
        raise Lost("gone")

    def says_more():
        try:
            waits()
        except Lost as error:
            raise Lost("another process is gone") from error

    for fails in (waits, says_more):
        held = []
        with pytest.raises(Lost) as told:
            fails()
        assert held[0]() is not None
        _leave_the_lost(told.value, torch.device("cpu"))
        assert held[0]() is None


def test_mixing_that_does_not_say_how_far_it_looks_is_refused_to_both(both):
    for found in both:
        assert found["unclear"].startswith("ValueError: MixesAnyhow() mixes images without saying how far it looks")


# torchrun itself


def workers_of(agent: int) -> list[int]:
    """Its children that have begun to train, by rank."""
    ranks = {}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"PPid:\t{agent}\n" in (folder / "status").read_text():
                environment = dict(
                    part.split("=", 1) for part in (folder / "environ").read_text().split("\0") if "=" in part
                )
                ranks[int(environment["RANK"])] = int(folder.name)
        except (OSError, KeyError):
            continue  # ended meanwhile, or is none
    return [ranks[rank] for rank in sorted(ranks)]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes as Linux shows them")
@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_starts_again_after_a_worker_was_killed(rank, both, tmp_path):
    """SIGKILL in the middle: all are started again, go on from the last checkpoint, and end with the bits of an
    unbroken run.
    """
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "3"]
    torchrun += ["--master-port", str(free_port())]
    command = [str(HERE / "elastic.py"), "train", "smoke/capsnet", "--device", "cpu", "--out", str(tmp_path)]
    checkpoint = tmp_path / "checkpoint.safetensors"
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    agent = subprocess.Popen([*torchrun, *command], env=ENVIRONMENT, **output)
    try:
        begun = time.monotonic()
        while not checkpoint.exists():
            assert time.monotonic() - begun < 100 and agent.poll() is None
            time.sleep(0.01)
        os.kill(workers_of(agent.pid)[rank], signal.SIGKILL)
        assert load_checkpoint(checkpoint).about["step"] < 20
        text, _ = agent.communicate(timeout=200)
    finally:
        agent.terminate()  # it ends its workers too
    assert agent.returncode == 0, text
    assert text.count("is gone") <= 1  # started again once, and not over and over
    assert tensors_sha256(load_checkpoint(checkpoint).tensors) == both[0]["capsnet"]["sha"]
    assert "test: error " in text and text.count("result: ") == 1  # the first speaks for all
    assert len(load_checkpoint(checkpoint).about["made_by"]) == 1  # the same machine went on
    assert json.loads((tmp_path / "result.json").read_text())["processes"] == 2
