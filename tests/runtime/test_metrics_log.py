"""The speed that a run prints."""

import pytest

from torchcaps.runtime import metrics_log


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(metrics_log.time, "perf_counter", lambda: now[0])
    return now


def test_speed_is_over_the_last_minute(clock):
    speed = metrics_log.Speed(step=50)
    clock[0] += 40  # compiling, then 10 steps
    assert speed(60) == pytest.approx(10 / 40)
    clock[0] += 1
    assert speed(160) == pytest.approx(100)  # compiling is left out
    clock[0] += 3  # a checkpoint is written
    assert speed(180) == pytest.approx(120 / 4)  # and not 20 steps in 3 seconds
    clock[0] += 50
    assert speed(680) == pytest.approx(620 / 54)
    clock[0] += 20
    assert speed(1680) == pytest.approx(
        1500 / 70
    )  # the youngest answer that is more than a minute old is where it begins


def test_a_moment_without_any_time_is_no_division_by_zero(clock):
    assert metrics_log.Speed(step=0)(0) == 0
