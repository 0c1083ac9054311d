"""Data-parallel training on one or several machines, under torchrun or anything that sets its environment variables.

Each process computes its part of every batch. Gradients and losses are averaged, and every process takes the same step.
All processes hold the same weights, rank 0 writes for all, and a run can resume with any number of processes.
"""

import os
import secrets
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, distributed, nn


def n_cores() -> int:
    """Return the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Lost(RuntimeError):
    """Error: another process of the run is gone.

    Example:

        try:
            with naming_the_lost():
                raise RuntimeError("[gloo] connection closed by peer")
        except Lost as error:
            said = str(error)
        said.partition(";")[0]  # another process of this run is gone ([gloo] connection closed by peer)
    """


def several() -> bool:
    """Return whether several processes train together."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def n_processes() -> int:
    """Return the number of processes that train together; 1 without a process group."""
    return distributed.get_world_size() if several() else 1


def sum_of_all(part: Tensor) -> Tensor:
    """Sum a tensor over all processes, bit-identical on each. Without gradient; may modify `part` in place."""
    if several():
        distributed.all_reduce(part)
    return part


def mean_of_all(part: Tensor) -> Tensor:
    """Average a tensor over all processes, such as means over equal parts of a batch. May modify `part` in place."""
    return sum_of_all(part).div_(n_processes()) if several() else part


def as_first(part: Tensor) -> Tensor:
    """Broadcast the tensor of rank 0 to every process. May modify `part` in place."""
    if several():
        distributed.broadcast(part, 0)
    return part


class _Summed(torch.autograd.Function):
    """Sum over all processes; its gradient is the sum of all processes' gradients."""

    @staticmethod
    def forward(ctx, part: Tensor) -> Tensor:
        return sum_of_all(part.clone())

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        # the loss of every process depends on this part
        return sum_of_all(gradient.clone())


def summed(part: Tensor) -> Tensor:
    """Sum a tensor over all processes, with gradients from the losses of all of them."""
    return _Summed.apply(part) if several() else part


@dataclass(frozen=True)
class Team:
    """Processes that train together; a single process is a team of size 1 and communicates with nobody.

    Example:

        with joined(torch.device("cpu")) as team:  # under torchrun: all of its processes
            found = team.rank, team.size, team.largest(3)
        found  # (0, 1, [3])
    """

    rank: int = 0
    size: int = 1
    group: "distributed.ProcessGroup | None" = None  # for tensors on the host

    @property
    def leads(self) -> bool:
        """True on rank 0, the process that writes."""
        return self.rank == 0

    def largest(self, *numbers: int) -> list[int]:
        """Return the maximum of each number over all processes. Does not synchronise with a GPU."""
        if self.size == 1:
            return [*numbers]
        found = torch.tensor(numbers, dtype=torch.int64)
        with naming_the_lost():
            distributed.all_reduce(found, distributed.ReduceOp.MAX, group=self.group)
        return found.tolist()

    def about(self) -> dict[str, int]:
        """Return the number of processes for a result file; {} for a single process."""
        return {"processes": self.size} if self.size > 1 else {}

    def same(self, number: int) -> bool:
        """Return whether all processes give the same number."""
        most, least = self.largest(number, -number)
        return most == -least

    def says_first(self, answer: bool) -> bool:
        """Broadcast a boolean from rank 0."""
        return bool(self.largest(self.leads and answer)[0])

    def agree(self, model: nn.Module) -> None:
        """Copy parameters and buffers of rank 0 to every process.

        Results on the same images may differ in the last bit, since every process picks its fastest convolution itself.
        """
        if self.size == 1:
            return
        with naming_the_lost():
            for tensor in model.state_dict().values():
                tensor.copy_(as_first(tensor.contiguous()))  # channels-last tensors are not contiguous

    @contextmanager
    def first_of_each_machine(self) -> Iterator[None]:
        """Run the block on one process per machine first, then on the others, which find the files it cached."""
        goes_first = int(os.environ.get("LOCAL_RANK", 0)) == 0
        if not goes_first:
            self.largest(0)
        yield
        if goes_first:
            self.largest(0)


ALONE = Team()


def started() -> tuple[int, int]:
    """Return rank and world size from torchrun's environment variables; (0, 1) if they are not set."""
    size = int(os.environ.get("WORLD_SIZE", 1))
    return (int(os.environ.get("RANK", 0)), size) if size > 1 else (0, 1)


@contextmanager
def joined(device: torch.device) -> Iterator[Team]:
    """Join the process group and yield the team; waits until all processes have joined."""
    if distributed.is_available() and distributed.is_initialized():  # by Ray Train or by the user's program
        group = distributed.new_group(backend="gloo") if distributed.get_world_size() > 1 else None
        yield Team(distributed.get_rank(), distributed.get_world_size(), group)
        return
    rank, size = started()
    if size == 1:
        yield ALONE
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ValueError(
            f"WORLD_SIZE={size} says that {size} processes train together, and {', '.join(missing)} is not set; "
            "use torchrun"
        )
    with naming_the_lost():
        place = _meeting_place()
        store = distributed.PrefixStore(_common_name(place, rank, size), place)
        distributed.init_process_group(_backend(device), store=store, rank=rank, world_size=size)
    try:
        yield Team(rank, size)
    except Lost as error:
        _leave_the_lost(error, device)
        raise
    except BaseException:
        distributed.destroy_process_group()
        raise
    distributed.destroy_process_group()


def _leave_the_lost(error: BaseException | None, device: torch.device) -> None:
    """End gloo's threads while Python still runs: a thread that frees a tensor later aborts the whole process.

    The threads end with the last reference to the group, so the frames of the error and its causes are cleared too.
    nccl is left alone, since destroying its group would wait for the lost process.
    """
    if _backend(device) == "gloo":
        distributed.destroy_process_group()
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__


@cache
def _meeting_place() -> "distributed.Store":
    """Return the rendezvous store, created once per process: a second one might connect to an old store."""
    return next(distributed.rendezvous("env://"))[0]


def _common_name(store: "distributed.Store", rank: int, size: int) -> str:
    """Agree on a key prefix that is unique to these processes.

    torchrun may keep its store across restarts, with the addresses of processes that are gone. So each process stores a
    fresh random token, and an answer to that token proves that rank 0 is alive now.
    """
    own = secrets.token_hex(8)
    if rank > 0:
        store.set(f"word of {rank}", own)
        name = store.get(f"name for {own}").decode()
        store.set(f"{name} is known to {rank}", "")
        return name
    asked = set(range(1, size))
    while asked:
        for other in sorted(asked):
            store.set(f"name for {store.get(f'word of {other}').decode()}", own)
            asked -= {other} if store.check([f"{own} is known to {other}"]) else set()
        time.sleep(0.01)
    return own


def _backend(device: torch.device) -> str:
    """Choose nccl, or gloo where processes share a GPU, which nccl refuses. Gloo copies through the host: slow."""
    shared = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > torch.cuda.device_count()
    return "gloo" if device.type == "cpu" or shared else "cpu:gloo,cuda:nccl"


@contextmanager
def naming_the_lost() -> Iterator[None]:
    """Turn the backends' various errors about a lost process into `Lost`."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if isinstance(error, Lost) or not (isinstance(error, distributed.DistError) or "gloo" in text):
            raise
        raise Lost(
            f"another process of this run is gone ({text.splitlines()[0][:120]}); `torchrun --max-restarts N` starts "
            "all of them again from the last checkpoint, and so does the same command"
        ) from error
