"""`torchcaps bench train --kernels` lists where a step spends its time."""

import re
from types import SimpleNamespace

import torch
from torch.autograd import DeviceType

from torchcaps.bench import kernels, train
from torchcaps.papers import RECIPES


def test_a_steps_operators_are_listed_with_the_longest_first(monkeypatch):
    monkeypatch.setattr(train, "CHUNK", 2)
    monkeypatch.setattr(kernels, "CHUNK", 2)
    head, total, *rest = kernels.bench_kernels(RECIPES["smoke/capsnet"], torch.device("cpu"), 2, 3).splitlines()
    assert "ms per step" in head and "routing: blocked" in head
    times = [float(re.match(r" *([\d.]+) us +[\d.]+ calls  \S", line)[1]) for line in rest]
    assert len(times) == 3 and times == sorted(times, reverse=True)
    assert sum(times) <= float(total.split()[0])


def test_on_a_gpu_only_its_own_events_count_each_for_one_step():
    event = lambda **fields: SimpleNamespace(self_cpu_time_total=5000, **fields)  # noqa: E731
    events = [
        event(key="host", device_type=DeviceType.CPU, self_device_time_total=9000, count=1),
        event(key="short", device_type=DeviceType.CUDA, self_device_time_total=20, count=20),
        event(key="long" * 50, device_type=DeviceType.CUDA, self_device_time_total=300, count=10),
    ]
    total, first, second = kernels.listed(events, on_cuda=True, most=5)
    assert total.split() == ["32.0", "us", "3.0", "calls", "2", "kinds", "in", "all"]
    assert first.split() == ["30.0", "us", "1.0", "calls", ("long" * 50)[: kernels.NAME]]
    assert second.split() == ["2.0", "us", "2.0", "calls", "short"]
