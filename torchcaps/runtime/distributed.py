"""Several processes that train one network together, on one machine or on several, under torchrun or whatever sets its variables.

Each makes its own part of every batch, gradients and losses become those of the whole batch, and every process takes the same step.
So all hold the same numbers at all times, the first one writes for all, and any number of processes can go on from what is saved.
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
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Lost(RuntimeError):
    """Another process of the run is gone."""


def several() -> bool:
    """Whether a network that is asked now is trained by several processes."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def n_processes() -> int:
    """That train one network now."""
    return distributed.get_world_size() if several() else 1


def sum_of_all(part: Tensor) -> Tensor:
    """The sum of this tensor over all processes, the same bits on each; no gradient passes. It may change `part` itself."""
    if several():
        distributed.all_reduce(part)
    return part


def mean_of_all(part: Tensor) -> Tensor:
    """As `sum_of_all`, but the mean: of means over equal parts of a batch, the mean over all of it."""
    return sum_of_all(part).div_(n_processes()) if several() else part


def as_first(part: Tensor) -> Tensor:
    """The first process's tensor, on every process. It may change `part` itself."""
    if several():
        distributed.broadcast(part, 0)
    return part


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part: Tensor) -> Tensor:
        return sum_of_all(part.clone())

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        # every process's loss depends on this one's part
        return sum_of_all(gradient.clone())


def summed(part: Tensor) -> Tensor:
    """`sum_of_all` that gradients pass: those of the losses of all processes."""
    return _Summed.apply(part) if several() else part


@dataclass(frozen=True)
class Team:
    """Who trains together; one process alone is a team too, and asks nobody."""

    rank: int = 0
    size: int = 1
    group: "distributed.ProcessGroup | None" = None  # for numbers that lie on the host

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def largest(self, *numbers: int) -> list[int]:
        """Of each number the largest that any process gives. Nothing waits for a device."""
        if self.size == 1:
            return [*numbers]
        found = torch.tensor(numbers, dtype=torch.int64)
        with naming_the_lost():
            distributed.all_reduce(found, distributed.ReduceOp.MAX, group=self.group)
        return found.tolist()

    def about(self) -> dict[str, int]:
        """For a result file: how many trained it, if several did."""
        return {"processes": self.size} if self.size > 1 else {}

    def same(self, number: int) -> bool:
        """Whether all processes give the same number."""
        most, least = self.largest(number, -number)
        return most == -least

    def says_first(self, answer: bool) -> bool:
        """What the first process says, on all of them."""
        return bool(self.largest(self.leads and answer)[0])

    def agree(self, model: nn.Module) -> None:
        """Take the first process's numbers. What each computes for itself of the same images may differ in the last bit: convolutions
        take the way that was fastest when they were tried, on every process for itself."""
        if self.size == 1:
            return
        with naming_the_lost():
            for tensor in model.state_dict().values():
                tensor.copy_(as_first(tensor.contiguous()))  # which one that lies channels last is not

    @contextmanager
    def first_of_each_machine(self) -> Iterator[None]:
        """One process of a machine goes first, the others follow when it is done: what it decodes and keeps, they find."""
        goes_first = int(os.environ.get("LOCAL_RANK", 0)) == 0
        if not goes_first:
            self.largest(0)
        yield
        if goes_first:
            self.largest(0)


ALONE = Team()


def started() -> tuple[int, int]:
    """Rank and number of the processes, as torchrun says by its variables; (0, 1) where it says nothing."""
    size = int(os.environ.get("WORLD_SIZE", 1))
    return (int(os.environ.get("RANK", 0)), size) if size > 1 else (0, 1)


@contextmanager
def joined(device: torch.device) -> Iterator[Team]:
    """The team of this process, which waits here until all have come."""
    if distributed.is_available() and distributed.is_initialized():  # by Ray Train, or a program of the user's own
        group = distributed.new_group(backend="gloo") if distributed.get_world_size() > 1 else None
        yield Team(distributed.get_rank(), distributed.get_world_size(), group)
        return
    rank, size = started()
    if size == 1:
        yield ALONE
        return
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ValueError(f"WORLD_SIZE={size} says that {size} processes train together, and {', '.join(missing)} is not set; use torchrun")
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
    """End gloo's threads while Python still runs: one that lets go of a tensor later aborts the whole process. They end when nobody holds
    the group, and the frames that the error and its causes went through still do. What is left of nccl could only wait for who is gone."""
    if _backend(device) == "gloo":
        distributed.destroy_process_group()
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__


@cache
def _meeting_place() -> "distributed.Store":
    """One for as long as the process lives: made again for a second run, it might be another process's old one."""
    return next(distributed.rendezvous("env://"))[0]


def _common_name(store: "distributed.Store", rank: int, size: int) -> str:
    """A name that these processes have in common, and none that were there before them.

    torchrun may keep its store when it starts all of them again, and in it the addresses of those that are gone. So each process
    leaves a word that it has just made up, and whoever answers to that word is there now.
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
    """nccl refuses two processes on one GPU; gloo does not, by way of the host: slow, and good enough for a trial."""
    shared = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > torch.cuda.device_count()
    return "gloo" if device.type == "cpu" or shared else "cpu:gloo,cuda:nccl"


@contextmanager
def naming_the_lost() -> Iterator[None]:
    """What a backend says when a process is gone becomes one clear error."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if isinstance(error, Lost) or not (isinstance(error, distributed.DistError) or "gloo" in text):
            raise
        raise Lost(
            f"another process of this run is gone ({text.splitlines()[0][:120]}); `torchrun --max-restarts N` starts all of them "
            "again from the last checkpoint, and so does the same command"
        ) from error
