"""What a run carries along, where and how it runs, and what comes out."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.data import Labelled
from torchcaps.runtime.distributed import ALONE, Team
from torchcaps.runtime.metrics_log import Journal
from torchcaps.train.recipe import Run
from torchcaps.train.tasks import Evaluation


class Diverged(RuntimeError):
    """The loss became NaN or infinite."""


class Interrupted(RuntimeError):
    """A signal asked the run to stop; everything is saved."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.signum = signum


@dataclass(kw_only=True)
class Options:
    """Where and how to run. Nothing here may change a result, but for the last bits on another device."""

    out: Path
    device: str = "cpu"
    root: Path | None = None  # a folder with data files
    deterministic: bool = False
    progress: bool = True
    log_every: int = 50
    save_every: int | None = None  # steps; None: about once a minute
    max_steps: int | None = None  # stop here, saved, as if interrupted: for replays and tests
    as_is: bool = False  # evaluate what is there, if it is not finished


@dataclass(kw_only=True)
class Trained:
    """A finished run: the model, and all that a result file tells."""

    model: nn.Module | None  # None where none was trained, and `weights` says whose answers these are
    evaluations: dict[str, Evaluation]  # by part: test, test_ema, validation, another test set
    steps: int
    seconds: float
    peak_memory_bytes: int
    curve: list[dict[str, Any]]
    labels: dict[str, Tensor]  # by part, as the evaluations
    data: dict[str, str]  # hashes by part
    routing: str  # the backend, in words
    diagnostics: dict[str, Any]  # of the first part, by the weights of the last step
    extras: dict[str, Any]  # what the task has to say of it besides
    planned: int  # steps of the whole schedule
    met: bool | None  # whether the last stage's stopping rule was met; None without one
    made_by: list[dict[str, Any]]  # device, versions and commit; several where a run was resumed elsewhere
    evaluated_by: dict[str, Any]
    stopped_early: bool = False
    weights: str = ""  # sha256 of the network that was read


@dataclass
class State:
    """What the loop carries along."""

    run: Run
    name: str
    seed: int
    model: nn.Module
    rng: torch.Generator
    data: dict[str, Labelled]
    options: Options
    team: Team = ALONE
    stage: int = 0
    done: int = 0  # steps of earlier stages
    ended: bool = False  # the stage: its last step is done, or its stopping rule is met
    met: bool = False  # the stopping rule of the stage
    seconds: float = 0.0
    routing: str = ""
    made_by: list[dict[str, Any]] = field(default_factory=list)
    epoch_rng: Tensor | None = None  # the generator's state at the start of the current epoch
    journal: Journal | None = None
    started: float = field(default_factory=time.perf_counter)
    saved_at: float = field(default_factory=time.perf_counter)

    @property
    def path(self) -> Path:
        return self.options.out / "checkpoint.safetensors"

    def spent(self) -> float:
        return self.seconds + time.perf_counter() - self.started
