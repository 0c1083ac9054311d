"""Scored capsules, routed by expectation-maximization (Heinsen 2019, Algorithm 1)."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.layers.capsules import Capsules
from torchcaps.ops import EMStep, em_routing, em_routing_backend, em_routing_steps, own_output_prior
from torchcaps.ops.em.densities import density_named

SHARING = ("none", "inputs", "all")
COSTS = ("separate", "tied", "none")
INF = float("inf")


class EMCapsules(nn.Module):
    """Output capsules that model the votes of the inputs they use. [*b i r d] -> [*b j r e].

    `activity` is a score, the logit of the probability that a capsule is present: -inf masks it, +inf (the default for
    plain poses) is certain. `sharing` of the transforms: `none` one per pair, `inputs` one per output (`n_in` may be
    None), `all` a single one (`n_out` must be None; one output per input, masked like it). `cost` of ignoring an input:
    `separate` parameters, `tied` to the benefit of using it, or `none`. Initialised like the author's code.
    """

    def __init__(
        self,
        n_in: int | None,
        n_out: int | None,
        rows: int,
        d_in: int,
        d_out: int,
        n_iters: int = 3,
        *,
        sharing: str = "none",
        cost: str = "separate",
        density: str = "gaussian",
        bias: bool = True,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        density_named(density)
        if cost not in COSTS:
            raise ValueError(f"EMCapsules: cost must be one of {', '.join(COSTS)}; got {cost!r}")
        shared = _shared_shape(n_in, n_out, sharing)
        self.n_in, self.n_out, self.rows, self.d_in, self.d_out, self.n_iters = n_in, n_out, rows, d_in, d_out, n_iters
        self.sharing, self.cost, self.density, self.backend = sharing, cost, density, backend
        self.weight = nn.Parameter(torch.randn(*shared, d_in, d_out) / d_in)
        self.bias = nn.Parameter(torch.zeros(*shared, rows, d_out)) if bias else None
        self.beta_use = nn.Parameter(torch.zeros(shared))
        self.beta_ignore = nn.Parameter(torch.zeros(shared)) if cost == "separate" else None

    def forward(self, capsules: Capsules | Float[Tensor, "*b i r d"]) -> Capsules:
        args = self._arguments(capsules)
        routed = em_routing(**args, backend=self.backend)
        if self.sharing == "all":
            return Capsules(routed.poses, routed.scores.masked_fill(args["scores"] == -INF, -INF))
        return Capsules(routed.poses, routed.scores)

    def steps(self, capsules: Capsules | Float[Tensor, "*b i r d"]) -> Iterator[EMStep]:
        """Yield every routing iteration, with how much each output used of each input; for figures."""
        return em_routing_steps(**self._arguments(capsules))

    def backend_here(self, compiling: bool = False) -> str:
        """Return the backend that routing uses on the device of the weights."""
        poses = self.weight.new_empty(1, self.n_in or 1, self.rows, self.d_in)
        return em_routing_backend(**self._arguments(poses), backend=self.backend, compiling=compiling)

    def extra_repr(self) -> str:
        sizes = f"{self.n_in}x{self.rows}x{self.d_in} -> {self.n_out}x{self.rows}x{self.d_out}"
        return f"{sizes}, n_iters={self.n_iters}, sharing={self.sharing}, cost={self.cost}, density={self.density}"

    def _arguments(self, capsules: Capsules | Tensor) -> dict:
        """Check the capsules and return the arguments of the op."""
        poses = capsules.poses if isinstance(capsules, Capsules) else capsules
        if (
            poses.ndim < 3
            or tuple(poses.shape[-2:]) != (self.rows, self.d_in)
            or self.n_in not in (None, poses.shape[-3])
        ):
            count = self.n_in or "any number of"
            raise ValueError(
                f"EMCapsules expects [..., {count} capsules, {self.rows} rows, {self.d_in} numbers each], got "
                f"{list(poses.shape)}"
            )
        scores = capsules.activity if isinstance(capsules, Capsules) else poses.new_full(poses.shape[:-2], INF)
        beta_use = self.beta_use if self.sharing != "all" else self.beta_use.expand(poses.shape[-3])
        beta_ignore = {"tied": beta_use, "none": torch.zeros_like(beta_use)}.get(self.cost, self.beta_ignore)
        return {
            "scores": scores,
            "poses": poses,
            "weight": self.weight,
            "bias": self.bias,
            "beta_use": beta_use,
            "beta_ignore": beta_ignore.expand_as(beta_use),
            "n_iters": self.n_iters,
            "density": self.density,
            "prior": own_output_prior(scores) if self.sharing == "all" else None,
        }


def _shared_shape(n_in: int | None, n_out: int | None, sharing: str) -> tuple[int, ...]:
    """Return the sizes of the axes i and j that the parameters have."""
    if sharing not in SHARING:
        raise ValueError(f"EMCapsules: sharing must be one of {', '.join(SHARING)}; got {sharing!r}")
    if sharing == "all":
        if n_out is not None:
            raise ValueError(
                f"EMCapsules: one transform for all makes as many outputs as inputs; give n_out=None, got {n_out}"
            )
        return ()
    if n_out is None:
        raise ValueError("EMCapsules: n_out may be None only with sharing='all'; give a number")
    if sharing == "inputs":
        return (n_out,)
    if n_in is None:
        raise ValueError(
            "EMCapsules: one transform per pair needs to know n_in; give it, or share with sharing='inputs'"
        )
    return (n_in, n_out)
