"""Routing by agreement: the op, and which of its implementations runs. reference.py defines what is computed."""

from collections.abc import Callable
from functools import cache

from jaxtyping import Float
from torch import Tensor

from torchcaps.ops.backend import Implementation, cannot_compile, choose, compiled_whole
from torchcaps.ops.dynamic import cpu, reference, triton_op
from torchcaps.ops.dynamic.reference import Routed
from torchcaps.ops.votes import Poses, Weight


def dynamic_routing(
    poses: Poses,
    weight: Weight,
    bias: Float[Tensor, "j e"] | None = None,
    n_iters: int = 3,
    *,
    prior: Float[Tensor, "i j"] | None = None,
    couplings: str = "softmax",
    detach: bool = False,
    backend: str = "auto",
) -> Routed:
    """Send every input capsule to the outputs that agree with it.

    `prior`: initial logits, zero if None. `couplings`: the name of a rule in `COUPLINGS`.
    `detach`: votes carry no gradient in all iterations but the last.
    Couplings, sums and squash are computed in float32 at least, whatever the dtype of the poses; the result has theirs.
    """
    args = {
        "poses": poses,
        "weight": weight,
        "bias": bias,
        "n_iters": n_iters,
        "prior": prior,
        "couplings": couplings,
        "detach": detach,
    }
    reference.check(**args)
    return _IMPLEMENTATIONS[choose("dynamic_routing", _IMPLEMENTATIONS, backend, poses, args)].load()(**args)


def dynamic_routing_backend(
    poses: Poses, weight: Weight, backend: str = "auto", compiling: bool = False, **rest
) -> str:
    """Name the backend that `dynamic_routing` takes for these arguments; `compiling`: inside a compiled function."""
    defaults = {"bias": None, "n_iters": 3, "prior": None, "couplings": "softmax", "detach": False}
    args = {"poses": poses, "weight": weight} | defaults | rest
    return choose("dynamic_routing", _IMPLEMENTATIONS, backend, poses, args, compiling)


@cache
def _compiled() -> Callable[..., Routed]:
    return compiled_whole(reference.routed)


_IMPLEMENTATIONS = {
    "reference": Implementation(load=lambda: reference.routed),
    "blocked": Implementation(load=lambda: lambda **args: Routed(*cpu.routed(**args)), refuses=cpu.refuses),
    "compiled": Implementation(load=_compiled, refuses=cannot_compile),
    "triton": Implementation(
        load=lambda: lambda **args: Routed(*triton_op.routed(**args)), refuses=triton_op.refuses, loses=triton_op.loses
    ),
}
