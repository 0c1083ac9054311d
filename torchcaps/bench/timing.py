"""Timing of work on a CPU or GPU."""

import time
from collections.abc import Callable
from math import inf
from statistics import median
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from torchcaps.bench.memory import free, growth_on_cpu, needed, peak_on_cuda
from torchcaps.runtime.environment import commit, device_in_words, device_name, versions

LEAST_REPEATS = 3  # repeats of slow work, unless fewer are requested
SLOW_S = 1.0  # work that takes this long is warm after one call
Clock = Callable[[], float]
WIDE = 200  # columns of a table in a file, where it need not be cut


class Timed(NamedTuple):
    """Median time and the number of repeats."""

    ms: float
    repeats: int


class Measured(NamedTuple):
    """Time and memory of one op. Memory is None where the machine does not report it."""

    ms: float
    repeats: int
    beyond: int | None  # peak bytes without inputs, outputs and gradients
    whole: int | None  # peak bytes with inputs, outputs and gradients; on CUDA only


def time_ms(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Measure the median time of a call in milliseconds, after two warm-up calls."""
    return timed(work, device, repeats).ms


def timed(
    work: Callable[[], object],
    device: torch.device,
    repeats: int,
    seconds: float = inf,
    clock: Clock = time.perf_counter,
) -> Timed:
    """Measure the median of at most `repeats` calls; after `seconds` in total, three are enough.

    `clock`: for a CPU; `time.process_time` counts the processor's time, which a busy machine hardly changes.
    """
    for _ in range(2):
        if _once_ms(work, device, clock) > 1000 * SLOW_S:
            break
    times: list[float] = []
    while len(times) < repeats and (len(times) < LEAST_REPEATS or sum(times) < 1000 * seconds):
        times.append(_once_ms(work, device, clock))
    return Timed(median(times), len(times))


def _once_ms(work: Callable[[], object], device: torch.device, clock: Clock) -> float:
    if device.type != "cuda":
        begun = clock()
        work()
        return 1000 * (clock() - begun)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    start.record()
    work()
    end.record()
    torch.cuda.synchronize(device)
    return start.elapsed_time(end)


def measure(
    call: Callable[..., Tensor | tuple[Tensor, ...]],
    inputs: dict[str, Tensor],
    device: torch.device,
    repeats: int,
    seconds: float = 3.0,
    *,
    backward: bool = True,
) -> Measured:
    """Measure forward and, if wanted, backward of `call(**inputs)`; on CUDA as a graph, without Python overhead."""
    leaves = list(inputs.values())

    def outputs() -> tuple[Tensor, ...]:
        with torch.set_grad_enabled(backward):
            result = call(**inputs)
        return (result,) if isinstance(result, Tensor) else tuple(result)

    grads = [torch.ones_like(x.detach()) for x in outputs()]
    n_inputs, n_outputs = (sum(x.nbytes for x in tensors) for tensors in (leaves, grads))
    # a gradient is as large as its tensor
    given, made = (n_inputs + n_outputs,) * 2 if backward else (n_inputs, n_outputs)

    def work() -> None:
        if not backward:
            outputs()
            return
        torch.autograd.backward(outputs(), grads, inputs=leaves)
        for x in leaves:
            x.grad = None

    if device.type != "cuda":
        growth = growth_on_cpu(work)
        return Measured(*timed(work, device, repeats, seconds), None if growth is None else max(growth - made, 0), None)
    memory = needed(*peak_on_cuda(work, device), given, made)
    # eager calls leave memory in the allocator's cache, and the graph allocates its own
    free(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return Measured(*timed(graph.replay, device, repeats, seconds), *memory)


def here(device: torch.device) -> str:
    """Describe device, PyTorch version and, if known, the commit."""
    made_by = commit()
    changed = " with changes" if made_by["dirty"] else ""
    code = "" if made_by["commit"] == "unknown" else f", commit {made_by['commit'][:12]}{changed}"
    return f"{device_in_words(device_name(device))}, torch {versions()['torch']}{code}"


def print_table(console: Console, lines: Table) -> None:
    """Print a table; outside a terminal at full width."""
    wide = console if console.is_terminal else Console(file=console.file, width=max(console.width, WIDE))
    wide.print(lines)
