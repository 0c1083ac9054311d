"""Memory measurement, without what earlier work left allocated."""

import gc
import re
from collections.abc import Callable
from ctypes import CDLL
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from torchcaps.runtime.environment import peak_memory

READINGS = 5  # memory readings on a CPU
TRIED = 64 << 20  # bytes that are allocated and freed to test whether the process shrinks
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Needed(NamedTuple):
    """Peak memory of some work in bytes."""

    beyond: int  # temporary memory, without inputs and results
    whole: int  # inputs, results and temporary memory


def needed(before: int, peak: int, given: int, made: int) -> Needed:
    """Compute peak memory from the bytes in use before and at the peak; unrelated memory from before is excluded."""
    return Needed(peak - before - made, peak - before + given)


def peak_on_cuda(work: Callable[[], object], device: torch.device) -> tuple[int, int]:
    """Return the bytes in use before and at the peak of a second call.

    It runs on a side stream, as CUDA graphs require for the warm-up before a capture.
    """
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


def growth_on_cpu(work: Callable[[], object]) -> int | None:
    """Measure the growth of the process during `work`; None where the system cannot tell (only Linux can).

    The median of several calls after a first one: libraries allocate once, and the memory that the allocator kept from
    earlier work varies by tens of MiB.
    """
    if not _forget_peak():
        return None
    work()
    return int(median(_growth(work) for _ in range(READINGS)))


def _growth(work: Callable[[], object]) -> int:
    _forget_peak()
    before = _of_process("VmRSS")
    work()
    return _of_process("VmHWM") - before


class Peak:
    """Peak memory from now on: of new allocations on CUDA, of the whole process on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        gc.collect()  # a training step and its compiled code form a reference cycle
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # also initialises CUDA, without which a reset fails
            torch._C._cuda_clearCublasWorkspaces()  # otherwise they count for the first measurement
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            self.before = torch.cuda.memory_allocated(device)
        else:
            self.known = _forget_peak()

    def read(self) -> int:
        """Return the bytes; an upper bound on a CPU where the system cannot reset them."""
        if self.device.type == "cuda":
            return peak_memory(self.device) - self.before
        return _of_process("VmHWM") if self.known else peak_memory(self.device)

    def __str__(self) -> str:
        bounded = self.device.type != "cuda" and not self.known
        return f"{'at most ' if bounded else ''}{_mib(self.read())}"


def free(device: torch.device) -> None:
    """Free GPU memory that earlier measurements left, so that they do not affect the next one."""
    if device.type != "cuda":
        return
    torch.cuda.synchronize(device)
    if torch.cuda.memory_allocated(device) > 2**30:
        gc.collect()  # slower than most measurements, so only if a cycle may hold much memory
    torch.cuda.empty_cache()


@cache
def _gives_back() -> bool:
    """Return whether the process shrinks every time a tensor is freed.

    PyTorch's allocator on ARM keeps freed memory and releases it at irregular times, unless MIMALLOC_PURGE_DELAY=0 was
    set before it was loaded, which makes everything slower.
    """
    return all(_shows() for _ in range(READINGS))


def _shows() -> bool:
    tensor = torch.ones(TRIED // 4)
    with_it = _of_process("VmRSS")
    del tensor
    return with_it - _of_process("VmRSS") > TRIED / 2


def _forget_peak() -> bool:
    """Reset the peak memory of the process and release freed memory; False where the system cannot."""
    try:
        if not _gives_back():
            return False
        CDLL("libc.so.6").malloc_trim(0)  # otherwise reused memory of an earlier case would not be counted
        CLEAR.write_text("5")
    except (OSError, AttributeError):
        return False
    return True


def _of_process(name: str) -> int:
    return 1024 * int(re.search(rf"{name}:\s+(\d+) kB", STATUS.read_text())[1])


def _mib(n: int) -> str:
    return f"{n / 2**20:,.0f} MiB"
