"""Threads in which Triton compiles. Imported where there is Triton."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache, partial

import triton

MOST = 8


def available() -> bool:
    """Whether this Triton lets threads compile."""
    return hasattr(triton, "AsyncCompileMode")


@cache
def scout() -> ThreadPoolExecutor:
    """Start a thread in which a kernel's `warmup` returns at once, while other threads compile it.

    There is one, so that Triton, asked for the same kernel again, knows that it is being compiled.
    """
    threads = ThreadPoolExecutor(min(MOST, os.cpu_count() or 1), thread_name_prefix="torchcaps compiles")
    # entered once and for good: the thread does nothing else
    begin = partial(ExitStack().enter_context, triton.AsyncCompileMode(threads))
    return ThreadPoolExecutor(1, thread_name_prefix="torchcaps goes ahead", initializer=begin)
