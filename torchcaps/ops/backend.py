"""The one place that chooses how an op is computed: reference, blocked, compiled, or a fused Triton kernel.

The rule of `auto`, in order:
1. on CUDA: triton where it supports the GPU and the arguments, in `torch.compile` and `torch.export` too, which see it
   as one op; those of matrix EM routing refuse `torch.export`.
   GPUs of compute capability 8.0 and higher are supported. It has no second derivatives and says so when
   asked for them; `without_kernels` is the way out. Where it is expected to be slower than the compiled reference
   (`Implementation.loses`: dynamic routing in float32, few images), the next point comes first. The rule is taken from
   the shape that was measured slower (batch 32, 4608 inputs);
2. inside `torch.compile` or `torch.export` otherwise: the reference, which is then compiled with everything around it
   (there a backend asked for as `compiled` means the same), or on a CPU blocked, where that is plain PyTorch and faster
   (`Implementation.loses_in_program`: EM routing). On CUDA outside of them: compiled;
3. on a CPU: blocked where it supports the arguments (compiling costs half a minute there and gains nothing), and the
   reference where that is expected to be faster (EM routing of few votes, or of long poses);
4. elsewhere: the reference.

A layer may ask first whether kernels can run, and take its modules one by one where they cannot
(layers/conv_stem.py).

A backend asked for by name runs or refuses with the reason; it is never replaced in silence.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from torchcaps.ops.gpus import tiles_on, too_old_to_compile

NAMES = ("reference", "blocked", "compiled", "triton")
AUTO = {"cuda": ("triton", "compiled"), "cpu": ("blocked", "reference")}
# torch.amp.is_autocast_available knows rarer devices too, and PyTorch 2.11 warns when it compiles a call of it
AUTOCASTS = ("cpu", "cuda", "mps", "xpu")
HAS_TRITON = find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's own switch: kernels run on CPU tensors, slowly
_switched_off: ContextVar[bool] = ContextVar("kernels switched off", default=False)


class _Regions(threading.local):
    """Regions of `without_kernels` that this thread is in: what torch.compile can guard on, unlike a ContextVar."""

    def __init__(self) -> None:  # in every thread; an attribute of the class would not be guarded on
        self.n = 0


_regions = _Regions()


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Dtype of products where autocast is on; None where it is off, or unknown, as on the meta device."""
    on = device.type in AUTOCASTS and torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if on else None


@contextmanager
def without_kernels() -> Iterator[None]:
    """Run no Triton kernel inside: to measure their gain, and for second derivatives, which they lack."""
    compiling = torch.compiler.is_compiling()
    before = None if compiling else _switched_off.set(True)  # in this thread or task alone
    _regions.n += 1
    try:
        yield
    finally:
        _regions.n -= 1
        if not compiling:
            _switched_off.reset(before)


def _kernels_are_off() -> bool:
    return _regions.n > 0 if torch.compiler.is_compiling() else _switched_off.get()


@dataclass(frozen=True)
class Implementation:
    """One way to compute an op. `refuses` takes the op's arguments and says why it cannot run them, or None."""

    load: Callable[[], Callable]
    refuses: Callable[..., str | None] = lambda *args, **kwargs: None
    # whether the next way of AUTO is expected to be faster on such arguments; asked only where this one does not refuse
    loses: Callable[..., bool] = lambda *args, **kwargs: False
    # the same inside a program, for plain PyTorch that can be traced with any size free; None: no program takes it
    loses_in_program: Callable[..., bool] | None = None


def cannot_compile(poses: Tensor, **args) -> str | None:
    """Say why torch.compile has no compiler for this device, or None."""
    if poses.device.type == "cuda":
        if not find_spec("triton"):
            return "needs the package triton, and it is not installed; install it"
        return too_old_to_compile(poses.device)
    found = any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++") if name)
    return None if found else "needs a C++ compiler, and neither CXX, g++ nor clang++ is there; install one"


def cannot_span_devices(tensors: Sequence[Tensor]) -> str | None:
    """Say that the tensors are not on one device, or None."""
    devices = {str(x.device) for x in tensors}
    if len(devices) == 1:
        return None
    return f"needs all tensors on one device, got some on {' and '.join(sorted(devices))}; move them"


