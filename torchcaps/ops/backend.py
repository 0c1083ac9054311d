"""The one place that chooses how an op is computed: reference, compiled, or a fused Triton kernel.

The rule of `auto`, in order:
1. inside `torch.compile` or `torch.export`: the reference, which is then compiled with everything around it
   (there a backend asked for as `compiled` means the same);
2. on CUDA: the first of triton, compiled that supports the arguments;
3. elsewhere: the reference. (On a CPU compiling costs half a minute and gains nothing.)

A backend asked for by name runs or refuses with the reason; it is never replaced in silence.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

NAMES = ("reference", "compiled", "triton")


@dataclass(frozen=True)
class Implementation:
    """One way to compute an op. `refuses` takes the op's arguments and says why it cannot run them, or None."""

    load: Callable[[], Callable]
    refuses: Callable[..., str | None] = lambda *args, **kwargs: None


def choose(op: str, implementations: dict[str, Implementation], backend: str, tensor: Tensor, args: dict, compiling: bool = False) -> str:
    """The name of the backend that runs `op` on these arguments; `tensor` says on which device, `compiling` to pretend."""
    if backend in ("auto", "compiled") and (compiling or torch.compiler.is_compiling()):
        return "reference"
    if backend == "auto":
        if tensor.device.type != "cuda":
            return "reference"
        for name in ("triton", "compiled"):
            if name in implementations and implementations[name].refuses(**args) is None:
                return name
        return "reference"
    if backend not in NAMES:
        raise ValueError(f"{op}: backend must be auto, {', '.join(NAMES)}; got {backend!r}")
    if backend not in implementations:
        raise ValueError(f"{op}: there is no {backend!r} backend yet; use one of auto, {', '.join(implementations)}")
    if reason := implementations[backend].refuses(**args):
        raise ValueError(f"{op}: backend {backend!r} {reason}, or use backend='reference'")
    return backend
