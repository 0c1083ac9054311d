"""Fully connected capsules with self-routing (Hahn 2019)."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.layers.capsules import NEAR, Capsules, active_poses, checked_types
from torchcaps.layers.initialisation import LENGTH, LONG
from torchcaps.layers.inputs import check_pose_dtype
from torchcaps.layers.norm import KeepsPoseNorms, PoseNorm, check_varied, kept_if_refused
from torchcaps.layers.sizes import check_sizes
from torchcaps.ops import SelfRoutingStep, self_routing, self_routing_steps

LOGIT = 0.5  # deviation of the first routing logits, without the bias


class SelfRoutedCapsules(KeepsPoseNorms):
    """Fully connected capsule layer whose inputs decide alone where they go, without iterations. [*b i d] -> [*b j e].

    Activities sum to one over the outputs; the score is their logit. The paper's loss is the negative logarithm of the
    true class's activity: log activity = logsigmoid of the score. In a last layer it does not depend on `weight`.
    With `n_types` the inputs are (type, place), and a type's weights are shared by its places.

    The authors' code has more than the paper: `bias`, a learnt number for each routing logit, and `batch_norm` of the
    input poses. In training that wants more than one pose of each type: several samples, or places.

    Example:

        layer = SelfRoutedCapsules(n_in=32, n_out=10, d_in=8, d_out=16, bias=True, batch_norm=True)
        list(layer(torch.randn(4, 32, 8)).activity.shape)  # [4, 10]
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        d_in: int,
        d_out: int,
        *,
        n_types: int | None = None,
        bias: bool = False,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        check_sizes("SelfRoutedCapsules", n_in=n_in, n_out=n_out, d_in=d_in, d_out=d_out)
        self.n_in, self.n_out, self.d_in, self.d_out = n_in, n_out, d_in, d_out
        n_weights = checked_types("SelfRoutedCapsules", n_in, n_types)
        # A mean of n random votes is shorter by √n; less so if couplings differ. Inputs of length LONG stay as long.
        length = d_in**0.5 if batch_norm else LONG
        size = math.exp(-(LOGIT**2) / 2) * (n_in / d_out) ** 0.5 * (LONG / length)
        self.weight = nn.Parameter(torch.randn(n_weights, n_out, d_in, d_out) * size)
        self.route = nn.Parameter(torch.randn(n_weights, d_in, n_out) * LOGIT / length)
        self.bias = nn.Parameter(torch.zeros(n_weights, n_out)) if bias else None
        self.norm = PoseNorm(n_weights, d_in) if batch_norm else None

    def forward(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Capsules:
        activity, poses = self._inputs(capsules)
        routed = self_routing(activity, poses, self.weight, self.route, self.bias)
        score = _logit(routed.log_activity)
        return Capsules.scored(routed.poses, score.to(poses.dtype))

    @torch.no_grad()
    def calibrate(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Capsules:
        """Scale both weights: routing logits of deviation 0.5, output poses of length 0.6; return the outputs.

        Activities need no range: they sum to one whatever the inputs. Batch normalisation takes their statistics. The
        bias of the logits is left out.
        """
        activity, poses = self._checked(capsules)
        if not poses.isfinite().all() or not poses.any():  # before anything has changed
            raise ValueError(
                "SelfRoutedCapsules.calibrate: the inputs are all zero or not finite; give a batch of real inputs"
            )
        if self.norm is None:
            return self._scale(capsules)
        with kept_if_refused(self):
            check_varied("SelfRoutedCapsules", self.norm.fit(poses, activity != 0))
            self.norm.eval()  # processes may differ in the number of passes, and must not wait for each other
            return self._scale(capsules)

    def _scale(self, capsules: Capsules | Tensor) -> Capsules:
        """Scale both weights to the inputs as they are normalised now."""
        (step,) = self_routing_steps(*self._inputs(capsules), self.weight, self.route)
        self.route.mul_(LOGIT / step.logits.float().square().mean().sqrt())
        (step,) = self.steps(capsules)
        self.weight.mul_(LENGTH / step.poses.float().square().sum(-1).mean().sqrt())
        return self(capsules)

    def steps(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Iterator[SelfRoutingStep]:
        """Yield the only step of the routing, for figures."""
        return self_routing_steps(*self._inputs(capsules), self.weight, self.route, self.bias)

    def extra_repr(self) -> str:
        return f"{self.n_in}x{self.d_in} -> {self.n_out}x{self.d_out}, bias={self.bias is not None}"

    def _inputs(self, capsules: Capsules | Tensor) -> tuple[Float[Tensor, "*b i"], Float[Tensor, "*b i d"]]:
        """Return activities and poses as they are routed: normalised, if the layer does so."""
        activity, poses = self._checked(capsules)
        return activity, poses if self.norm is None else self.norm(poses, activity != 0)

    def _checked(self, capsules: Capsules | Tensor) -> tuple[Float[Tensor, "*b i"], Float[Tensor, "*b i d"]]:
        """Return activities and checked vector poses."""
        activity, poses = active_poses("SelfRoutedCapsules", capsules, self.n_in, self.d_in)
        check_pose_dtype("SelfRoutedCapsules", poses, self.weight.dtype)
        return activity, poses


def _logit(log_probability: Tensor) -> Tensor:
    """Compute the logit of a probability from its logarithm; finite at probability 1."""
    return log_probability - (-torch.expm1(log_probability.clamp(max=-NEAR))).log()
