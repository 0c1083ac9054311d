"""Seconds by phase of a run: training apart from compiling, evaluation and files."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class PhaseClock:
    """Wall clock that counts every moment to one phase: an inner phase stops the outer one.

    It waits for the GPU where a phase begins or ends, so a phase must not begin in every training step.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.current, self.since = device, "", 0.0
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block to a phase."""
        outer = self.current
        self._enter(name)
        try:
            yield
        finally:
            self._enter(outer)

    def _enter(self, name: str) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        if self.current:
            self.seconds[self.current] = self.seconds.get(self.current, 0.0) + now - self.since
        self.current, self.since = name, now
