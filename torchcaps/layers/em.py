"""Scored capsules, routed by expectation-maximization (Heinsen 2019, Algorithm 1)."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.layers.calibration import scale_until_alive
from torchcaps.layers.capsules import Capsules, checked_types, matrices, scores_of
from torchcaps.layers.initialisation import ASSUMED, GATE, LENGTH, SCORE, SIGNAL, alive_betas, check_init
from torchcaps.layers.inputs import check_pose_dtype
from torchcaps.layers.sizes import check_sizes
from torchcaps.ops import EMStep, em_routing, em_routing_backend, em_routing_steps, own_output_prior
from torchcaps.ops.em.densities import density_named

SHARING = ("none", "places", "inputs", "all")
COSTS = ("separate", "tied", "none")
INF = float("inf")


class EMCapsules(nn.Module):
    """Output capsules that model the votes of the inputs they use. [*b i r d] -> [*b j r e].

    The routing computes scores, the logits of the activities: -inf masks a capsule, +inf (the default for plain poses)
    is certain. Poses may also be vectors of rows · d_in dimensions. `sharing` of the transforms: `none` one per pair,
    `places` one per input type and output (give `n_types`), `inputs` one per output (`n_in` may be None), `all` a
    single one (`n_out` must be None; one output per input, masked like it). `cost` of ignoring an input: `separate`
    parameters, `tied` to the benefit of using it, or `none`.
    `init` "paper": like the author's code; deep networks need "alive", and `calibrate` where `n_in` is None
    (starts as for 64 inputs).

    Example:

        layer = EMCapsules(n_in=32, n_out=10, rows=4, d_in=4, d_out=4)
        list(layer(torch.randn(2, 32, 4, 4)).score.shape)  # [2, 10]
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
        n_types: int | None = None,
        cost: str = "separate",
        density: str = "gaussian",
        bias: bool = True,
        backend: str = "auto",
        init: str = "alive",
    ) -> None:
        super().__init__()
        density_named(density)
        check_init("EMCapsules", init)
        check_sizes("EMCapsules", n_in=n_in, n_out=n_out, d_in=d_in, d_out=d_out, rows=rows, n_iters=n_iters)
        if cost not in COSTS:
            raise ValueError(f"EMCapsules: cost must be one of {', '.join(COSTS)}; got {cost!r}")
        shared = _shared_shape(n_in, n_out, sharing, n_types)
        self.n_in, self.n_out, self.rows, self.d_in, self.d_out, self.n_iters = n_in, n_out, rows, d_in, d_out, n_iters
        self.sharing, self.cost, self.density, self.backend = sharing, cost, density, backend
        self.weight = nn.Parameter(torch.randn(*shared, d_in, d_out) / d_in)
        self.bias = nn.Parameter(torch.zeros(*shared, rows, d_out)) if bias else None
        self.beta_use = nn.Parameter(torch.zeros(shared))
        self.beta_ignore = nn.Parameter(torch.zeros(shared)) if cost == "separate" else None
        if init == "alive":
            self._start_alive()

    @torch.no_grad()
    def _start_alive(self) -> None:
        """Draw votes that are mostly constant, and betas that cancel over the inputs.

        Densities do not depend on the scale of votes, and gradients through them grow with the dimensions of a pose.
        So constant parts dominate: a signal of 2 / dimensions keeps gradients about the same in all layers.
        """
        n_votes = self.n_in or ASSUMED
        # a mean of n different votes is shorter by √n
        size = LENGTH * (n_votes / (self.rows * self.d_out)) ** 0.5
        signal = 1.0 if self.bias is None else min(1.0, SIGNAL / (self.rows * self.d_out))
        self.weight.normal_(std=size * signal * self.rows**0.5 / LENGTH)
        if self.bias is not None:
            n_biases = len(self.bias) if self.sharing == "places" else 1
            self.bias.normal_(std=size if self.sharing == "none" else size / (n_votes / n_biases) ** 0.5)
        if self.sharing not in ("none", "places"):
            # scores sum n equal betas; those that cancel where inputs are shared evenly fit any n
            self.beta_use.normal_(std=SCORE / (GATE * n_votes))
            if self.beta_ignore is not None and self.sharing == "inputs" and self.n_out > 1:
                self.beta_ignore.copy_(self.beta_use / (self.n_out - 1))
            return
        betas = [beta for beta in (self.beta_use, self.beta_ignore) if beta is not None]
        alive_betas(*betas)
        for beta in betas:
            beta.mul_((len(beta) / n_votes) ** 0.5)  # a score sums them over places too

    @torch.no_grad()
    def calibrate(self, capsules: Capsules | Float[Tensor, "*b i r d"]) -> Capsules:
        """Scale transforms to the size of the inputs, betas to a median activity of 0.2 to 0.7; return the outputs."""
        poses = self._arguments(capsules)["poses"].float()
        length = poses.square().sum((-2, -1)).mean().sqrt()
        if not torch.isfinite(length) or length == 0:
            raise ValueError("EMCapsules.calibrate: the inputs are all zero or not finite; give a batch of real inputs")
        self.weight.mul_(LENGTH / length)
        betas = [beta for beta in (self.beta_use, self.beta_ignore) if beta is not None]
        return scale_until_alive(self, capsules, lambda factor: [beta.mul_(min(factor, 1 / factor)) for beta in betas])

    def forward(self, capsules: Capsules | Float[Tensor, "*b i r d"]) -> Capsules:
        args = self._arguments(capsules)
        routed = em_routing(**args, backend=self.backend)
        if self.sharing == "all":
            return Capsules.scored(routed.poses, routed.scores.masked_fill(args["scores"] == -INF, -INF))
        return Capsules.scored(routed.poses, routed.scores)

    def steps(self, capsules: Capsules | Float[Tensor, "*b i r d"]) -> Iterator[EMStep]:
        """Yield every routing iteration, with how much each output used of each input; for figures."""
        return em_routing_steps(**self._arguments(capsules))

    def backend_here(self, compiling: bool = False, n_images: int = 1) -> str:
        """Return the backend that routing uses for so many images on the device of the weights."""
        poses = self.weight.new_empty(1, self.n_in or ASSUMED, self.rows, self.d_in).expand(n_images, -1, -1, -1)
        return em_routing_backend(**self._arguments(poses), backend=self.backend, compiling=compiling)

    def extra_repr(self) -> str:
        sizes = f"{self.n_in}x{self.rows}x{self.d_in} -> {self.n_out}x{self.rows}x{self.d_out}"
        return f"{sizes}, n_iters={self.n_iters}, sharing={self.sharing}, cost={self.cost}, density={self.density}"

    def _arguments(self, capsules: Capsules | Tensor) -> dict:
        """Check the capsules and return the arguments of the op."""
        poses = matrices("EMCapsules", capsules, self.n_in, self.rows, self.d_in)
        check_pose_dtype("EMCapsules", poses, self.weight.dtype)
        scores = scores_of(capsules, poses)
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


def _shared_shape(n_in: int | None, n_out: int | None, sharing: str, n_types: int | None) -> tuple[int, ...]:
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
    if sharing == "places":
        if n_types is None:
            raise ValueError("EMCapsules: sharing='places' needs n_types that divides n_in; got n_types=None")
        return (checked_types("EMCapsules", n_in, n_types), n_out)
    if n_in is None:
        raise ValueError(
            "EMCapsules: one transform per pair needs to know n_in; give it, or share with sharing='inputs'"
        )
    return (n_in, n_out)
