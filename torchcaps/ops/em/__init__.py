"""EM routing: the op, and which of its implementations runs. reference.py defines what is computed."""

from collections.abc import Callable
from functools import cache

from jaxtyping import Float
from torch import Tensor

from torchcaps.ops.backend import Implementation, cannot_compile, choose, compiled_whole
from torchcaps.ops.em import cpu, reference, triton_op
from torchcaps.ops.em.reference import Beta, Bias, EMRouted, Prior, Transform


def em_routing(
    scores: Float[Tensor, "*b i"],
    poses: Float[Tensor, "*b i r d"],
    weight: Transform,
    bias: Bias | None,
    beta_use: Beta,
    beta_ignore: Beta,
    n_iters: int = 3,
    *,
    density: str = "gaussian",
    prior: Prior | None = None,
    backend: str = "auto",
) -> EMRouted:
    """Send every input capsule to the outputs whose model explains its votes.

    `prior`: logits of the first iteration's probabilities, which are equal if None; -inf closes a pair in every
    iteration, and each input needs one that is open.
    All statistics are computed in float32 at least; scores come back in the dtype of the scores, the rest in that of
    the poses.
    """
    args = {
        "scores": scores,
        "poses": poses,
        "weight": weight,
        "bias": bias,
        "beta_use": beta_use,
        "beta_ignore": beta_ignore,
        "n_iters": n_iters,
        "density": density,
        "prior": prior,
    }
    reference.check(**args)
    return _IMPLEMENTATIONS[choose("em_routing", _IMPLEMENTATIONS, backend, poses, args)].load()(**args)


def em_routing_backend(poses: Float[Tensor, "*b i r d"], backend: str = "auto", compiling: bool = False, **args) -> str:
    """Name the backend that `em_routing` takes for these arguments; `compiling`: inside a compiled function."""
    args = {"poses": poses, "density": "gaussian", "prior": None, "n_iters": 3} | args
    return choose("em_routing", _IMPLEMENTATIONS, backend, poses, args, compiling)


@cache
def _compiled() -> Callable[..., EMRouted]:
    return compiled_whole(reference.routed)


_IMPLEMENTATIONS = {
    "reference": Implementation(load=lambda: reference.routed),
    "blocked": Implementation(
        load=lambda: cpu.routed, refuses=cpu.refuses, loses=cpu.loses, loses_in_program=cpu.loses_in_program
    ),
    "compiled": Implementation(load=_compiled, refuses=cannot_compile),
    "triton": Implementation(
        load=lambda: lambda **args: EMRouted(*triton_op.routed(**args)), refuses=triton_op.refuses
    ),
}
