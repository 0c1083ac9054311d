"""Matrix capsules, routed by EM (Hinton, Sabour and Frosst 2018): fully connected and convolutional.

A cost is multiplied by the number of children that a parent explains, about 100 in the paper's class layer and 3 in its
convolutional ones. With one inverse temperature for all, 0.01, activities of the latter would stay at 0.5; here each
layer takes the reciprocal of the number that it expects, which is the paper's 0.01 in the class layer.

Layers that start "alive" also divide by the dimensions of a pose. Their assignments are soft, since gradients grow with
the steepness of the densities, and their transforms random: near the identity, parents are alike, and so are the
children of the next layer, whose mean grows with their number.
"""

from collections.abc import Iterator
from math import log, prod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.layers.calibration import scale_until_alive
from torchcaps.layers.capsules import Capsules, checked_types, matrices, scores_of
from torchcaps.layers.initialisation import LONG, SHORT, check_init
from torchcaps.layers.inputs import check_pose_dtype
from torchcaps.layers.norm import CapsuleNorm, check_varied, kept_if_refused
from torchcaps.layers.sizes import check_grid, check_sizes
from torchcaps.ops import (
    LocalGrid,
    MatrixEMStep,
    local_grid,
    matrix_em_routing,
    matrix_em_routing_backend,
    matrix_em_routing_steps,
)
from torchcaps.ops.matrix_em.reference import RISE, MatrixEMRouted, grid_coordinates

INF = float("inf")
NOISE = 0.2  # noise of transforms around the identity
# for an alive start: activity of a child, between one half and certain; its gain for a parent, in nats a number;
# deviation of the logs of a parent's densities
THERE, GAIN, SOFT = 0.75, 1.0, 0.7
PRICE = 1.0  # score of a parent that explains nothing, with a minus; one that explains what it expects starts at 0


class _MatrixLayer(nn.Module):
    """Weights and betas of both layers; a subclass says who sees whom by `_field`, and owns the `norm`, if any."""

    norm: CapsuleNorm | None

    def __init__(
        self,
        n_in: int,
        rows: int,
        n_iters: int,
        shape: tuple[int, ...],
        n_seen: int | float,
        n_reached: int | float,
        warmth: float | None,
        density_power: float | None,
        init: str,
    ) -> None:
        super().__init__()
        check_init(type(self).__name__, init)
        if density_power is not None and not 0 < density_power < INF:
            raise ValueError(
                f"{type(self).__name__}: density_power must be a finite number above 0, got {density_power}"
            )
        self.n_in, self.rows, self.n_iters = n_in, rows, n_iters
        *_, n_out, d_in, d_out = shape
        alive, numbers = init == "alive", rows * d_out
        if density_power is None:
            density_power = min(1.0, SOFT / (numbers / 2 * _alike(rows, d_in)) ** 0.5) if alive else 1.0
        # dimensions of the votes that a parent expects to explain
        explained = (THERE if alive else 0.5) * n_seen / n_reached * rows * d_out
        if warmth is None:
            warmth = PRICE / (explained * GAIN * (1 - RISE**n_iters)) if alive else n_reached / n_seen
        self.density_power, self.inverse_temperature = density_power, warmth
        # gain of a parent that explains as many children as it expects, in nats a number
        self.gain = PRICE / (explained * self._warmth())
        if alive:
            start, size = torch.randn(shape) * d_out**-0.5, log(SHORT * LONG / numbers) / 2
            mean, deviation = _settle(rows, d_in, d_out, density_power, n_iters, n_seen)
            start, size = start / mean, size + log(deviation / mean)
        else:  # a pose that stays, and a little noise, which tells parents apart
            start, size = torch.eye(d_in, d_out) + NOISE * torch.randn(shape), 0.0
        self.weight = nn.Parameter(start * n_seen**0.5)  # a mean of n votes is shorter by √n
        self.beta_activate = nn.Parameter(torch.full((n_out,), -PRICE))  # in units of the last iteration's score
        self.beta_use = nn.Parameter(torch.full((n_out,), -log(n_seen) / 2 - size - self.gain))

    def forward(self, capsules: Capsules | Float[Tensor, "*b i r d"]) -> Capsules:
        routed = self._route(capsules)
        return Capsules.scored(routed.poses, routed.scores)

    def steps(self, capsules: Capsules | Float[Tensor, "*b i r d"]) -> Iterator[MatrixEMStep]:
        """Yield every routing iteration, with the assignments of children to parents; for figures."""
        return matrix_em_routing_steps(**self._arguments(*self._inputs(capsules)))

    @torch.no_grad()
    def calibrate(self, capsules: Capsules | Float[Tensor, "*b i r d"]) -> Capsules:
        """Scale the transforms for poses of size 1 and set beta_use for scores around 0; return the outputs.

        Batch normalisation takes the statistics of the inputs first, and normalises by them.
        """
        if self.norm is None:
            return self._scale(capsules)
        with kept_if_refused(self):
            check_varied(type(self).__name__, self.norm.fit(*self._checked(capsules)))
            self.norm.eval()  # processes may differ in the number of passes, and must not wait for each other
            return self._scale(capsules)

    def backend_here(self, compiling: bool = False, n_images: int = 1) -> str:
        """Return the backend that routing uses for so many images on the device of the weights."""
        poses = self.weight.new_empty(1, self.n_in, self.rows, self.weight.shape[-2]).expand(n_images, -1, -1, -1)
        return matrix_em_routing_backend(**self._arguments(*self._checked(poses)), compiling=compiling)

    def _scale(self, capsules: Capsules | Tensor) -> Capsules:
        """Calibrate to the inputs as they are normalised now."""
        size = self._route(capsules).poses.float().square().mean().sqrt()
        if not torch.isfinite(size) or size == 0:
            raise ValueError(
                f"{type(self).__name__}.calibrate: the inputs are all zero or not finite; give a batch of real inputs"
            )
        self.weight.div_(size)
        self.beta_use.copy_(-self._route(capsules).variances.log().mean() / 2 - self.gain)
        return scale_until_alive(self, capsules, lambda factor: self.beta_use.sub_(factor - 1))

    def _warmth(self) -> float:
        """Compute the inverse temperature of the last iteration."""
        return self.inverse_temperature * (1 - RISE**self.n_iters)

    def _route(self, capsules: Capsules | Tensor) -> MatrixEMRouted:
        return matrix_em_routing(**self._arguments(*self._inputs(capsules)), recompute=self.recompute)

    def _inputs(self, capsules: Capsules | Tensor) -> tuple[Float[Tensor, "*b i"], Float[Tensor, "*b i r d"]]:
        """Return scores and poses as they are routed: normalised, if the layer does so."""
        scores, poses = self._checked(capsules)
        return (scores, poses) if self.norm is None else self.norm(scores, poses)

    def _checked(self, capsules: Capsules | Tensor) -> tuple[Float[Tensor, "*b i"], Float[Tensor, "*b i r d"]]:
        """Return scores and checked matrix poses; plain poses are certain."""
        poses = matrices(type(self).__name__, capsules, self.n_in, self.rows, self.weight.shape[-2])
        check_pose_dtype(type(self).__name__, poses, self.weight.dtype)
        return scores_of(capsules, poses), poses

    def _arguments(self, scores: Float[Tensor, "*b i"], poses: Float[Tensor, "*b i r d"]) -> dict:
        """Return the arguments of the op."""
        return self._field() | {
            "scores": scores,
            "poses": poses,
            "beta_use": self.beta_use,
            "beta_activate": self.beta_activate / self._warmth(),
            "n_iters": self.n_iters,
            "inverse_temperature": self.inverse_temperature,
            "density_power": self.density_power,
        }


