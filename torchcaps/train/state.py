"""Options, state and outcome of a training run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.data import Labelled
from torchcaps.runtime.clock import PhaseClock
from torchcaps.runtime.distributed import ALONE, Team
from torchcaps.runtime.metrics_log import MetricsLog
from torchcaps.train.tasks import Evaluation

if TYPE_CHECKING:
    from torchcaps.train.recipe import Run


def run_folder(name: str, seed: int) -> Path:
    """Return the default folder of a row's checkpoint, metrics log and result."""
    return Path("runs") / name / str(seed)


def checkpoint_path(out: Path) -> Path:
    """Return the path of the checkpoint in a run's folder."""
    return out / "checkpoint.safetensors"


class Diverged(RuntimeError):
    """Error: the loss became NaN or infinite.

    Example:

        from torchcaps.train.recipe import Run, Stage
        run = Run(data="generated", model="capsnet", model_args={"channels": 8}, stages=(Stage(learning_rate=1e30),))
        try:
            train(run.quick(steps=2), name="wild", seed=0, options=Options(out="runs/wild", progress=False))
        except Diverged as error:
            said = str(error)
        said.partition(";")[0]  # the loss was not finite at step 2
    """


class Interrupted(RuntimeError):
    """Error: a signal stopped the run; everything is saved.

    Example:

        stop = Interrupted("stopped at step 20 and saved the checkpoint", signum=15)
        # the exit status that a shell gives to a program that this signal ended
        128 + stop.signum  # 143
    """

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.signum = signum


class Predicted(NamedTuple):
    """Predictions of a finished run, as its result file holds them."""

    run: dict[str, Any]  # as plain data
    data: dict[str, str]  # hashes by part
    weights_sha256: str
    predictions: dict[str, Tensor]  # by part


def _nothing_predicted(name: str, seed: int) -> None:
    """Find no result: for callers without a folder of result files."""


@dataclass(kw_only=True)
class Options:
    """Options of execution. None of them changes a result, except for rounding on another device.

    Example:

        options = Options(out="runs/mine", device="cpu", progress=False)
        options.out.name, options.log_every  # ('mine', 50)
    """

    out: Path
    device: str = "cpu"
    root: Path | None = None  # folder with the data files
    deterministic: bool = False
    progress: bool = True
    log_every: int = 50
    save_every: int | None = None  # steps between checkpoints; None: about once a minute
    max_steps: int | None = None  # save and stop after this many steps, as if interrupted: for replays and tests
    as_is: bool = False  # evaluate the current weights even if the run is not finished
    jobs: int = 1  # processes that fit classifiers
    rows: Callable[[str, int], Path] = run_folder  # folder of the checkpoint of another row and seed
    predicted: Callable[[str, int], Predicted | None] = _nothing_predicted  # result of another row and seed

    def __post_init__(self) -> None:
        self.out = Path(self.out)


@dataclass(kw_only=True)
class Outcome:
    """Contents of a result file."""

    evaluations: dict[str, Evaluation]  # by part: test, test_ema, validation, a further test set
    labels: dict[str, Tensor]  # by part, with the keys of `evaluations`
    data: dict[str, str]  # hashes by part
    weights_sha256: str
    made_by: list[dict[str, Any]]  # device, versions and commit; several entries if the run was resumed elsewhere
    evaluated_by: dict[str, Any]
    seconds: float
    peak_memory_bytes: int
    extras: dict[str, Any]  # further measurements of the task
    steps: int = 0
    planned: int = 0  # steps of the whole schedule
    curve: list[dict[str, Any]] = field(default_factory=list)
    routing: str = ""  # the backend, in words
    diagnostics: dict[str, Any] = field(default_factory=dict)  # routing on the first part, weights of the last step
    phases: dict[str, float] = field(default_factory=dict)  # seconds of training, compiling, evaluation and saving
    met: bool | None = None  # whether the last stage's stopping rule was met; None without one


@dataclass(kw_only=True)
class Trained(Outcome):
    """Outcome of a training run, and its model.

    Example:

        from torchcaps.train.recipe import Run
        run = Run(data="generated-16", model="capsnet", model_args={"channels": 8, "kernel": 5, "primary_kernel": 5})
        found = train(run.quick(steps=2), name="small", seed=0, options=Options(out="runs/small", progress=False))
        found.steps, list(found.evaluations["test"].metrics)  # (2, ['error_percent'])
    """

    model: nn.Module
    stopped_early: bool = False


@dataclass
class State:
    """Mutable state of the training loop."""

    run: Run
    name: str
    seed: int
    model: nn.Module
    rng: torch.Generator
    data: dict[str, Labelled]
    options: Options
    clock: PhaseClock
    team: Team = ALONE
    stage: int = 0
    done: int = 0  # steps of earlier stages
    ended: bool = False  # whether the stage is over: its last step is done, or its stopping rule is met
    met: bool = False  # whether the stopping rule of the stage is met
    seconds: float = 0.0
    routing: str = ""
    made_by: list[dict[str, Any]] = field(default_factory=list)
    epoch_rng: Tensor | None = None  # the generator's state at the start of the current epoch
    metrics_log: MetricsLog | None = None
    dead: set[str] = field(default_factory=set)  # capsule layers that were reported as inactive
    started: float = field(default_factory=time.perf_counter)
    saved_at: float = field(default_factory=time.perf_counter)

    @property
    def path(self) -> Path:
        """Path of the checkpoint."""
        return checkpoint_path(self.options.out)

    def spent(self) -> float:
        """Compute the seconds spent so far, including those before a resume."""
        return self.seconds + time.perf_counter() - self.started
