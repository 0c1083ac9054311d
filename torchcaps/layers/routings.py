"""Routings by name: swap the routing of a network by one argument.

A routing is a frozen dataclass of options; the layer that it builds holds the weights. Between layers poses are
vectors; a routing of matrices views d dimensions as rows x (d / rows).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn

from torchcaps.layers.capsules import Capsules
from torchcaps.layers.em import EMCapsules
from torchcaps.layers.inverted import InvertedCapsules
from torchcaps.layers.ladder import LadderCapsules
from torchcaps.layers.lazy import LazyRoutedCapsules
from torchcaps.layers.matrix_em import MatrixCapsules
from torchcaps.layers.routed import RoutedCapsules
from torchcaps.layers.self_attention import SelfAttentionCapsules
from torchcaps.layers.self_routing import SelfRoutedCapsules
from torchcaps.layers.sizes import check_sizes


@runtime_checkable
class Routing(Protocol):
    """Options of a routing. `loss` names the loss that fits its outputs.

    "margin" of lengths, "cross-entropy" of scores, "spread" of probabilities, or "likelihood": of activities that sum
    to one over the classes.

    Example:

        ROUTINGS["em"].loss, ROUTINGS["matrix-em"].loss  # ('cross-entropy', 'spread')
    """

    loss: ClassVar[str]

    def build(self, n_in: int, n_out: int, d_in: int, d_out: int, n_types: int | None = None) -> nn.Module:
        """Return a fresh layer with these sizes.

        `n_types`: the inputs are (type, place), and the places of a type share its transforms.
        """


@dataclass(frozen=True, kw_only=True)
class Dynamic:
    """Routing by agreement (Sabour 2017); `couplings` name the rule, one of `COUPLINGS`.

    `batch_norm`, which is in no paper, normalises the poses of the inputs per type, times their activities.

    Example:

        layer = CapsuleLayer(32, 10, 8, 16, routing=Dynamic(n_iters=1, couplings="max-min"))
        list(layer(torch.randn(4, 32, 8)).poses.shape)  # [4, 10, 16]
    """

    loss: ClassVar[str] = "margin"
    n_iters: int = 3
    couplings: str = "softmax"
    batch_norm: bool = False

    def build(self, n_in: int, n_out: int, d_in: int, d_out: int, n_types: int | None = None) -> RoutedCapsules:
        options = {"couplings": self.couplings, "batch_norm": self.batch_norm}
        shared = {"sharing": _sharing(n_types), "n_types": n_types}
        return RoutedCapsules(n_in, n_out, d_in, d_out, self.n_iters, **options, **shared)


@dataclass(frozen=True, kw_only=True)
class EM:
    """EM routing for any inputs (Heinsen 2019); poses are matrices of `rows` rows.

    Example:

        layer = CapsuleLayer(32, 10, 8, 16, routing=EM(rows=2))
        list(layer(torch.randn(4, 32, 8)).poses.shape)  # [4, 10, 16]
    """

    loss: ClassVar[str] = "cross-entropy"
    n_iters: int = 3
    rows: int = 4
    cost: str = "separate"
    density: str = "gaussian"

    def build(self, n_in: int, n_out: int, d_in: int, d_out: int, n_types: int | None = None) -> EMCapsules:
        if d_in % self.rows or d_out % self.rows:
            raise ValueError(
                f"EM routing has poses of {self.rows} rows; d_in={d_in} or d_out={d_out} is no multiple; "
                "change the sizes, or give EM(rows=...)"
            )
        sizes = (self.rows, d_in // self.rows, d_out // self.rows)
        shared = {"sharing": _sharing(n_types), "n_types": n_types}
        return EMCapsules(n_in, n_out, *sizes, self.n_iters, cost=self.cost, density=self.density, **shared)


@dataclass(frozen=True, kw_only=True)
class MatrixEM:
    """EM routing of matrix capsules (Hinton 2018); poses are matrices of `rows` rows.

    `batch_norm`, which is not in the paper, normalises poses and scores of the inputs per type.

    Example:

        layer = CapsuleLayer(32, 10, 16, 16, routing=MatrixEM(n_iters=2))
        list(layer(torch.randn(4, 32, 16)).poses.shape)  # [4, 10, 16]
    """

    loss: ClassVar[str] = "spread"
    n_iters: int = 3
    rows: int = 4
    density_power: float | None = None  # the paper's is 1; None: as the sizes want it
    batch_norm: bool = False

    def build(self, n_in: int, n_out: int, d_in: int, d_out: int, n_types: int | None = None) -> MatrixCapsules:
        if d_in % self.rows or d_out % self.rows:
            raise ValueError(
                f"matrix EM routing has poses of {self.rows} rows; d_in={d_in} or d_out={d_out} is no multiple; "
                "change the sizes, or give MatrixEM(rows=...)"
            )
        sizes = (self.rows, d_in // self.rows, d_out // self.rows)
        options = {"density_power": self.density_power, "batch_norm": self.batch_norm, "n_types": n_types}
        return MatrixCapsules(n_in, n_out, *sizes, self.n_iters, **options)


@dataclass(frozen=True, kw_only=True)
class Lazy:
    """Routing without votes (Heinsen 2022); for long sequences.

    Example:

        layer = CapsuleLayer(32, 10, 8, 16, routing=Lazy())
        list(layer(torch.randn(4, 32, 8)).score.shape)  # [4, 10]
    """

    loss: ClassVar[str] = "cross-entropy"
    n_iters: int = 2

    def build(self, n_in: int, n_out: int, d_in: int, d_out: int, n_types: int | None = None) -> LazyRoutedCapsules:
        return LazyRoutedCapsules(n_in, n_out, d_in, d_out, self.n_iters, n_types=n_types)


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Ladder of the most active inputs (Jeong 2019); one network serves all outputs.

    Example:

        layer = CapsuleLayer(64, 10, 8, 16, routing=Ladder(n_kept=16))
        list(layer(torch.rand(4, 64, 8) / 4).poses.shape)  # [4, 10, 16]
    """

    loss: ClassVar[str] = "margin"
    n_kept: int | None = 32
    width: int = 96

    def build(self, n_in: int, n_out: int, d_in: int, d_out: int, n_types: int | None = None) -> LadderCapsules:
        if n_types is not None:
            raise ValueError(
                f"a ladder keeps inputs by their activity and has no transforms per type, got n_types={n_types}; "
                "leave it out, or take another routing"
            )
        n_kept = n_in if self.n_kept is None else min(self.n_kept, n_in)
        return LadderCapsules(n_in, n_out, d_in, d_out, n_kept, shared=True, width=self.width)