def cannot_run_kernels(tensor: Tensor) -> str | None:
    """Say why no Triton kernel can run here, whatever its arguments, or None."""
    device = tensor.device.type
    if _kernels_are_off():
        return "is switched off here by without_kernels(); leave the region"
    if device != "cuda" and not INTERPRETED:
        return f"needs CUDA tensors, got one on {device}; move the input"
    if not HAS_TRITON:
        return "needs the package triton, and it is not installed; install it"
    if reason := _has_no_tiles(device, tensor.device.index):
        return reason
    return "does not run inside torch.func transforms; leave them" if inside_transform() else None


def cannot_multiply(tensor: Tensor) -> str | None:
    """Say why no kernel of matrix products can run here: they are taken in float32 or bfloat16. Or None."""
    if reason := cannot_run_kernels(tensor):
        return reason
    device = tensor.device
    if torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) != torch.bfloat16:
        dtype = torch.get_autocast_dtype(device.type)
        return f"computes in float32 or bfloat16, got autocast to {dtype}; leave the region"
    return None


def _has_no_tiles(device: str, index: int | None) -> str | None:
    """Say why there are no tile sizes for a device, or None."""
    found = tiles_on(torch.device(device if index is None else f"{device}:{index}"))
    return found if isinstance(found, str) else None


def is_exporting() -> bool:
    """Whether `torch.export` traces this; where PyTorch cannot tell, `torch.compile` counts too.

    By PyTorch's own flag: inside `torch.compile` its `is_exporting()` says True before 2.13, which kept kernels out.
    """
    flag = getattr(torch.compiler, "_is_exporting_flag", None)
    return torch.compiler.is_compiling() if flag is None else flag


def inside_transform() -> bool:
    """Whether a `torch.func` transform is active."""
    return torch._C._functorch.peek_interpreter_stack() is not None


# like torch.compiler.assume_constant_result, without importing the compiler: a compiled program asks once
_has_no_tiles._dynamo_marked_constant = inside_transform._dynamo_marked_constant = True


def many_programs():
    """Allow a program for every shape of weight, rule and number of iterations: more than torch.compile's default."""
    config = torch._dynamo.config
    return config.patch({"recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit": 64})


def compiled_whole(reference: Callable[..., tuple]) -> Callable[..., tuple]:
    """Make the backend "compiled" of an op from its reference."""
    program = torch.compile(reference, fullgraph=True)

    def run(**args) -> tuple:
        with many_programs():
            return program(**args)

    return run


def _automatic(implementations: dict[str, Implementation], device: str, args: dict, whole: bool) -> str:
    """Choose by the rule of `auto`; `whole`: inside a compiled program, where the reference is compiled with it."""
    slower = "reference"
    for name in AUTO.get(device, ()):
        if name not in implementations:
            continue
        loses = implementations[name].loses
        if whole and name != "triton":
            loses = implementations[name].loses_in_program
        if loses and implementations[name].refuses(**args) is None:
            if not loses(**args):
                return name
            slower = slower if whole else name
    return slower


def choose(
    op: str,
    implementations: dict[str, Implementation],
    backend: str,
    tensor: Tensor,
    args: dict,
    compiling: bool = False,
) -> str:
    """Name the backend that runs `op` on these arguments; `tensor` says on which device, `compiling` to pretend."""
    whole = compiling or torch.compiler.is_compiling()
    if backend == "compiled" and whole:
        return "reference"
    if backend == "auto":
        return _automatic(implementations, tensor.device.type, args, whole)
    if backend not in NAMES:
        raise ValueError(f"{op}: backend must be auto, {', '.join(NAMES)}; got {backend!r}")
    if backend not in implementations:
        raise ValueError(f"{op}: there is no {backend!r} backend yet; use one of auto, {', '.join(implementations)}")
    if reason := implementations[backend].refuses(**args):
        raise ValueError(f"{op}: backend {backend!r} {reason}, or use backend='reference'")
    return backend
