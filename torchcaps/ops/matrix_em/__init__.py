"""EM routing of matrix capsules: the op, and which of its implementations runs. reference.py says what is computed."""

from jaxtyping import Float
from torch import Tensor

from torchcaps.ops.backend import Implementation, choose
from torchcaps.ops.conv_routing import LocalGrid
from torchcaps.ops.matrix_em import cpu, reference, triton_op
from torchcaps.ops.matrix_em.reference import MatrixEMRouted


def matrix_em_routing(
    scores: Float[Tensor, "*b i"],
    poses: Float[Tensor, "*b i r d"],
    weight: Float[Tensor, "n m d e"] | Float[Tensor, "n k m d e"],
    beta_use: Float[Tensor, "m"],
    beta_activate: Float[Tensor, "m"],
    n_iters: int = 3,
    *,
    grid: LocalGrid | None = None,
    coordinates: Float[Tensor, "q 2"] | None = None,
    inverse_temperature: float = 0.01,
    density_power: float = 1.0,
    recompute: bool = False,
    backend: str = "auto",
) -> MatrixEMRouted:
    """Route i = (n q) children to j = (m p) parents. `scores` are logits of activities; -inf masks a child.

    With a `grid` the weight is [n k m d e]; without one each child reaches all m parents, and places of a type share
    [n m d e]. `coordinates` of the places are added to the first two dimensions of a vote's last column.
    `density_power` below the paper's 1 softens assignments. `recompute` keeps only votes for the backward pass of an
    eager program; the Triton backend never stores votes, and then keeps next to nothing.
    """
    reference.check(scores, poses, weight, beta_use, beta_activate, n_iters, grid, coordinates)
    args = {
        "scores": scores,
        "poses": poses,
        "weight": weight,
        "beta_use": beta_use,
        "beta_activate": beta_activate,
        "n_iters": n_iters,
        "grid": grid,
        "coordinates": coordinates,
        "inverse_temperature": inverse_temperature,
        "density_power": density_power,
        "recompute": recompute,
    }
    return _IMPLEMENTATIONS[choose("matrix_em_routing", _IMPLEMENTATIONS, backend, poses, args)].load()(**args)


def matrix_em_routing_backend(
    poses: Float[Tensor, "*b i r d"], backend: str = "auto", compiling: bool = False, **args
) -> str:
    """Name the backend that `matrix_em_routing` takes for these arguments; `compiling`: inside a compiled function."""
    args = {"poses": poses, "grid": None, "coordinates": None} | args
    return choose("matrix_em_routing", _IMPLEMENTATIONS, backend, poses, args, compiling)


_IMPLEMENTATIONS = {
    "reference": Implementation(load=lambda: reference.routed),
    "blocked": Implementation(load=lambda: cpu.routed, refuses=cpu.refuses),
    "triton": Implementation(load=lambda: triton_op.routed, refuses=triton_op.refuses),
}