@dataclass(frozen=True, kw_only=True)
class SelfAttention:
    """Self-attention of the votes (Mazzia 2021); no iterations.

    Example:

        layer = CapsuleLayer(32, 10, 8, 16, routing=SelfAttention())
        list(layer(torch.randn(4, 32, 8)).poses.shape)  # [4, 10, 16]
    """

    loss: ClassVar[str] = "margin"

    def build(self, n_in: int, n_out: int, d_in: int, d_out: int, n_types: int | None = None) -> SelfAttentionCapsules:
        return SelfAttentionCapsules(n_in, n_out, d_in, d_out, n_types=n_types)


@dataclass(frozen=True, kw_only=True)
class SelfRouting:
    """Every input decides alone (Hahn 2019); no iterations. The authors' code has both options, the paper neither.

    Example:

        layer = CapsuleLayer(32, 10, 8, 16, routing=SelfRouting(bias=True, batch_norm=True))
        list(layer(torch.randn(4, 32, 8)).poses.shape)  # [4, 10, 16]
    """

    loss: ClassVar[str] = "likelihood"
    bias: bool = False
    batch_norm: bool = False

    def build(self, n_in: int, n_out: int, d_in: int, d_out: int, n_types: int | None = None) -> SelfRoutedCapsules:
        options = {"bias": self.bias, "batch_norm": self.batch_norm}
        return SelfRoutedCapsules(n_in, n_out, d_in, d_out, n_types=n_types, **options)


