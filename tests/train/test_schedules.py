import pytest

from torchcaps.train.schedules import Cosine, Exponential


def test_schedules_by_hand():
    decay = Exponential(decay=0.96, every=2000, floor=1e-3)
    assert decay(0, 1) == 1
    assert decay(2000, 1) == pytest.approx(0.96)
    assert decay(10**7, 1) == 1e-3
    wave = Cosine(warmup=0.1)
    assert wave(0, 100) == pytest.approx(1 / 11)
    assert wave(10, 100) == 1
    assert wave(55, 100) == pytest.approx(0.5)
    assert wave(100, 100) == pytest.approx(0)
