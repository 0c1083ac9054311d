"""Fully connected capsules with self-attention routing (Mazzia 2021)."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.layers.calibration import scale_until_alive
from torchcaps.layers.capsules import Capsules, checked_types, vectors
from torchcaps.layers.initialisation import LENGTH, LONG, MOST, SHORT, check_init
from torchcaps.layers.inputs import check_pose_dtype
from torchcaps.layers.sizes import check_sizes
from torchcaps.ops import RoutingStep, self_attention_routing, self_attention_routing_steps
from torchcaps.ops.votes import over_places

LOGIT = 0.7  # deviation of the logits at most, for inputs of LENGTH
LEAST = 0.34  # activity for short inputs, which this squash does not square; higher ones would leave agreement less
SUM = 0.75  # length of a sum of votes before the squash in the paper's network, for inputs of LENGTH


class SelfAttentionCapsules(nn.Module):
    """Fully connected capsule layer whose votes attend to each other, without iterations. [*b i d] -> [*b j e].

    An output's length is its activity. `prior`: what is added to the couplings (paper: log priors b), learnt; it starts
    at zero, or as one number for all pairs where many outputs would leave each too small a share. `init` "paper": the
    start of `EfficientCapsNet`, whose one layer needs no other.
    With `n_types` the inputs are (type, place), and a type's weights are shared by its places.

    Example:

        layer = SelfAttentionCapsules(n_in=16, n_out=10, d_in=8, d_out=16)
        list(layer(torch.randn(4, 16, 8)).poses.shape)  # [4, 10, 16]
    """

    def __init__(
        self, n_in: int, n_out: int, d_in: int, d_out: int, *, n_types: int | None = None, init: str = "alive"
    ) -> None:
        super().__init__()
        check_init("SelfAttentionCapsules", init)
        check_sizes("SelfAttentionCapsules", n_in=n_in, n_out=n_out, d_in=d_in, d_out=d_out)
        self.n_in, self.n_out, self.d_in, self.d_out = n_in, n_out, d_in, d_out
        n_weights = checked_types("SelfAttentionCapsules", n_in, n_types)
        length, prior = (_alive if init == "alive" else _paper)(n_in, n_out, d_out)
        self.weight = nn.Parameter(torch.randn(n_weights, n_out, d_in, d_out) * length / (LENGTH * d_out**0.5))
        self.prior = nn.Parameter(torch.full((n_weights, n_out), prior))

    def forward(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Capsules:
        prior = over_places(self.prior, self.n_in)
        return Capsules.of(self_attention_routing(self._checked(capsules), self.weight, prior))

    @torch.no_grad()
    def calibrate(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Capsules:
        """Scale the transforms so that these inputs give a median activity of 0.2 to 0.7; return the outputs."""
        poses = self._checked(capsules)
        size = poses.float().square().sum(-1).mean().sqrt()
        if not torch.isfinite(size) or size == 0:
            raise ValueError(
                "SelfAttentionCapsules.calibrate: the inputs are all zero or not finite; give a batch of real inputs"
            )
        self.weight.mul_(LENGTH / size)
        return scale_until_alive(self, capsules, self.weight.mul_)

    def steps(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Iterator[RoutingStep]:
        """Yield the only step of the routing, for figures."""
        prior = over_places(self.prior, self.n_in)
        return self_attention_routing_steps(self._checked(capsules), self.weight, prior)

    def extra_repr(self) -> str:
        return f"{self.n_in}x{self.d_in} -> {self.n_out}x{self.d_out}"

    def _checked(self, capsules: Capsules | Tensor) -> Tensor:
        poses = vectors("SelfAttentionCapsules", capsules, self.n_in, self.d_in)
        check_pose_dtype("SelfAttentionCapsules", poses, self.weight.dtype)
        return poses


def _alive(n_in: int, n_out: int, d_out: int) -> tuple[float, float]:
    """Return the length of a vote at LENGTH, and the prior: inputs of SHORT and LONG give activities of LEAST and MOST.

    Couplings of 1 / n_out sum n random votes of length x / √n to x / n_out, agreement adds x² / √d³ of that, and the
    prior adds the rest. Where logits would be large, or no prior is needed, there is less agreement.
    """
    agreement = (1 - 1 / n_out) * d_out**-1.5 / n_out
    short, long = -math.log(1 - LEAST) / SHORT, -math.log(1 - MOST) / LONG  # sums per length of an input
    cubic = (long - short) / (LONG**2 - SHORT**2)
    per_length = min(
        (cubic / max(agreement, 1e-9)) ** (1 / 3),
        short * n_out,
        math.sqrt(LOGIT * d_out * math.sqrt(n_in)) / LENGTH,
    )
    prior = (short - agreement * per_length**3 * SHORT**2) / per_length - 1 / n_out
    return per_length * LENGTH / math.sqrt(n_in), max(0.0, prior)


def _paper(n_in: int, n_out: int, d_out: int) -> tuple[float, float]:
    """Return the same for sums of length SUM at inputs of LENGTH."""
    agreement = d_out**-1.5
    x = SUM * n_out / (1 + agreement * (SUM * n_out) ** 2) ** (1 / 3)
    x = min(x, math.sqrt(LOGIT * d_out * math.sqrt(n_in)))
    return x / math.sqrt(n_in), max(0.0, SUM / x - (1 + agreement * x**2) / n_out)
