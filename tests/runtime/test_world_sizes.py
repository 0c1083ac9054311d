"""One and four processes under torchrun train as one plain process does, and four hand their checkpoint to one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from one_of_two import CASES, go, made
from test_distributed import ENVIRONMENT, assert_same_curve

from torchcaps.train.checkpoint import load_checkpoint, tensors_sha256

HERE = Path(__file__).parent
NEEDS_CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)]
NAMES = ["capsnet", "sparsecaps"]  # sums of gradients, and of counts inside a layer


def torchrun(n: int, *command: str) -> str:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n), *command]
    done = subprocess.run(words, env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def one_thread():
    """As many as the processes started have: sums by more differ in the last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(int(ENVIRONMENT["OMP_NUM_THREADS"]))
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def four(tmp_path_factory) -> Path:
    """A folder in which four processes have trained: to the end, and ten of twenty steps."""
    out = tmp_path_factory.mktemp("four")
    torchrun(4, str(HERE / "one_of_two.py"), str(out), *NAMES, "capsnet@10")
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_four_processes_have_the_losses_of_one_at_the_same_total_batch(name, four, tmp_path):
    found = [json.loads((four / f"{rank}.json").read_text())[name] for rank in range(4)]
    assert all(other["losses"] == found[0]["losses"] for other in found)
    assert [maker["processes"] for maker in found[0]["made_by"]] == [4]
    assert_same_curve(go(made(name), tmp_path)["losses"], found[0]["losses"])


@pytest.mark.slow
def test_a_checkpoint_of_four_goes_on_in_one(four, tmp_path):
    assert load_checkpoint(four / "capsnet@10" / "checkpoint.safetensors").about["step"] == 10
    resumed = go(CASES["capsnet"], four / "capsnet@10")
    assert [maker.get("processes") for maker in resumed["made_by"]] == [4, None]
    assert [step for step, _ in resumed["losses"]] == list(range(1, 21))
    assert_same_curve(go(CASES["capsnet"], tmp_path)["losses"], resumed["losses"])


@pytest.mark.slow
def test_torchrun_with_one_process_is_the_plain_command(one_thread, tmp_path):
    """It makes no process group, and ends with the same bits."""
    command = ["-m", "torchcaps", "train", "smoke/capsnet", "--device", "cpu", "--out", str(tmp_path / "one")]
    assert "processes" not in torchrun(1, *command)
    found = load_checkpoint(tmp_path / "one" / "checkpoint.safetensors")
    assert [maker.get("processes") for maker in found.about["made_by"]] == [None]
    assert tensors_sha256(found.tensors) == go(CASES["capsnet"], tmp_path / "plain")["sha"]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_sums_through_the_backend_change_nothing_in_a_world_of_one(device, one_thread, tmp_path):
    """By gloo on a CPU, by nccl on a GPU, where the other run is one CUDA graph and convolutions are bfloat16."""
    torchrun(1, str(HERE / "one_of_one.py"), str(tmp_path), device)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["backend"] == {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}[device]
    assert found["sums"].count(device) >= 20 * len(NAMES)
    assert found["changed"] == 0, "the mean over one process is its gradient, to the bit"
    for name in NAMES:
        plain = go(made(name), tmp_path / f"{name} plain", device=device)["losses"]
        if device == "cpu":
            assert found["losses"][name] == [list(each) for each in plain]
        else:
            assert_same_curve(plain[:10], found["losses"][name][:10], 2e-2)
