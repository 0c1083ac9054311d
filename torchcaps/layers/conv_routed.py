"""Convolutional capsules: each parent receives votes from a local grid of children."""

from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.layers.calibration import scale_votes
from torchcaps.layers.capsules import Capsules, vectors
from torchcaps.layers.initialisation import Lengths, alive_bias, alive_lengths, alive_std, is_aligned
from torchcaps.layers.inputs import check_dtype
from torchcaps.layers.sizes import check_grid, check_sizes
from torchcaps.ops import LocalGrid, local_grid, local_routing
from torchcaps.ops.couplings import coupling_rule


class ConvRoutedCapsules(nn.Module):
    """Convolutional capsule layer: n_in_types · grid capsules -> n_out_types · `out_grid`, ordered (type, row, column).

    Each offset in a parent's local grid has its own transform per pair of types, shared by all places. A child's
    couplings sum to 1 over all parents (type and place) that it reaches, which are fewer at a border.

    Example:

        layer = ConvRoutedCapsules(grid=(6, 6), n_in_types=4, n_out_types=8, d_in=8, d_out=16)
        layer.out_grid, list(layer(torch.randn(2, 4 * 36, 8)).poses.shape)  # ((4, 4), [2, 128, 16])
    """

    def __init__(
        self,
        grid: tuple[int, int],
        n_in_types: int,
        n_out_types: int,
        d_in: int,
        d_out: int,
        kernel: int = 3,
        stride: int = 1,
        padding: int = 0,
        n_iters: int = 3,
        *,
        couplings: str = "softmax",
    ) -> None:
        super().__init__()
        check_grid("ConvRoutedCapsules", grid)
        sizes = {"n_in_types": n_in_types, "n_out_types": n_out_types, "d_in": d_in, "d_out": d_out}
        check_sizes("ConvRoutedCapsules", **sizes, n_iters=n_iters)
        if couplings == "random":
            raise ValueError(
                "ConvRoutedCapsules has no prior logits for random couplings; use softmax, leaky, max-min or uniform"
            )
        coupling_rule(couplings)
        self.n_in, self.d_in, self.n_iters, self.couplings = n_in_types * grid[0] * grid[1], d_in, n_iters, couplings
        with torch.device("cpu"):  # counting needs numbers, which a layer on the meta device has not
            tables = local_grid(*grid, kernel, stride, padding)
        self.out_grid, self.places = tables.shape, tables.places
        self.n_out = n_out_types * self.out_grid[0] * self.out_grid[1]
        self.n_in_types = n_in_types
        # four axes, types and offsets in one: PyTorch cannot bring a tensor of five to channels last
        self.weight = nn.Parameter(torch.empty(n_in_types * kernel * kernel, n_out_types, d_in, d_out))
        for name in ("seen", "reach", "slot", "users"):
            self.register_buffer(name, getattr(tables, name).to(self.weight.device), persistent=False)
        # parents that a child reaches, and children that a parent sees, on average over the grid with its borders
        n_pairs = prod(_pairs(size, kernel, stride, padding) for size in grid)
        # at least one place: with a stride beyond the kernel the other children reach none, and send no votes
        self.n_reached = n_out_types * max(n_pairs / self.places, 1)
        self.n_seen = n_in_types * n_pairs / prod(self.out_grid)
        nn.init.normal_(self.weight, std=alive_std(self.n_seen, self.n_reached, d_out, n_iters, couplings))
        self.bias = nn.Parameter(alive_bias(n_out_types, d_out, self._lengths().bias))

    def forward(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Capsules:
        poses = self._checked(capsules)
        return Capsules.of(self._route(poses, self.bias, self.n_iters))

    @torch.no_grad()
    def calibrate(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Capsules:
        """Scale the transforms so that these inputs give a median activity of 0.2 to 0.7; return the outputs."""
        poses = self._checked(capsules)
        n_iters = self.n_iters if is_aligned(self.n_reached, self.n_iters, self.couplings) else 1
        none = torch.zeros_like(self.bias)
        return scale_votes(self, poses, lambda seen: self._route(seen, none, n_iters), self._lengths().sum)

    @property
    def transforms(self) -> Float[Tensor, "n k m d e"]:
        """Transforms by input type, offset and output type."""
        return self.weight.unflatten(0, (self.n_in_types, -1))

    def _checked(self, capsules: Capsules | Tensor) -> Tensor:
        poses = vectors("ConvRoutedCapsules", capsules, self.n_in, self.d_in)
        check_dtype("ConvRoutedCapsules", "poses", poses, self.weight.dtype)
        return poses

    def _lengths(self) -> Lengths:
        return alive_lengths(self.n_seen, self.n_reached, self.weight.shape[-1], self.n_iters, self.couplings)

    def _route(
        self, poses: Float[Tensor, "*b i d"], bias: Float[Tensor, "n e"], n_iters: int
    ) -> Float[Tensor, "*b j e"]:
        tables = LocalGrid(self.seen, self.reach, self.slot, self.out_grid, self.places, self.users)
        return local_routing(poses, self.transforms, bias, tables, n_iters, couplings=self.couplings).poses

    def extra_repr(self) -> str:
        sizes = f"{self.n_in}x{self.d_in} -> {self.n_out}x{self.weight.shape[-1]}"
        return f"{sizes}, out_grid={self.out_grid}, n_iters={self.n_iters}"


def _pairs(size: int, kernel: int, stride: int, padding: int) -> int:
    """Count the pairs of a parent and a child that it sees along one axis; padding is no child."""
    parents = (size + 2 * padding - kernel) // stride + 1
    return sum(0 <= p * stride + k - padding < size for p in range(parents) for k in range(kernel))