@dataclass(frozen=True, kw_only=True)
class Inverted:
    """Inverted dot-product attention (Tsai 2020); a layer norm in place of squash.

    Example:

        layer = CapsuleLayer(32, 10, 8, 16, routing=Inverted(n_iters=1))
        list(layer(torch.randn(4, 32, 8)).score.shape)  # [4, 10]
    """

    loss: ClassVar[str] = "cross-entropy"
    n_iters: int = 2

    def build(self, n_in: int, n_out: int, d_in: int, d_out: int, n_types: int | None = None) -> InvertedCapsules:
        return InvertedCapsules(n_in, n_out, d_in, d_out, self.n_iters, n_types=n_types)


ROUTINGS: dict[str, Routing] = {
    "dynamic": Dynamic(),
    "leaky": Dynamic(couplings="leaky"),
    "max-min": Dynamic(couplings="max-min"),
    "uniform": Dynamic(couplings="uniform", n_iters=1),
    "random": Dynamic(couplings="random", n_iters=1),
    "em": EM(),
    "matrix-em": MatrixEM(),
    "lazy": Lazy(),
    "ladder": Ladder(),
    "self-attention": SelfAttention(),
    "self-routing": SelfRouting(),
    "inverted": Inverted(),
}


def _sharing(n_types: int | None) -> str:
    return "none" if n_types is None else "places"


def routing_named(routing: str | Routing) -> Routing:
    """Look up a routing by name, or return the options unchanged."""
    if isinstance(routing, Routing) and not isinstance(routing, type):
        return routing
    if not isinstance(routing, str) or routing not in ROUTINGS:
        raise ValueError(f"routing must be one of {', '.join(ROUTINGS)}, or their options; got {routing!r}")
    return ROUTINGS[routing]


@runtime_checkable
class Stepped(Protocol):
    """Layer that routes by iterations."""

    def steps(self, capsules: Any) -> Iterator[Any]:
        """Yield every routing iteration."""


class CapsuleLayer(nn.Module):
    """Fully connected capsule layer of any routing. [*b i d] -> [*b j e], as vectors.

    `n_types`: inputs are (type, place), and a type's transforms are shared by its places. Example:

        CapsuleLayer(288, 32, 8, 16, routing=Dynamic(n_iters=1))
        layer = CapsuleLayer(288, 32, 8, 16, routing="em", n_types=8)  # 8 types at 36 places
        list(layer(torch.randn(4, 288, 8)).poses.shape)  # [4, 32, 16]
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        d_in: int,
        d_out: int,
        routing: str | Routing = "dynamic",
        *,
        n_types: int | None = None,
    ) -> None:
        super().__init__()
        check_sizes("CapsuleLayer", n_in=n_in, n_out=n_out, d_in=d_in, d_out=d_out)
        self.n_in, self.n_out, self.d_in, self.d_out = n_in, n_out, d_in, d_out
        self.routing = routing_named(routing)
        self.routed = self.routing.build(n_in, n_out, d_in, d_out, n_types)

    def forward(self, capsules: Capsules | Tensor) -> Capsules:
        return self._flat(self.routed(capsules))

    def calibrate(self, capsules: Capsules | Tensor) -> Capsules:
        """Scale the layer to these inputs; return the outputs."""
        return self._flat(self.routed.calibrate(capsules))

    def steps(self, capsules: Capsules | Tensor) -> Iterator[Any]:
        """Yield every routing iteration, as the layer of the routing does; refused where there are none."""
        if not isinstance(self.routed, Stepped):
            raise ValueError(
                f"{self.routing} has no routing iterations to show; take another routing, such as 'dynamic'"
            )
        return self.routed.steps(capsules)

    def _flat(self, routed: Capsules) -> Capsules:
        matrices = routed.poses.ndim == routed.activity.ndim + 2
        return routed._replace(poses=routed.poses.flatten(-2)) if matrices else routed

    def extra_repr(self) -> str:
        return f"routing={self.routing}"


def by_agreement(layer: nn.Module | None) -> RoutedCapsules | None:
    """Return the layer, or the one inside a `CapsuleLayer`, if it routes by agreement; else None."""
    inner = layer.routed if isinstance(layer, CapsuleLayer) else layer
    return inner if isinstance(inner, RoutedCapsules) else None
