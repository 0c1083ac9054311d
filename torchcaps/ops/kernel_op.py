"""Ops made of Triton kernels: how torch learns of them, and how their kernels are launched and compiled.

A kernel is compiled when it is first launched, an op launches up to fourteen one after another, and a compiled program
runs its first op when all of the program is compiled. So as soon as an op is traced or called, a thread goes through
its launches with tensors of the meta device, and others compile all of its kernels at once. A call waits for them. A
kernel that this misses is compiled at its launch.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache, wraps
from threading import Lock

import torch
from torch import Tensor

from torchcaps.ops.backend import HAS_TRITON, INTERPRETED, is_exporting
from torchcaps.ops.gpus import tensors_of_meta_stand_for

MOST_FORMS = 64  # of the arguments of one op: where shapes vary so much, kernels for the next one mostly exist
# kernels that were launched where launches compile only; None where they run
compiling: ContextVar[list | None] = ContextVar("kernels that launches compile", default=None)


def kernel_op(name: str, outputs: Callable) -> Callable[[Callable], Callable]:
    """Register a function that launches kernels as the op `name`.

    `outputs` makes its empty outputs from the same arguments, which is all that a compiler needs to know.
    """

    def register(body: Callable) -> Callable:
        @wraps(body)
        def run(*args):
            with torch.cuda.device_of(_first_tensor(args)):
                if kernels := compile_ahead(body, args):
                    kernels.wait(name)
                return body(*args)

        @wraps(outputs)
        def trace(*args):
            if not is_exporting() and not _is_free(args):
                compile_ahead(body, args)
            return outputs(*args)

        op = torch.library.custom_op(name, mutates_args=())(run)
        op.register_fake(trace)
        return op

    return register


def launch(kernel, grid: tuple[int, ...]) -> Callable[..., None]:
    """Return what runs `kernel` on `grid`; in the thread that goes ahead, what has it compiled."""
    kernels = compiling.get()
    if kernels is None:
        return kernel[grid]
    return lambda *args, **options: kernels.append(kernel.warmup(*args, grid=grid, **options))


def compile_ahead(body: Callable, args: tuple) -> "Kernels | None":
    """Start to compile the kernels that `body` launches for such arguments, once; None where that cannot be."""
    device = _first_tensor(args).device
    if device.type != "cuda" or not can_compile():
        return None
    forms = tuple((x.shape, x.stride(), x.dtype, x.device) if isinstance(x, Tensor) else x for x in args)
    known = _known[body]
    if found := known.get(forms):  # in every call but the first: without a lock
        return found
    with _lock:
        if forms not in known and len(known) < MOST_FORMS:
            try:
                known[forms] = Kernels(_scout(device).submit(_go_through, body, device, forms))
            except RuntimeError:  # Python has no more threads, or ends: kernels are compiled when they are launched
                return None
        return known.get(forms)


class Kernels:
    """Kernels that an op launches and that threads compile."""

    def __init__(self, launched: Future) -> None:
        self.launched = launched  # will be a list of kernels, or of what Triton promises of them
        self.finished = False

    def wait(self, op: str) -> None:
        """Wait until all are compiled, and let Triton know; an error is a warning, since the launch meets it too."""
        if self.finished:
            return
        errors = []
        try:
            kernels = self.launched.result()
        except Exception as error:
            kernels, errors = [], [error]
        for kernel in kernels:
            try:
                getattr(kernel, "result", lambda: None)()
            except Exception as error:
                errors.append(error)
        if errors:
            told = f"{len(errors)} kernels of {op} were not compiled ahead, and will be when they are launched"
            warnings.warn(f"{told}: {errors[0]!r}", stacklevel=2)
        self.finished = True


_known: defaultdict[Callable, dict[tuple, Kernels]] = defaultdict(dict)  # by op, and form of its arguments
_lock = Lock()


def empty_like(form: object) -> object:
    """Make a tensor of meta from a tensor's form; anything else is an argument itself."""
    if not isinstance(form, tuple):
        return form
    shape, stride, dtype, _ = form
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def _go_through(body: Callable, device: torch.device, forms: tuple) -> list:
    """Go through the launches of `body` without running any, and return their kernels."""
    compiling.set(kernels := [])
    with torch.cuda.device(device), tensors_of_meta_stand_for(device):
        body(*map(empty_like, forms))
    return kernels


@cache
def can_compile() -> bool:
    """Whether there is a GPU to compile for, and a Triton that lets threads do so."""
    if not HAS_TRITON or INTERPRETED or not torch.cuda.is_available():
        return False
    from torchcaps.ops.triton_threads import available

    return available()


def _scout(device: torch.device) -> ThreadPoolExecutor:
    from torchcaps.ops.triton_threads import scout

    return scout(device)


def _first_tensor(args: tuple) -> Tensor:
    return next(x for x in args if isinstance(x, Tensor))


def _is_free(args: tuple) -> bool:
    """Whether a size is not known yet, as while a program for any batch is traced."""
    sizes = (size for x in args for size in ((*x.shape, *x.stride()) if isinstance(x, Tensor) else (x,)))
    return any(isinstance(size, torch.SymInt) for size in sizes)
