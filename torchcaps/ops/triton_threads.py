"""Threads in which Triton compiles. Imported where there is Triton."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import ContextVar
from functools import cache, partial

import torch
import triton

MOST = 8


def available() -> bool:
    """Whether this Triton lets threads compile, without a word to other threads and with a lock for its hashes."""
    own = getattr(getattr(triton.runtime, "_async_compile", None), "active_mode", None)
    return isinstance(own, ContextVar) and hasattr(triton.jit(_nothing), "_hash_lock")


def _nothing() -> None:
    """Stand for a kernel."""


@cache
def scout(device: torch.device) -> ThreadPoolExecutor:
    """Start a thread in which a kernel's `warmup` returns at once, while other threads compile it for this device.

    There is one, so that Triton, asked for the same kernel again, knows that it is being compiled.
    """
    threads = ThreadPoolExecutor(min(MOST, _cores()), thread_name_prefix="torchcaps compiles")
    # entered once and for good: the thread does nothing else
    begin = partial(ExitStack().enter_context, triton.AsyncCompileMode(threads))
    return ThreadPoolExecutor(1, thread_name_prefix="torchcaps goes ahead", initializer=begin)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
