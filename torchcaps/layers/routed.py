"""Fully connected capsules with routing by agreement."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from torchcaps.layers.calibration import scale_votes
from torchcaps.layers.capsules import Capsules, active_poses, vectors
from torchcaps.layers.initialisation import (
    ASSUMED,
    Lengths,
    alive_bias,
    alive_lengths,
    alive_std,
    check_init,
    is_aligned,
)
from torchcaps.layers.inputs import check_pose_dtype
from torchcaps.layers.norm import KeepsPoseNorms, PoseNorm, check_varied, kept_if_refused
from torchcaps.layers.sizes import check_sizes
from torchcaps.ops import (
    RoutingStep,
    dynamic_routing,
    dynamic_routing_backend,
    dynamic_routing_steps,
    recover_couplings,
    recover_support,
)
from torchcaps.ops.couplings import coupling_rule
from torchcaps.runtime.distributed import n_processes

SHARING = ("none", "places", "inputs", "all")


class Coupled(NamedTuple):
    """Capsules and the couplings of the last routing iteration.

    Example:

        layer = RoutedCapsules(n_in=32, n_out=10, d_in=8, d_out=16)
        list(layer.with_couplings(torch.randn(4, 32, 8)).couplings.shape)  # [4, 32, 10]
    """

    capsules: Capsules
    couplings: Float[Tensor, "*b i j"]  # without gradient


class Supported(NamedTuple):
    """Capsules and their support in the last routing iteration (Rawlinson 2018)."""

    capsules: Capsules
    support: Float[Tensor, "*b j"]  # without gradient


class RoutedCapsules(KeepsPoseNorms):
    """Fully connected capsule layer: inputs vote for outputs, and votes are routed by agreement. [*b i d] -> [*b j e].

    `sharing` of the transforms: `none` one per pair, `places` one per input type and output (give `n_types`), `inputs`
    one per output, `all` a single one. `learn_prior`: the initial logits are parameters. `n_in` None: any number of
    inputs, if the weights do not depend on it; the layer then starts as for 64 inputs, so call `calibrate` before
    training. `init`: one of `INITS`; deep networks need "alive", and `calibrate` where `bias` is False.

    `batch_norm`, which is in no paper, normalises the poses over samples and places, for each type of inputs (without
    `n_types` for each input, or all alike where they share), and multiplies them by the activities; plain poses are all
    active. Every input that is not masked counts alike. In training that wants several samples.

    Example:

        layer = RoutedCapsules(n_in=32, n_out=10, d_in=8, d_out=16)
        list(layer(torch.randn(4, 32, 8)).poses.shape)  # [4, 10, 16]
    """

    def __init__(
        self,
        n_in: int | None,
        n_out: int,
        d_in: int,
        d_out: int,
        n_iters: int = 3,
        *,
        sharing: str = "none",
        n_types: int | None = None,
        couplings: str = "softmax",
        bias: bool = True,
        learn_prior: bool = False,
        detach: bool = False,
        backend: str = "auto",
        init: str = "alive",
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        coupling_rule(couplings)
        check_init("RoutedCapsules", init)
        check_sizes("RoutedCapsules", n_in=n_in, n_out=n_out, d_in=d_in, d_out=d_out, n_iters=n_iters)
        self.n_in, self.n_out, self.d_in, self.d_out, self.n_iters = n_in, n_out, d_in, d_out, n_iters
        self.couplings, self.detach, self.backend = couplings, detach, backend
        self.weight = nn.Parameter(torch.empty(_weight_shape(n_in, n_out, d_in, d_out, sharing, n_types)))
        if init == "alive":
            std = alive_std(n_in or ASSUMED, n_out, d_out, n_iters, couplings, bias)
        else:
            std = (n_out / ((n_in or n_out) * d_in)) ** 0.5
        # a normalised pose is √d times as long as its capsule is active
        nn.init.normal_(self.weight, std=std / d_in**0.5 if batch_norm else std)
        if sharing == "all" and not bias:
            raise ValueError(
                "RoutedCapsules: with one transform for all, only the bias tells the outputs apart; keep bias=True"
            )
        self.bias = nn.Parameter(self._first_bias(init, sharing)) if bias else None
        self.norm = PoseNorm(len(self.weight) if self.weight.ndim == 4 else 1, d_in) if batch_norm else None
        if (learn_prior or couplings == "random") and n_in is None:
            raise ValueError(
                "RoutedCapsules: prior logits are one per input and output; give n_in, or use couplings without them"
            )
        if learn_prior and couplings == "random":
            raise ValueError(
                "RoutedCapsules: random couplings are fixed once drawn; use couplings='softmax' to learn the prior"
            )
        prior = torch.randn(n_in, n_out) if couplings == "random" else torch.zeros(n_in, n_out) if learn_prior else None
        if learn_prior:
            self.prior = nn.Parameter(prior)
        else:
            self.register_buffer("prior", prior)

    def forward(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Capsules:
        poses = self._inputs(capsules)
        return Capsules.of(
            dynamic_routing(poses, self.weight, self.bias, self.n_iters, backend=self.backend, **self._rule()).poses
        )

    @torch.no_grad()
    def calibrate(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Capsules:
        """Scale the transforms so that these inputs give a median activity of 0.2 to 0.7; return the outputs.

        Batch normalisation takes the statistics of the inputs first, and normalises by them.
        """
        if self.norm is None:
            return self._scale(capsules)
        _, poses, present = self._activities(capsules)
        _check_samples(poses.shape[:-2].numel())
        with kept_if_refused(self):
            check_varied("RoutedCapsules", self.norm.fit(poses, present))
            self.norm.eval()  # processes may differ in the number of passes, and must not wait for each other
            return self._scale(capsules)

    def _scale(self, capsules: Capsules | Tensor) -> Capsules:
        """Calibrate to the inputs as they are normalised now."""
        rule = self._rule() | {"backend": self.backend}
        wanted = self._lengths(self.bias is not None).sum
        n_iters = self.n_iters if is_aligned(self.n_out, self.n_iters, self.couplings) else 1
        # one transform for all tells the number of outputs by the bias alone
        unbiased = torch.zeros_like(self.bias) if self.weight.ndim == 2 else None
        return scale_votes(
            self,
            self._inputs(capsules),
            lambda poses: dynamic_routing(poses, self.weight, unbiased, n_iters, **rule).poses,
            wanted,
            capsules,
        )

    def with_couplings(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Coupled:
        """Route with any backend and also return the last couplings, for figures."""
        poses = self._inputs(capsules)
        routed = dynamic_routing(poses, self.weight, self.bias, self.n_iters, backend=self.backend, **self._rule())
        with torch.no_grad():
            couplings = recover_couplings(
                poses, self.weight, routed.pose_sum, prior=self.prior, couplings=self.couplings
            )
        return Coupled(Capsules.of(routed.poses), couplings)

    def with_support(
        self,
        capsules: Capsules | Float[Tensor, "*b i d"],
        n_types: int,
        groups: str = "places",
    ) -> Supported:
        """Route and also return the support: each group's largest coupling (`routing_support`), summed over groups."""
        poses = self._inputs(capsules)
        routed = dynamic_routing(poses, self.weight, self.bias, self.n_iters, backend=self.backend, **self._rule())
        with torch.no_grad():
            rule = {"prior": self.prior, "couplings": self.couplings, "groups": groups}
            support = recover_support(poses, self.weight, routed.pose_sum, n_types, **rule)
        return Supported(Capsules.of(routed.poses), support)

    def steps(self, capsules: Capsules | Float[Tensor, "*b i d"], n_iters: int | None = None) -> Iterator[RoutingStep]:
        """Yield every routing iteration, for figures; another number of them if `n_iters` is given."""
        n_iters = self.n_iters if n_iters is None else n_iters
        return dynamic_routing_steps(self._inputs(capsules), self.weight, self.bias, n_iters, **self._rule())

    def backend_here(self, compiling: bool = False, n_images: int = 1) -> str:
        """Return the backend that routing uses for so many images on the device of the weights."""
        poses, rule = self.weight.new_empty(1, self.n_in or 1, self.d_in).expand(n_images, -1, -1), self._rule()
        return dynamic_routing_backend(
            poses, self.weight, self.backend, compiling, bias=self.bias, n_iters=self.n_iters, **rule
        )

    def extra_repr(self) -> str:
        return (
            f"{self.n_in}x{self.d_in} -> {self.n_out}x{self.d_out}, n_iters={self.n_iters}, couplings={self.couplings}"
        )

    def _first_bias(self, init: str, sharing: str) -> Float[Tensor, "j e"]:
        if init == "alive":
            return alive_bias(self.n_out, self.d_out, self._lengths().bias)
        sizes = self.n_out, self.d_out
        return torch.randn(sizes) * 0.1 if sharing == "all" else torch.zeros(sizes)

    def _lengths(self, bias: bool = True) -> Lengths:
        return alive_lengths(self.n_in or ASSUMED, self.n_out, self.d_out, self.n_iters, self.couplings, bias)

    def _rule(self) -> dict:
        return {"prior": self.prior, "couplings": self.couplings, "detach": self.detach}

    def _inputs(self, capsules: Capsules | Tensor) -> Float[Tensor, "*b i d"]:
        """Return the poses to route: as long as the activity, or normalised and multiplied by the activity."""
        if self.norm is None:
            poses = vectors("RoutedCapsules", capsules, self.n_in, self.d_in)
            check_pose_dtype("RoutedCapsules", poses, self.weight.dtype)
            return poses
        activity, poses, present = self._activities(capsules)
        if self.norm.training:
            _check_samples(poses.shape[:-2].numel() * n_processes())
        return self.norm(poses, present) * activity.unsqueeze(-1)

    def _activities(
        self, capsules: Capsules | Tensor
    ) -> tuple[Float[Tensor, "*b i"], Float[Tensor, "*b i d"], Bool[Tensor, "*b i"]]:
        """Return activities, the checked poses to normalise, and which are there: pose and activity are not zero."""
        activity, poses = active_poses("RoutedCapsules", capsules, self.n_in, self.d_in)
        check_pose_dtype("RoutedCapsules", poses, self.weight.dtype)
        return activity, poses, (activity != 0) & (poses != 0).any(-1)


def _check_samples(n: int) -> None:
    if n < 2:  # the normalised poses of a type sum to zero over the places of one sample, and so do uniform votes
        raise ValueError(
            f"RoutedCapsules: batch normalisation wants several samples to train or calibrate, got {n}; "
            "give a larger batch, or call eval() on the model"
        )


def _weight_shape(
    n_in: int | None, n_out: int, d_in: int, d_out: int, sharing: str, n_types: int | None
) -> tuple[int, ...]:
    if sharing not in SHARING:
        raise ValueError(f"RoutedCapsules: sharing must be one of {', '.join(SHARING)}; got {sharing!r}")
    if sharing == "all":
        return (d_in, d_out)
    if sharing == "inputs":
        return (n_out, d_in, d_out)
    if sharing == "places":
        if not n_types or (n_in or 0) % n_types:
            raise ValueError(
                f"RoutedCapsules: sharing='places' needs n_types that divides n_in; got n_types={n_types}, n_in={n_in}"
            )
        return (n_types, n_out, d_in, d_out)
    if n_in is None:
        raise ValueError(
            "RoutedCapsules: one transform per pair needs to know n_in; give it, or share with sharing='inputs'"
        )
    return (n_in, n_out, d_in, d_out)
