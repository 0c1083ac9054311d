"""Metrics of a running experiment: one JSON line per log step, TensorBoard if installed, a progress bar."""

import json
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from torchcaps.runtime.files import naming, write_whole

LINE_EVERY = 60.0  # seconds between progress lines without a terminal


class MetricsLog:
    """Metrics log: appends to metrics.jsonl.

    A resumed run drops the lines after `resume_step`, which it will write again. Only one process of a run `writes`.
    """

    def __init__(self, folder: Path, resume_step: int, writes: bool = True) -> None:
        self.path = folder / "metrics.jsonl"
        self.lines = [line for line in read_metrics(self.path) if line["step"] <= resume_step]
        self.board, self.writes = None, writes
        if not writes:
            return
        write_whole(self.path, "".join(json.dumps(line) + "\n" for line in self.lines).encode())
        if find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(folder / "tensorboard", purge_step=resume_step + 1)

    def write(self, step: int, **values: Any) -> None:
        line = {"step": step} | values
        if line in self.lines[-1:]:
            return  # a finished run that is started again repeats its last line
        self.lines.append(line)
        if not self.writes:
            return
        with naming(self.path), open(self.path, "a") as file:
            file.write(json.dumps(self.lines[-1]) + "\n")
        if self.board:
            for name, value in values.items():
                if isinstance(value, float):
                    self.board.add_scalar(name, value, step)

    def close(self) -> None:
        if self.board:
            self.board.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read all complete lines of a metrics log; drop a last line that a kill cut short."""
    lines = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines


class Speed:
    """Steps per second over about the last minute; over a few steps, writing a checkpoint would distort it."""

    def __init__(self, step: int) -> None:
        self.began, self.asked = (time.perf_counter(), step), deque[tuple[float, int]]()

    def __call__(self, step: int) -> float:
        now = time.perf_counter()
        while len(self.asked) > 1 and now - self.asked[1][0] > LINE_EVERY:
            self.asked.popleft()
        # only the first reading counts from the start, which includes compilation
        since, first = self.asked[0] if self.asked else self.began
        self.asked.append((now, step))
        return (step - first) / max(now - since, 1e-9)


@contextmanager
def progress_bar(title: str, n_steps: int, done: int, shown: bool) -> Iterator[Any]:
    """Yield update(step, text), which shows a progress bar with `text` and the remaining time.

    Without a terminal (log files, sweeps) a bar shows nothing until its end, so it prints a line every minute instead.
    """
    columns = [BarColumn(bar_width=14), MofNCompleteColumn(), TextColumn("{task.fields[text]}"), TimeRemainingColumn()]
    console, said = Console(stderr=True, markup=False, emoji=False), time.perf_counter()
    if shown:
        console.print(title, style="bold", highlight=False)  # on its own line: the bar needs all 80 columns
    with Progress(*columns, console=console, disable=not shown) as bar:
        task = bar.add_task("", total=n_steps, completed=done, text="")

        def update(step: int, text: str) -> None:
            nonlocal said
            bar.update(task, completed=step, text=text)
            if shown and not console.is_terminal and step < n_steps and time.perf_counter() - said > LINE_EVERY:
                said = time.perf_counter()
                console.print(f"{step}/{n_steps} {text}", highlight=False, soft_wrap=True)

        yield update
