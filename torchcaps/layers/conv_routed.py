"""Convolutional capsules: each parent receives votes from a local grid of children."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.layers.capsules import Capsules, check_capsules
from torchcaps.ops import LocalGrid, local_grid, local_routing
from torchcaps.ops.couplings import coupling_rule


class ConvRoutedCapsules(nn.Module):
    """Convolutional capsule layer: n_in_types · grid capsules -> n_out_types · `out_grid`, ordered (type, row, column).

    Each offset in a parent's local grid has its own transform per pair of types, shared by all places. A child's
    couplings sum to 1 over all parents (type and place) that it reaches, which are fewer at a border.
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
        if couplings == "random":
            raise ValueError(
                "ConvRoutedCapsules has no prior logits for random couplings; use softmax, leaky, max-min or uniform"
            )
        coupling_rule(couplings)
        self.n_in, self.d_in, self.n_iters, self.couplings = n_in_types * grid[0] * grid[1], d_in, n_iters, couplings
        tables = local_grid(*grid, kernel, stride, padding)
        for name in ("seen", "reach", "slot"):
            self.register_buffer(name, getattr(tables, name), persistent=False)
        self.out_grid, self.places = tables.shape, tables.places
        self.n_out = n_out_types * self.out_grid[0] * self.out_grid[1]
        self.weight = nn.Parameter(torch.empty(n_in_types, kernel * kernel, n_out_types, d_in, d_out))
        # a child divides its vote among n_out_types parents at up to (kernel / stride)² places
        spread = n_out_types * max(1.0, (kernel / stride) ** 2)
        nn.init.normal_(self.weight, std=(spread / (n_in_types * kernel * kernel * d_in)) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(n_out_types, d_out))

    def forward(self, capsules: Capsules | Float[Tensor, "*b i d"]) -> Capsules:
        poses = Capsules.of(capsules).poses
        check_capsules("ConvRoutedCapsules", poses, self.n_in, self.d_in)
        tables = LocalGrid(self.seen, self.reach, self.slot, self.out_grid, self.places)
        return Capsules.of(
            local_routing(poses, self.weight, self.bias, tables, self.n_iters, couplings=self.couplings).poses
        )

    def extra_repr(self) -> str:
        sizes = f"{self.n_in}x{self.d_in} -> {self.n_out}x{self.weight.shape[-1]}"
        return f"{sizes}, out_grid={self.out_grid}, n_iters={self.n_iters}"
