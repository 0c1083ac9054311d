"""Routing of sequences of vectors without materialising the votes (Heinsen 2022)."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.layers.capsules import Capsules, check_capsules
from torchcaps.ops import LazyStep, LazyWeights, lazy_routing, lazy_routing_steps

INF = float("inf")


class LazyRoutedCapsules(nn.Module):
    """Output vectors that sum the votes of the inputs they predict best, for long sequences. [*b i d] -> [*b j e].

    The layer computes input scores itself (paper: a_i = A(x_i)); an input activity of -inf masks the input, any other
    is ignored. An output's activity is its summed credit, benefit minus cost, like a score of `EMCapsules`.
    `n_in` None: any number of inputs, with benefits and costs computed from the vectors instead of by position.
    Initialised like the author's code.
    """

    def __init__(
        self, n_in: int | None, n_out: int, d_in: int, d_out: int, n_iters: int = 2, *, normalise: bool = True
    ) -> None:
        super().__init__()
        self.n_in, self.n_out, self.d_in, self.d_out = n_in, n_out, d_in, d_out
        self.n_iters, self.normalise = n_iters, normalise
        fixed = () if n_in is None else (n_in,)
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
        else:
            self.beta_use, self.beta_ignore = (nn.Parameter(torch.randn(n_in, n_out)) for _ in range(2))

    def forward(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Capsules:
        routed = lazy_routing(**self._arguments(capsules))
        return Capsules(routed.poses, routed.credit.sum(-2).to(routed.poses.dtype))

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

    def _arguments(self, capsules: Capsules | Tensor) -> dict:
        """Check the capsules and return the arguments of the op."""
        poses = capsules.poses if isinstance(capsules, Capsules) else capsules
        check_capsules("LazyRoutedCapsules", poses, self.n_in, self.d_in)
        gone = (
            capsules.activity == -INF
            if isinstance(capsules, Capsules)
            else poses.new_zeros(poses.shape[:-1], dtype=torch.bool)
        )
        poses = poses.masked_fill(gone.unsqueeze(-1), 0)  # scores and betas use the poses, and NaN would spread
        n_there = (~gone).sum(-1, keepdim=True).clamp(min=1)
        scores = (poses * self.score).sum(-1) * n_there.to(poses.dtype).rsqrt() + self.score_bias
        betas = self.betas(poses).chunk(2, dim=-1) if self.n_in is None else (self.beta_use, self.beta_ignore)
        return {
            "scores": scores.masked_fill(gone, -INF),
            "poses": poses,
            "weights": LazyWeights(*(getattr(self, name) for name in LazyWeights._fields)),
            "beta_use": betas[0],
            "beta_ignore": betas[1],
            "n_iters": self.n_iters,
            "normalise": self.normalise,
        }
