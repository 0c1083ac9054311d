"""Rows and seeds in processes of their own, a few at a time: each is the same command for one row and one seed."""

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

Workers = Annotated[int, typer.Option(help="so many rows and seeds at once, each in a process of its own; several GPUs are dealt out")]
COMMAND = [sys.executable, "-m", "torchcaps"]
POLL = 0.05  # seconds
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LEFT = (128 + signal.SIGTERM, -signal.SIGTERM)  # how a child ends that was told to leave


class Failed(RuntimeError):
    """Some runs of a sweep ended with an error."""


class Job(NamedTuple):
    name: str  # what its lines begin with
    words: list[str]  # of the command


class Failure(NamedTuple):
    name: str
    code: int  # as a process ends: minus the signal that killed it
    last: str  # what it said last

    def __str__(self) -> str:
        return f"{self.name} ({f'signal {-self.code}' if self.code < 0 else f'exit code {self.code}'}: {self.last})"


class Child:
    """One command at work. Its lines are passed on as they come."""

    def __init__(self, job: Job, device: str, n_threads: int, say: Callable[[str], None]) -> None:
        self.job, self.last, self.told = job, "it said nothing", False
        self.process = subprocess.Popen(
            [*COMMAND, *job.words, "--device", device],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"OMP_NUM_THREADS": str(n_threads)} | os.environ,
            start_new_session=True,  # a terminal's Ctrl-C comes to the sweep alone, which tells each once: a second one would not be saved
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
        """Ask it to save and leave; once."""
        if not self.told:
            self.told = True
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def ended(self) -> bool:
        return self.process.poll() is not None

    def failure(self) -> Failure | None:
        """Of one that has ended. One that was told to leave and left by that signal, saved or not yet begun, has not failed."""
        self.reader.join()
        code = self.process.returncode
        return None if code == 0 or (self.told and code in LEFT) else Failure(self.job.name, code, self.last)


def reproduce_apart(pairs: Sequence[tuple[Recipe, int]], n: int, device: str, options: Mapping[str, Path | bool | None]) -> list[Failure]:
    """`torchcaps reproduce` for each row and seed. Those that train nothing are not for this: they have --jobs, and share what they fit."""
    if n < 1:
        raise ValueError(f"--workers takes 1 or more; got {n}")
    words = [word for name, value in options.items() if value for word in ([name] if value is True else [name, str(value)])]
    jobs = [Job(f"{row.name} seed {seed}", ["reproduce", row.name, "--seeds", str(seed), *words, "--no-table"]) for row, seed in pairs]
    return sweep(jobs, n, device, say)


def sweep(jobs: Sequence[Job], n: int, device: str, say: Callable[[str], None]) -> list[Failure]:
    """Carry out all jobs, `n` at a time; what fails is returned, and the others go on."""
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
            for child in running.values():  # only where a second signal, or an error of our own, ended the loop
                child.kill()
    if caught:
        but = f", but {named(failures)} failed" if failures else ""
        raise Interrupted(f"stopped; what was running is saved{but}; the same command goes on from there", caught[0])
    return failures


def named(failures: Sequence[Failure]) -> str:
    return "; ".join(map(str, failures))


def devices_for(device: str) -> list[str]:
    """One for each place: several GPUs are dealt out in turn, unless one is named."""
    n_gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    return [f"cuda:{number}" for number in range(n_gpus)] if n_gpus > 1 else [device]
