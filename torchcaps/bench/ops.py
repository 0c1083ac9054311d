"""Benchmark of ops: forward and backward, or forward only, per shape, dtype and backend."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from torchcaps.bench.cases import CASES, Case, select
from torchcaps.bench.memory import free
from torchcaps.bench.timing import Measured, here, measure, print_table
from torchcaps.ops.testing import compare_routing
from torchcaps.runtime.environment import algorithms

Say = Callable[[str], object]


class Row(NamedTuple):
    """Measurement of one backend at one shape and dtype, or the reason why there is none."""

    case: Case
    dtype: torch.dtype
    backend: str
    measured: Measured | None = None
    wrong: str = ""
    missing: str = ""

    def __str__(self) -> str:
        said = f"{self.measured.ms:.3f} ms" if self.measured else self.missing or f"wrong: {self.wrong}"
        return f"{self.case.name} {_short(self.dtype)} {self.backend}: {said}"


def bench_ops(
    device: torch.device, repeats: int, console: Console, only: Sequence[str] = (), say: Say = lambda text: None
) -> None:
    """Measure the ops and print a table. A case that fails its check gets no time; `say` receives each finished row."""
    cases = select(CASES[device.type], only)
    console.print(
        f"{here(device)}; medians of at most {repeats} calls, fewer for slow ones; forward and backward unless marked "
        "forward; peak memory beyond inputs, outputs and gradients",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    rows = []
    with algorithms(False, device):
        for row in _rows(cases, device, repeats):
            rows.append(row)
            say(str(row))
    print_table(console, _table(rows))
    for note in dict.fromkeys(_notes(rows)):
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def _rows(cases: Sequence[Case], device: torch.device, repeats: int) -> Iterator[Row]:
    for case in cases:
        for dtype in (torch.float32, torch.bfloat16) if device.type == "cuda" else (torch.float32,):
            for backend in case.backends:
                yield measured_row(case, dtype, backend, device, repeats)


def measured_row(
    case: Case, dtype: torch.dtype, backend: str, device: torch.device, repeats: int, seconds: float = 3.0
) -> Row:
    """Check a case against float64, then time it."""
    row = Row(case, dtype, backend)
    if backend in case.cannot:
        return row._replace(missing=case.cannot[backend])
    torch._dynamo.reset()  # otherwise a second shape compiles for dynamic sizes, which is slower
    try:
        if wrong := check(case, dtype, backend, device):
            return row._replace(wrong=wrong)
        inputs = case.inputs(device, dtype)
        return row._replace(
            measured=measure(partial(case.call, backend), inputs, device, repeats, seconds, backward=case.backward)
        )
    except torch.OutOfMemoryError:
        return row._replace(missing="ran out of memory")
    except ValueError as refused:
        return row._replace(missing=str(refused))
    finally:
        free(device)


def check(case: Case, dtype: torch.dtype, backend: str, device: torch.device) -> str:
    """Compare the outputs, and the gradients if there are any, with float64; return the difference, or ""."""
    subject = case.stand_in or case
    try:
        with torch.set_grad_enabled(case.backward):
            compare_routing(subject.call, subject.inputs(device, dtype), backend=backend, dtype=dtype)
    except AssertionError as error:
        return str(error)
    finally:
        if case.stand_in:
            torch._dynamo.reset()
            free(device)
    return ""


def _table(rows: Sequence[Row]) -> Table:
    lines = Table("op", "shape", "dtype", "backend", "ms", "repeats", "images/s", "peak MiB", "against reference")
    references = {
        (row.case.name, row.dtype): row.measured.ms for row in rows if row.measured and row.backend == "reference"
    }
    for row in rows:
        name = [row.case.op, row.case.shape, _short(row.dtype), row.backend]
        if row.wrong:
            lines.add_row(*name, Text(f"wrong: {row.wrong}", style="red"))
        elif row.measured is None:
            lines.add_row(*name, *["-"] * 5)
        else:
            ms, repeats, beyond, _ = row.measured
            reference = references.get((row.case.name, row.dtype))
            memory = "-" if beyond is None else f"{beyond / 2**20:,.1f}"
            against = "-" if reference is None else f"{reference / ms:.2f}x"
            lines.add_row(*name, f"{ms:.3f}", str(repeats), f"{1000 * row.case.batch / ms:,.0f}", memory, against)
    return lines


def _notes(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if row.missing:
            # a reason in `cannot` holds for every dtype
            dtype = "" if row.backend in row.case.cannot else f"{_short(row.dtype)} "
            yield f"{row.case.name}, {dtype}{row.backend}: {row.missing}"
        if row.case.in_all and row.measured and row.measured.whole is not None:
            words = f"{row.measured.whole / 1e9:.2f} GB in all, with inputs, outputs and gradients"
            yield f"{row.case.name}, {_short(row.dtype)} {row.backend}: {words}"
        if row.measured and (checked := row.case.checked_on(row.backend)):
            yield f"{row.case.name}, {row.backend}: {checked}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
