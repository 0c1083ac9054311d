"""The number of CPU threads: chosen by what is fastest now, told, recorded, and kept by a resumed run."""

import pytest
import torch

from torchcaps.cli.threads import small_step
from torchcaps.papers import RECIPES
from torchcaps.runtime import threads
from torchcaps.runtime.environment import device_in_words, device_name, threads_of
from torchcaps.train import Options, train
from torchcaps.train.checkpoint import load_checkpoint

CPU = torch.device("cpu")


@pytest.fixture
def unset(monkeypatch):
    """Nobody chose a number, and PyTorch would take four."""
    for name in threads.FROM_USER:
        monkeypatch.delenv(name, raising=False)
    with threads.using_threads(4):
        monkeypatch.setattr(threads, "AT_START", 4)
        yield


class Clock:
    """A clock that only `work` moves, by the seconds that go with the number of threads: nothing else takes time."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.now, self.seconds = 0.0, seconds

    def perf_counter(self) -> float:
        return self.now

    def work(self) -> None:
        self.now += self.seconds[torch.get_num_threads()]


def chosen(seconds: dict[int, float], said: list[str], device: torch.device = CPU) -> int:
    clock = Clock(seconds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "time", clock)
        with threads.measured_threads(device, lambda: clock.work, said.append):
            return torch.get_num_threads()


@pytest.mark.parametrize(
    "seconds, wanted",
    [
        ({1: 0.002, 2: 0.02, 4: 0.2}, 1),  # busy: threads wait for each other
        ({1: 0.008, 2: 0.004, 4: 0.002}, 4),  # quiet
        ({1: 0.008, 2: 0.004, 4: 0.008}, 2),
        ({1: 0.010, 2: 0.009, 4: 0.001}, 1),  # too little a gain to go on
        ({1: 0.010, 2: 0.008, 4: 0.0065}, 4),
    ],
)
def test_the_fastest_number_is_taken_told_and_given_back(unset, seconds, wanted):
    said = []
    assert chosen(seconds, said) == wanted
    assert len(said) == 1 and said[0].startswith(f"CPU threads: {wanted} of 4") and "OMP_NUM_THREADS" in said[0]
    assert torch.get_num_threads() == 4


def test_a_users_own_number_and_a_gpu_are_left_alone(unset, monkeypatch):
    said, busy = [], {1: 0.0, 2: 0.0, 3: 0.0, 4: 1.0}
    with threads.using_threads(3):
        assert chosen(busy, said) == 3  # torch.set_num_threads
    assert chosen(busy, said, torch.device("cuda")) == 4
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert chosen(busy, said) == 4
    assert said == []


def test_what_is_timed_draws_no_random_numbers():
    before = torch.get_rng_state()
    small_step()()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_resumed_run_takes_the_threads_that_it_began_with(unset, tmp_path, capfd, monkeypatch):
    run = RECIPES["smoke/capsnet-plain"].make()

    def trained(max_steps: int | None = None) -> str:
        options = Options(out=tmp_path, max_steps=max_steps, progress=True)
        return train(run, name="x", seed=0, options=options).made_by[-1]["device"]

    monkeypatch.setattr("torchcaps.train.threads.n_cores", lambda: 4)
    with threads.using_threads(2):
        assert threads_of(trained(4)) == 2 and threads_of(device_name(CPU)) == 2
    assert threads_of(load_checkpoint(tmp_path / "checkpoint.safetensors").about["made_by"][-1]["device"]) == 2
    assert threads_of(trained(8)) == 2 and torch.get_num_threads() == 4
    assert "CPU threads: 2, as the run was begun" in capfd.readouterr().err
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert threads_of(trained(12)) == 4
    assert "begun with 2 CPU threads, goes on with 4: last digits may differ" in capfd.readouterr().err
    assert threads_of("NVIDIA H200") is None


def test_one_thread_is_said_in_the_singular_and_stored_in_the_plural():
    with threads.using_threads(1):
        stored = device_name(CPU)
    assert threads_of(stored) == 1 and stored.endswith("CPU, 1 threads")  # results of earlier runs are compared with it
    assert device_in_words(stored) == stored.removesuffix("s")
    for other in ("x86_64 CPU, 11 threads", "NVIDIA H200"):
        assert device_in_words(other) == other
