"""Number of CPU threads, chosen by a short measurement.

On a busy machine threads that wait for each other are several times slower than a single one. Sums of many numbers
depend on the number of threads in their last digits, so a checkpoint stores it, and a resumed run takes it again.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

FROM_USER = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
AT_START = torch.get_num_threads()  # a different number later was set by torch.set_num_threads
RUNS, SECONDS = 4, 0.15  # a number of threads is tried this often, or for this long
# more threads must be faster by this factor: they gain little on a quiet machine and lose much on a busy one
GAIN = 1.15


def set_in_environment() -> bool:
    """Check whether an environment variable chose the number of threads."""
    return any(name in os.environ for name in FROM_USER)


def fastest(most: int, work: Callable[[], None]) -> tuple[int, dict[int, float]]:
    """Find the fastest number of threads for `work`, up to `most`, and the runs per second of each that was tried.

    It doubles the number as long as that pays, so that a busy machine is not slowed down further.
    """
    speeds, best, number = {}, 1, 1
    while True:
        with using_threads(number):
            speeds[number] = _speed(work)
        if number > 1 and speeds[number] < GAIN * speeds[best]:
            break
        best = number
        if number == most:
            break
        number = min(2 * number, most)
    return best, speeds


def _speed(work: Callable[[], None]) -> float:
    work()  # threads are started by their first work
    start, runs = time.perf_counter(), 0
    while runs < RUNS and time.perf_counter() - start < SECONDS:
        work()
        runs += 1
    return runs / (time.perf_counter() - start)


@contextmanager
def measured_threads(
    device: torch.device, make: Callable[[], Callable[[], None]], say: Callable[[str], None]
) -> Iterator[None]:
    """Use the fastest number of CPU threads inside the block, and say which; leave a user's own number alone.

    `make` makes the work that is timed.
    """
    most = torch.get_num_threads()
    if device.type != "cpu" or most == 1 or most != AT_START or set_in_environment():
        yield
        return
    number, speeds = fastest(most, make())
    tried = ", ".join(f"{tried}: {speed:.0f}/s" for tried, speed in speeds.items())
    say(f"CPU threads: {number} of {most}, the fastest now ({tried}); OMP_NUM_THREADS=N sets N")
    with using_threads(number):
        yield


@contextmanager
def using_threads(number: int) -> Iterator[None]:
    """Use this number of CPU threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
