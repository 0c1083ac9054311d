"""A phase clock counts every moment once, and waits for a GPU at both ends of a phase."""

import time

import pytest
import torch

from torchcaps.runtime.clock import PhaseClock


@pytest.fixture
def now(monkeypatch):
    """A clock that stands still until the test moves it."""
    reading = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: reading[0])
    return reading


def test_an_inner_phase_stops_the_outer_one(now):
    clock = PhaseClock(torch.device("cpu"))
    with clock.phase("training"):
        now[0] += 3
        with clock.phase("compiling"):
            now[0] += 20
        now[0] += 4
    now[0] += 1000  # between phases nothing is counted
    with clock.phase("training"):
        now[0] += 1
    assert clock.seconds == {"training": 8, "compiling": 20}


def test_an_error_ends_its_phase(now):
    clock = PhaseClock(torch.device("cpu"))

    def fails():
        with clock.phase("training"):
            now[0] += 2
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    now[0] += 5
    assert clock.seconds == {"training": 2} and clock.current == ""


def test_both_ends_of_a_phase_wait_for_the_gpu(now, monkeypatch):
    """The work of three seconds is only queued; the clock is read when it is done."""
    waits = []

    def synchronize(device):
        waits.append(device)
        now[0] += 3 if len(waits) == 2 else 0

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    clock = PhaseClock(torch.device("cuda:0"))
    with clock.phase("training"):
        pass
    assert waits == [torch.device("cuda:0")] * 2 and clock.seconds == {"training": 3}
