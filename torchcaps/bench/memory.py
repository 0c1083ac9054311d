"""How much memory something needs, without what others left there."""

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

READINGS = 5  # of memory on a CPU
TRIED = 64 << 20  # bytes that are taken and given back, to see whether that shows
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Needed(NamedTuple):
    """Bytes at the peak of some work."""

    beyond: int  # what the work made but for its results
    whole: int  # everything: what it was given, its results and what is beyond


def needed(before: int, peak: int, given: int, made: int) -> Needed:
    """From the bytes in use before and at the peak. What was there before and was not given to the work counts for nothing."""
    return Needed(peak - before - made, peak - before + given)


def peak_on_cuda(work: Callable[[], object], device: torch.device) -> tuple[int, int]:
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


def growth_on_cpu(work: Callable[[], object]) -> int | None:
    """How much larger the process was while it worked; Linux tells, others do not.

    The median of a few times after a first one: what a library takes once is not the work's, and what the allocator
    has kept from before varies by tens of MiB.
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
    """The largest memory from now on: on CUDA of what is allocated from now on, elsewhere of the whole process."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        gc.collect()  # a training step and what was compiled for it hold each other
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # starts CUDA, too: before that there is nothing to reset
            torch._C._cuda_clearCublasWorkspaces()  # or they would count for whoever comes first
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            self.before = torch.cuda.memory_allocated(device)
        else:
            self.known = _forget_peak()

    def __str__(self) -> str:
        if self.device.type == "cuda":
            return _mib(peak_memory(self.device) - self.before)
        return _mib(_of_process("VmHWM")) if self.known else f"at most {_mib(peak_memory(self.device))}"


def free(device: torch.device) -> None:
    """Give back what earlier measurements left on a GPU, so that none runs in another's memory."""
    if device.type != "cuda":
        return
    torch.cuda.synchronize(device)
    if torch.cuda.memory_allocated(device) > 2**30:
        gc.collect()  # takes longer than most measurements, so only where a cycle may hold much
    torch.cuda.empty_cache()


@cache
def _gives_back() -> bool:
    """Whether the process is smaller once a tensor is gone, every time. PyTorch's allocator on ARM keeps what was freed for another time,
    and now and then gives all of it back, unless MIMALLOC_PURGE_DELAY=0 was set before it was loaded; then all takes longer."""
    return all(_shows() for _ in range(READINGS))


def _shows() -> bool:
    tensor = torch.ones(TRIED // 4)
    with_it = _of_process("VmRSS")
    del tensor
    return with_it - _of_process("VmRSS") > TRIED / 2


def _forget_peak() -> bool:
    """Forget how large the process once was, and give back what it freed; False where the system cannot."""
    try:
        if not _gives_back():
            return False
        CDLL("libc.so.6").malloc_trim(0)  # or memory freed by an earlier case would be used again and not be seen
        CLEAR.write_text("5")
    except (OSError, AttributeError):
        return False
    return True


def _of_process(name: str) -> int:
    return 1024 * int(re.search(rf"{name}:\s+(\d+) kB", STATUS.read_text())[1])


def _mib(n: int) -> str:
    return f"{n / 2**20:,.0f} MiB"
