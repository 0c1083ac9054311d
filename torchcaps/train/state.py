"""What a run carries along, where and how it runs, and what comes out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchcaps.data import Labelled
from torchcaps.runtime.distributed import ALONE, Team
from torchcaps.runtime.metrics_log import Journal
from torchcaps.train.tasks import Evaluation

if TYPE_CHECKING:
    from torchcaps.train.recipe import Run


def run_folder(name: str, seed: int) -> Path:
    """Where a row's checkpoint, metrics and result lie by default."""
    return Path("runs") / name / str(seed)


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
    jobs: int = 1  # processes that fit classifiers
    rows: Callable[[str, int], Path] = run_folder  # where the checkpoint of another row and seed lies

    def __post_init__(self) -> None:
        self.out = Path(self.out)


@dataclass(kw_only=True)
class Outcome:
    """All that a result file tells."""

    evaluations: dict[str, Evaluation]  # by part: test, test_ema, validation, another test set
    labels: dict[str, Tensor]  # by part, as the evaluations
    data: dict[str, str]  # hashes by part
    weights_sha256: str
    made_by: list[dict[str, Any]]  # device, versions and commit; several where a run was resumed elsewhere
    evaluated_by: dict[str, Any]
    seconds: float
    peak_memory_bytes: int
    extras: dict[str, Any]  # what the task tells besides
    steps: int = 0
    planned: int = 0  # steps of the whole schedule
    curve: list[dict[str, Any]] = field(default_factory=list)
    routing: str = ""  # the backend, in words
    diagnostics: dict[str, Any] = field(default_factory=dict)  # of the first part, by the weights of the last step
    met: bool | None = None  # whether the last stage's stopping rule was met; None without one


@dataclass(kw_only=True)
class Trained(Outcome):
    """The outcome of a training, and its model."""

    model: nn.Module
    stopped_early: bool = False


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