class MatrixCapsules(_MatrixLayer):
    """Every input votes for every output. [*b i r d] -> [*b j r e], with the logits of the activities as scores.

    With a `grid` the inputs are (type, row, column): a type's transforms are shared by its places, whose coordinates
    are added to the votes. With `n_types` alone they are (type, place), and nothing is added.
    `inverse_temperature`: the paper's 0.01 for all layers, or None: as the sizes want it.
    `density_power` below the paper's 1 makes assignments softer; None: as stacks want it, or 1 if `init` is "paper",
    with transforms near the identity. `recompute` takes less memory in eager training, and more time.
    `batch_norm` normalises poses and scores of the inputs per type, which is not in the paper.

    Example:

        layer = MatrixCapsules(n_in=32, n_out=10)
        list(layer(torch.randn(2, 32, 4, 4)).poses.shape)  # [2, 10, 4, 4]
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        rows: int = 4,
        d_in: int = 4,
        d_out: int = 4,
        n_iters: int = 3,
        *,
        grid: tuple[int, int] | None = None,
        n_types: int | None = None,
        inverse_temperature: float | None = None,
        density_power: float | None = None,
        recompute: bool = False,
        init: str = "alive",
        batch_norm: bool = False,
    ) -> None:
        check_sizes("MatrixCapsules", n_in=n_in, n_out=n_out, d_in=d_in, d_out=d_out, rows=rows, n_iters=n_iters)
        if grid is not None:
            check_grid("MatrixCapsules", grid)
        places = 1 if grid is None else prod(grid)
        if n_in % places:
            raise ValueError(
                f"MatrixCapsules: {n_in} inputs do not fill a grid of {grid[0]}x{grid[1]}; "
                f"give n_in as types · {places}, or no grid"
            )
        if grid is not None and rows < 2:
            raise ValueError(
                f"MatrixCapsules: coordinates of a grid go to two rows of a pose, got rows={rows}; "
                "give two or more, or no grid"
            )
        if grid is not None and n_types not in (None, n_in // places):
            raise ValueError(
                f"MatrixCapsules: {n_in} inputs on a grid of {grid[0]}x{grid[1]} have {n_in // places} types, got "
                f"n_types={n_types}; give one of them"
            )
        n_weights = checked_types("MatrixCapsules", n_in, n_in // places if n_types is None else n_types)
        shape = (n_weights, n_out, d_in, d_out)
        super().__init__(n_in, rows, n_iters, shape, n_in, n_out, inverse_temperature, density_power, init)
        self.recompute = recompute
        self.n_out = n_out
        self.norm = CapsuleNorm(n_weights, rows * d_in) if batch_norm else None
        coordinates = None if grid is None else grid_coordinates(*grid)
        self.register_buffer("coordinates", coordinates, persistent=False)

    def _field(self) -> dict:
        return {"weight": self.weight, "coordinates": self.coordinates}

    def extra_repr(self) -> str:
        _, _, d_in, d_out = self.weight.shape
        return f"{self.n_in}x{self.rows}x{d_in} -> {self.n_out}x{self.rows}x{d_out}, n_iters={self.n_iters}"


class ConvMatrixCapsules(_MatrixLayer):
    """Each output sees a local grid of inputs: n_in_types · grid -> n_out_types · `out_grid`, (type, row, column).

    Each offset has its own transform per pair of types, shared by all places. A child is divided among all parents, of
    every type and place, that see it. `batch_norm` normalises the inputs as in `MatrixCapsules`.

    Example:

        layer = ConvMatrixCapsules(grid=(5, 5), n_in_types=2, n_out_types=3, kernel=3)
        list(layer(torch.randn(2, 2 * 25, 4, 4)).poses.shape)  # [2, 27, 4, 4]
    """

    def __init__(
        self,
        grid: tuple[int, int],
        n_in_types: int,
        n_out_types: int,
        rows: int = 4,
        d_in: int = 4,
        d_out: int = 4,
        kernel: int = 3,
        stride: int = 1,
        padding: int = 0,
        n_iters: int = 3,
        *,
        inverse_temperature: float | None = None,
        density_power: float | None = None,
        recompute: bool = False,
        init: str = "alive",
        batch_norm: bool = False,
    ) -> None:
        check_grid("ConvMatrixCapsules", grid)
        sizes = {"n_in_types": n_in_types, "n_out_types": n_out_types, "d_in": d_in, "d_out": d_out, "rows": rows}
        check_sizes("ConvMatrixCapsules", **sizes, n_iters=n_iters)
        with torch.device("cpu"):  # counting needs numbers, which a layer on the meta device has not
            tables = local_grid(*grid, kernel, stride, padding)
            pairs = int((tables.seen < tables.places).sum())  # places of parent and child; padding is no child
        n_seen, n_reached = n_in_types * pairs / prod(tables.shape), n_out_types * pairs / len(tables.reach)
        # four axes, types and offsets in one: PyTorch cannot bring a tensor of five to channels last
        shape = (n_in_types * kernel * kernel, n_out_types, d_in, d_out)
        super().__init__(
            n_in_types * tables.places,
            rows,
            n_iters,
            shape,
            n_seen,
            n_reached,
            inverse_temperature,
            density_power,
            init,
        )
        self.recompute = recompute
        self.n_in_types, self.out_grid, self.places = n_in_types, tables.shape, tables.places
        self.n_out = n_out_types * prod(self.out_grid)
        self.norm = CapsuleNorm(n_in_types, rows * d_in) if batch_norm else None
        for name in ("seen", "reach", "slot", "users"):
            self.register_buffer(name, getattr(tables, name).to(self.weight.device), persistent=False)

    def _field(self) -> dict:
        tables = LocalGrid(self.seen, self.reach, self.slot, self.out_grid, self.places, self.users)
        return {"weight": self.weight.unflatten(0, (self.n_in_types, -1)), "grid": tables}

    def extra_repr(self) -> str:
        _, _, d_in, d_out = self.weight.shape
        sizes = f"{self.n_in}x{self.rows}x{d_in} -> {self.n_out}x{self.rows}x{d_out}"
        return f"{sizes}, out_grid={self.out_grid}, n_iters={self.n_iters}"


def _settle(
    rows: int, d_in: int, d_out: int, density_power: float, n_iters: int, n_seen: int | float
) -> tuple[float, float]:
    """Return the length of a parent's mean, and the deviation of its votes, relative to evenly assigned children.

    Transforms being normal, and so votes: an E-step multiplies their density by another normal one around the mean. It
    narrows all rows of a vote at once, which share a transform, but pulls each to the mean by its own deviation.
    """
    mean, variance, uneven = 1.0, 1.0, 1.0
    for _ in range(n_iters - 1):
        pull = density_power / variance
        tilt = pull * _alike(rows, d_in)
        variance = 1 / (1 + tilt)
        uneven = ((1 + tilt) ** 2 / (1 + 2 * tilt)) ** (d_in * d_out / 2)  # mean square of a child's relative weight
        mean = (((1 + pull) * variance) ** 2 + uneven / (1 + 2 * tilt) - variance**2) ** 0.5
    return mean, (variance * max(1 - uneven / n_seen, 0.1)) ** 0.5


def _alike(rows: int, d_in: int) -> float:
    """Return by how much the variance of a vote's squared length exceeds that of independent rows."""
    return rows * (rows + d_in + 1) / (rows * d_in + 2)
