"""CPU threads of a resumed run: those that it began with, so that it goes on bit by bit."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from torchcaps.runtime.distributed import n_cores
from torchcaps.runtime.environment import threads_of
from torchcaps.runtime.threads import set_in_environment, using_threads
from torchcaps.train.checkpoint import check_makers, read_about


@contextmanager
def threads_as_begun(path: Path, device: torch.device, told: bool) -> Iterator[None]:
    """Use the CPU threads that the run in this checkpoint was last trained with.

    OMP_NUM_THREADS wins, and so does a machine with fewer cores; then the last digits may differ, which is said.
    """
    now, begun = torch.get_num_threads(), _begun(path) if device.type == "cpu" else None
    if begun in (None, now):
        yield
    elif set_in_environment() or begun > n_cores():
        if told:
            print(f"begun with {begun} CPU threads, goes on with {now}: last digits may differ", file=sys.stderr)
        yield
    else:
        if told:
            print(f"CPU threads: {begun}, as the run was begun", file=sys.stderr)
        with using_threads(begun):
            yield


def _begun(path: Path) -> int | None:
    makers = (read_about(path) or {}).get("made_by") if path.exists() else None
    return threads_of(check_makers(makers, path)[-1]["device"]) if makers else None
