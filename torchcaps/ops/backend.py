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


def compiled(reference: Callable) -> Callable:
    """`torch.compile` of a reference as it is meant by the backend of that name."""
    whole = torch.compile(reference, fullgraph=True)

    def run(**args):
        # every weight shape, rule and number of passes is a program of its own; with the usual limit the ninth would raise
        with torch._dynamo.config.patch(recompile_limit=64):
            return whole(**args)

    return run


def choose(op: str, implementations: dict[str, Implementation], backend: str, tensor: Tensor, args: dict) -> str:
    """The name of the backend that runs `op` on these arguments; `tensor` says on which device."""
    if backend in ("auto", "compiled") and torch.compiler.is_compiling():
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
