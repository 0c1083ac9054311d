"""How long something takes, and how much memory it needs."""

import gc
import re
import time
from collections.abc import Callable
from ctypes import CDLL
from math import inf
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from torchcaps.machine import commit, device_name, versions

LEAST_REPEATS = 3  # of something slow, unless fewer are asked for
SLOW_S = 1.0  # something that takes this long is warm after one call
WIDE = 200  # columns of a table in a file, where nothing has to be cut


class Timed(NamedTuple):
    """The median, and of how many."""

    ms: float
    repeats: int


class Measured(NamedTuple):
    """Forward and backward of one op. Memory is None where the machine does not tell."""

    ms: float
    repeats: int
    beyond: int | None  # bytes at the peak beyond inputs, outputs and gradients
    whole: int | None  # bytes at the peak with everything; on CUDA only


def time_ms(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median time of one call in milliseconds, after two calls to warm up."""
    return timed(work, device, repeats).ms


def timed(work: Callable[[], object], device: torch.device, repeats: int, seconds: float = inf) -> Timed:
    """The median of at most so many repeats; three are enough once they have taken so many seconds together."""
    for _ in range(2):
        if _once_ms(work, device) > 1000 * SLOW_S:
            break
    times: list[float] = []
    while len(times) < repeats and (len(times) < LEAST_REPEATS or sum(times) < 1000 * seconds):
        times.append(_once_ms(work, device))
    return Timed(median(times), len(times))


def _once_ms(work: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        begun = time.perf_counter()
        work()
        return 1000 * (time.perf_counter() - begun)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    start.record()
    work()
    end.record()
    torch.cuda.synchronize(device)
    return start.elapsed_time(end)


def measure(
    call: Callable[..., Tensor | tuple[Tensor, ...]], inputs: dict[str, Tensor], device: torch.device, repeats: int, seconds: float = 3.0
) -> Measured:
    """Forward and backward of `call(**inputs)`, a tensor or several: on CUDA inside a graph, so that nothing waits for Python."""
    leaves = list(inputs.values())

    def outputs() -> tuple[Tensor, ...]:
        result = call(**inputs)
        return (result,) if isinstance(result, Tensor) else tuple(result)

    grads = [torch.ones_like(x.detach()) for x in outputs()]
    known = sum(x.nbytes for x in (*leaves, *grads))  # of the gradients and the outputs

    def work() -> None:
        torch.autograd.backward(outputs(), grads, inputs=leaves)
        for x in leaves:
            x.grad = None

    if device.type != "cuda":
        peak = _peak_on_cpu(work)
        return Measured(*timed(work, device, repeats, seconds), None if peak is None else max(peak - known, 0), None)
    before, whole = _peak_on_cuda(work, device)
    # eager calls leave their memory with the allocator, and the graph takes its own
    free(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return Measured(*timed(graph.replay, device, repeats, seconds), whole - before - known, whole)


def _peak_on_cuda(work: Callable[[], object], device: torch.device) -> tuple[int, int]:
    """Bytes in use before and at the peak of a second call; on a stream of its own, as a capture wants its warm-up."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        work()
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
    torch.cuda.current_stream(device).wait_stream(side)
    return before, torch.cuda.max_memory_allocated(device)


def _peak_on_cpu(work: Callable[[], object]) -> int | None:
    """How much larger the process was while it worked; Linux tells, others do not."""
    status = Path("/proc/self/status")
    try:
        CDLL("libc.so.6").malloc_trim(0)  # or memory freed by an earlier case would be used again and not be seen
        Path("/proc/self/clear_refs").write_text("5")  # forget the largest size so far
    except (OSError, AttributeError):
        return None
    read = lambda name: 1024 * int(re.search(rf"{name}:\s+(\d+) kB", status.read_text())[1])  # noqa: E731
    before = read("VmRSS")
    work()
    return read("VmHWM") - before


def free(device: torch.device) -> None:
    """Give back what earlier measurements left on a GPU, so that none runs in another's memory."""
    if device.type != "cuda":
        return
    torch.cuda.synchronize(device)
    if torch.cuda.memory_allocated(device) > 2**30:
        gc.collect()  # takes longer than most measurements, so only where a cycle may hold much
    torch.cuda.empty_cache()


def here(device: torch.device) -> str:
    """Device, PyTorch, and the commit if anything tells it."""
    made_by = commit()
    code = "" if made_by["commit"] == "unknown" else f", commit {made_by['commit'][:12]}{' with changes' * made_by['dirty']}"
    return f"{device_name(device)}, torch {versions()['torch']}{code}"


def print_table(console: Console, lines: Table) -> None:
    """As wide as it is where nobody's window cuts it."""
    wide = console if console.is_terminal else Console(file=console.file, width=max(console.width, WIDE))
    wide.print(lines)
