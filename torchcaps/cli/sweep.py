"""Run rows and seeds in parallel: each worker process runs the same command for one row and one seed."""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Annotated, NamedTuple

import torch
import typer

from torchcaps.cli.options import say
from torchcaps.results.claims import Recipe
from torchcaps.runtime.distributed import n_cores
from torchcaps.runtime.environment import noted_signals
from torchcaps.train import Interrupted

Workers = Annotated[int, typer.Option(help="number of parallel runs; several GPUs are assigned in turn")]
COMMAND = [sys.executable, "-m", "torchcaps"]
POLL = 0.05  # seconds
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LEFT = (128 + signal.SIGTERM, -signal.SIGTERM)  # exit codes of a child that was asked to stop


class Failed(RuntimeError):
    """Some runs of a sweep ended with an error."""


class Job(NamedTuple):
    """One command of a sweep."""

    name: str  # prefix of its output lines
    words: list[str]  # arguments of the command


class Failure(NamedTuple):
    """A job that ended with an error."""

    name: str
    code: int  # exit code; negative: the signal that killed the process
    last: str  # last line of its output

    def __str__(self) -> str:
        return f"{self.name} ({f'signal {-self.code}' if self.code < 0 else f'exit code {self.code}'}: {self.last})"


class Child:
    """A running job whose output is passed on line by line."""

    def __init__(self, job: Job, device: str, n_threads: int, say: Callable[[str], None]) -> None:
        self.job, self.last, self.told = job, "it said nothing", False
        self.process = subprocess.Popen(
            [*COMMAND, *job.words, "--device", device],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"OMP_NUM_THREADS": str(n_threads)} | os.environ,
            # Ctrl-C reaches only the sweep, which stops each child once: a second signal would end it unsaved
            start_new_session=True,
        )
        self.reader = Thread(target=self._pass_on, args=(say,), daemon=True)
        self.reader.start()

    def _pass_on(self, say: Callable[[str], None]) -> None:
        with self.process.stdout as lines:
            for line in lines:
                if line.strip():
                    self.last = line.strip()
                    say(f"{self.job.name} | {line.rstrip()}")

    def stop(self) -> None:
        """Ask the job, once, to save and stop."""
        if not self.told:
            self.told = True
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def ended(self) -> bool:
        return self.process.poll() is not None

    def failure(self) -> Failure | None:
        """Return the failure of an ended job; a job that stopped because it was asked to has not failed."""
        self.reader.join()
        code = self.process.returncode
        return None if code == 0 or (self.told and code in LEFT) else Failure(self.job.name, code, self.last)


def reproduce_apart(
    pairs: Sequence[tuple[Recipe, int]], n: int, device: str, options: Mapping[str, Path | bool | None]
) -> list[Failure]:
    """Run `torchcaps reproduce` for each row and seed. Rows that train nothing use --jobs instead, and share fits."""
    if n < 1:
        raise ValueError(f"--workers takes 1 or more; got {n}")
    words = [
        word for name, value in options.items() if value for word in ([name] if value is True else [name, str(value)])
    ]
    jobs = [
        Job(f"{row.name} seed {seed}", ["reproduce", row.name, "--seeds", str(seed), *words, "--no-table"])
        for row, seed in pairs
    ]
    return sweep(jobs, n, device, say)


def sweep(jobs: Sequence[Job], n: int, device: str, say: Callable[[str], None]) -> list[Failure]:
    """Run all jobs, `n` at a time, and return the failures; one failure does not stop the others."""
    waiting, running, failures = deque(jobs), {}, []
    devices, n_threads = devices_for(device), max(1, n_cores() // n)
    with noted_signals(STOPS) as caught:
        try:
            while running or (waiting and not caught):
                for place in range(n):
                    if place not in running and waiting and not caught:
                        running[place] = Child(waiting.popleft(), devices[place % len(devices)], n_threads, say)
                for place, child in list(running.items()):
                    if caught:
                        child.stop()
                    if child.ended():
                        del running[place]
                        failures += [failure] if (failure := child.failure()) else []
                time.sleep(POLL)
        finally:
            for child in running.values():  # only after a second signal or an error in this loop
                child.kill()
    if caught:
        but = f", but {named(failures)} failed" if failures else ""
        raise Interrupted(f"stopped; what was running is saved{but}; the same command goes on from there", caught[0])
    return failures


def named(failures: Sequence[Failure]) -> str:
    return "; ".join(map(str, failures))


def devices_for(device: str) -> list[str]:
    """List the devices that workers use in turn: all GPUs, unless one is named."""
    n_gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    return [f"cuda:{number}" for number in range(n_gpus)] if n_gpus > 1 else [device]
