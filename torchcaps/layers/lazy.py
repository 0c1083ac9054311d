"""Routing of sequences of vectors without materialising the votes (Heinsen 2022)."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.layers.calibration import scale_until_alive
from torchcaps.layers.capsules import Capsules, checked_types, flat_poses
from torchcaps.layers.initialisation import ASSUMED, GATE, LENGTH, SCORE, alive_betas, check_init
from torchcaps.layers.sizes import check_sizes
from torchcaps.ops import LazyStep, LazyWeights, lazy_routing, lazy_routing_steps
from torchcaps.ops.votes import over_places

INF = float("inf")


class LazyRoutedCapsules(nn.Module):
    """Output vectors that sum the votes of the inputs they predict best, for long sequences. [*b i d] -> [*b j e].

    The layer computes input scores itself (paper: a_i = A(x_i)); an input score of -inf masks the input, and inputs are
    scaled by their activity where they have a score. An output's score is its summed credit, benefit minus cost, as in
    `EMCapsules`. `n_in` None: any number of inputs, with benefits and costs computed from the vectors instead of by
    position; the layer then starts as for 64 inputs, so call `calibrate` before training.
    With `n_types` the inputs are (type, place), and a type's weights are shared by its places.
    `init` "paper": like the author's code; deep networks need "alive".

    Example:

        layer = LazyRoutedCapsules(n_in=None, n_out=10, d_in=64, d_out=16)
        list(layer(torch.randn(2, 500, 64)).poses.shape)  # [2, 10, 16]
    """

    def __init__(
        self,
        n_in: int | None,
        n_out: int,
        d_in: int,
        d_out: int,
        n_iters: int = 2,
        *,
        normalise: bool = True,
        n_types: int | None = None,
        init: str = "alive",
    ) -> None:
        super().__init__()
        check_init("LazyRoutedCapsules", init)
        check_sizes("LazyRoutedCapsules", n_in=n_in, n_out=n_out, d_in=d_in, d_out=d_out, n_iters=n_iters)
        self.n_in, self.n_out, self.d_in, self.d_out = n_in, n_out, d_in, d_out
        self.n_iters, self.normalise = n_iters, normalise
        n_weights = checked_types("LazyRoutedCapsules", n_in, n_types)
        fixed = () if n_weights is None else (n_weights,)
        self.score = nn.Parameter(torch.randn(*fixed, d_in) * 2 * d_in**-0.5)
        self.score_bias = nn.Parameter(torch.zeros(fixed))
        self.vote_mix = nn.Parameter(torch.randn(n_out, d_in))
        self.vote = nn.Parameter(torch.randn(d_in, d_out) * 2 * d_in**-0.5)
        self.vote_bias = nn.Parameter(torch.zeros(n_out, d_out))
        self.guess = nn.Parameter(torch.randn(d_out, d_in) * d_out**-0.5)
        self.guess_mix = nn.Parameter(torch.randn(n_out, d_in))
        self.guess_bias = nn.Parameter(torch.zeros(n_out, d_in))
        self.match = nn.Parameter(torch.randn(*fixed, n_out) * d_in**-0.5)
        self.match_bias = nn.Parameter(torch.zeros(*fixed, n_out))
        if n_in is None:
            # benefit of using an input and cost of ignoring it
            self.betas = nn.Linear(d_in, 2 * n_out)
            if init == "alive":
                nn.init.normal_(self.betas.weight, std=SCORE / (GATE * LENGTH * ASSUMED**0.5))
                nn.init.zeros_(self.betas.bias)  # a score would sum n_in of them
        else:
            self.beta_use, self.beta_ignore = (nn.Parameter(torch.randn(n_weights, n_out)) for _ in range(2))
            if init == "alive":
                # a score sums n_in of them: with a deviation of 1 most activities would be 0 or 1
                alive_betas(self.beta_use, self.beta_ignore)
                with torch.no_grad():
                    for beta in (self.beta_use, self.beta_ignore):
                        beta.mul_((n_weights / n_in) ** 0.5)  # a score sums them over places too
                    self.vote.mul_(n_in**0.5 / LENGTH)  # as much longer as betas have made the credit smaller

    @torch.no_grad()
    def calibrate(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Capsules:
        """Scale the inputs' scores to size 1, and betas to a median activity of 0.2 to 0.7; return the outputs."""
        size = self._arguments(capsules)["scores"].float().nan_to_num(0, 0, 0).square().mean().sqrt()
        if not torch.isfinite(size) or size == 0:
            raise ValueError(
                "LazyRoutedCapsules.calibrate: the inputs are all zero or not finite; give a batch of real inputs"
            )
        self.score.div_(size)
        betas = list(self.betas.parameters()) if self.n_in is None else [self.beta_use, self.beta_ignore]
        return scale_until_alive(self, capsules, lambda factor: [beta.mul_(min(factor, 1 / factor)) for beta in betas])

    def forward(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Capsules:
        routed = lazy_routing(**self._arguments(capsules))
        return Capsules.scored(routed.poses, routed.credit.sum(-2).to(routed.poses.dtype))

    def credit(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Float[Tensor, "*b i j"]:
        """Compute the credit of each output by input, for example of a class by token."""
        return lazy_routing(**self._arguments(capsules)).credit

    def steps(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Iterator[LazyStep]:
        """Yield every routing iteration, for figures."""
        return lazy_routing_steps(**self._arguments(capsules))

    def extra_repr(self) -> str:
        return (
            f"{self.n_in}x{self.d_in} -> {self.n_out}x{self.d_out}, n_iters={self.n_iters}, normalise={self.normalise}"
        )

    def _by_input(self, parameter: Tensor) -> Tensor:
        return parameter if self.n_in is None else over_places(parameter, self.n_in)

    def _arguments(self, capsules: Capsules | Tensor) -> dict:
        """Check the capsules and return the arguments of the op."""
        poses = flat_poses("LazyRoutedCapsules", capsules, self.n_in, self.d_in)
        scored = isinstance(capsules, Capsules) and capsules.score is not None
        if scored:
            gone = capsules.score == -INF
        elif isinstance(capsules, Capsules):
            gone = capsules.activity == 0
        else:
            gone = poses.new_zeros(poses.shape[:-1], dtype=torch.bool)
        poses = poses.masked_fill(gone.unsqueeze(-1), 0)  # scores and betas use the poses, and NaN would spread
        if scored:
            poses = poses * capsules.activity.unsqueeze(-1).to(poses.dtype)
        n_there = (~gone).sum(-1, keepdim=True).clamp(min=1)
        score, score_bias = (self._by_input(self.score), self._by_input(self.score_bias))
        scores = (poses * score).sum(-1) * n_there.to(poses.dtype).rsqrt() + score_bias
        betas = (
            self.betas(poses).chunk(2, dim=-1)
            if self.n_in is None
            else map(self._by_input, (self.beta_use, self.beta_ignore))
        )
        weights = {name: getattr(self, name) for name in LazyWeights._fields}
        weights |= {name: self._by_input(weights[name]) for name in ("match", "match_bias")}
        beta_use, beta_ignore = betas
        return {
            "scores": scores.masked_fill(gone, -INF),
            "poses": poses,
            "weights": LazyWeights(**weights),
            "beta_use": beta_use,
            "beta_ignore": beta_ignore,
            "n_iters": self.n_iters,
            "normalise": self.normalise,
        }
