"""Stand-ins for what a GPU has."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from torchcaps.train.step import TrainingStep


@pytest.fixture
def graphs(monkeypatch):
    """Stand-ins for CUDA's streams and graphs. Counts how often a step really ran."""
    calls = []
    once = TrainingStep.once
    monkeypatch.setattr(TrainingStep, "once", lambda self: calls.append(1) or once(self))
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda which: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: object())
    monkeypatch.setattr(torch.cuda, "graph", lambda which: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.get_rng_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: torch.set_rng_state(state))
    return calls
