"""Fully connected capsules with inverted dot-product attention routing (Tsai 2020)."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.layers.calibration import scale_until_alive
from torchcaps.layers.capsules import Capsules, active_poses, checked_types
from torchcaps.layers.initialisation import LENGTH, SCORE
from torchcaps.layers.inputs import check_pose_dtype
from torchcaps.layers.sizes import check_sizes
from torchcaps.ops import RoutingStep, inverted_routing, inverted_routing_steps
from torchcaps.ops.votes import votes_of

# Deviation of the logits, for inputs of LENGTH. A layer of the same kind before it gives poses about √d / 2 long, whose
# logits deviate by that much more; with 1 the gradients of six layers would differ by 100.
LOGIT = 0.5


class InvertedCapsules(nn.Module):
    """Fully connected capsule layer whose outputs compete for the inputs. [*b i d] -> [*b j e].

    Poses are normalised by a layer norm that all outputs share, and so is the linear map of a pose to its score. The
    paper has scores in the last layer alone; here inputs that have a score are scaled by their activity, -inf masks.
    With `n_types` the inputs are (type, place), and a type's weights are shared by its places.

    Example:

        layer = InvertedCapsules(n_in=32, n_out=10, d_in=8, d_out=16)
        list(layer(torch.randn(4, 32, 8)).score.shape)  # [4, 10]
    """

    def __init__(
        self, n_in: int, n_out: int, d_in: int, d_out: int, n_iters: int = 2, *, n_types: int | None = None
    ) -> None:
        super().__init__()
        check_sizes("InvertedCapsules", n_in=n_in, n_out=n_out, d_in=d_in, d_out=d_out, n_iters=n_iters)
        self.n_in, self.n_out, self.d_in, self.d_out, self.n_iters = n_in, n_out, d_in, d_out, n_iters
        n_weights = checked_types("InvertedCapsules", n_in, n_types)
        # products of normalised poses with votes have the deviation that is the votes' length
        self.weight = nn.Parameter(torch.randn(n_weights, n_out, d_in, d_out) * LOGIT / (LENGTH * d_out**0.5))
        self.scale, self.bias = nn.Parameter(torch.ones(d_out)), nn.Parameter(torch.zeros(d_out))
        self.score = nn.Linear(d_out, 1)
        nn.init.normal_(self.score.weight, std=SCORE * d_out**-0.5)
        nn.init.zeros_(self.score.bias)

    def forward(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Capsules:
        poses = self._checked(capsules)
        found = inverted_routing(poses, self.weight, self.n_iters, scale=self.scale, bias=self.bias)
        return Capsules.scored(found, self.score(found.to(self.score.weight.dtype)).squeeze(-1).to(found.dtype))

    @torch.no_grad()
    def calibrate(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Capsules:
        """Scale the transforms so that votes have length 1, then shift the scores into range; return the outputs."""
        poses = self._checked(capsules)
        size = votes_of(poses, self.weight, self.n_out).float().square().sum(-1).mean().sqrt()
        if not torch.isfinite(size) or size == 0:
            raise ValueError(
                "InvertedCapsules.calibrate: the inputs are all zero or not finite; give a batch of real inputs"
            )
        self.weight.div_(size)
        return scale_until_alive(self, capsules, lambda factor: self.score.bias.add_(factor - 1))

    def steps(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Iterator[RoutingStep]:
        """Yield every routing iteration, for figures."""
        poses = self._checked(capsules)
        return inverted_routing_steps(poses, self.weight, self.n_iters, scale=self.scale, bias=self.bias)

    def extra_repr(self) -> str:
        return f"{self.n_in}x{self.d_in} -> {self.n_out}x{self.d_out}, n_iters={self.n_iters}"

    def _checked(self, capsules: Capsules | Tensor) -> Float[Tensor, "*b i d"]:
        activity, poses = active_poses("InvertedCapsules", capsules, self.n_in, self.d_in)
        check_pose_dtype("InvertedCapsules", poses, self.weight.dtype)
        scored = isinstance(capsules, Capsules) and capsules.score is not None
        return poses * activity.unsqueeze(-1).to(poses.dtype) if scored else poses
