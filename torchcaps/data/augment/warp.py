"""Small random affine maps: images a little turned, slanted and stretched."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Real
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from torchcaps.data.augment.base import Augmentation


@dataclass(frozen=True)
class Warp(Augmentation):
    """Map each image about its centre: rotation, slant and the logarithms of width and height, uniform in ±.

    Pixels from outside are black; with `edge` they repeat the image's edge. Bytes stay bytes, floats are not rounded.

    Example:

        change, rng = Warp(turn=0.3), torch.Generator().manual_seed(0)
        list(change.apply(torch.zeros(4, 1, 28, 28, dtype=torch.uint8), change.draw(4, rng)).shape)  # [4, 1, 28, 28]
    """

    turn: float = 0.15  # radians
    slant: float = 0.2
    stretch: float = 0.15
    edge: bool = False

    def draw(self, n: int, rng: torch.Generator) -> Float[Tensor, "n 4"]:
        most = torch.tensor([self.turn, self.slant, self.stretch, self.stretch])
        return (2 * torch.rand(n, 4, generator=rng) - 1) * most

    def apply(self, images: Real[Tensor, "b c h w"], drawn: Float[Tensor, "b 4"]) -> Real[Tensor, "b c h w"]:
        turn, slant, *stretch = drawn.unbind(1)
        wide, tall = (log.exp() for log in stretch)
        cos, sin, nothing = turn.cos(), turn.sin(), torch.zeros_like(turn)
        # where each pixel of the new image comes from: [x, y] of the old one, in -1..1
        rows = [cos * wide, (slant - sin) * tall, nothing], [sin * wide, (cos + slant * sin) * tall, nothing]
        maps = torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)  # [b 2 3]
        grid = affine_grid(maps, list(images.shape), align_corners=False)
        outside = "border" if self.edge else "zeros"
        warped = grid_sample(images.float(), grid, padding_mode=outside, align_corners=False)
        return warped if images.is_floating_point() else warped.round().to(torch.uint8)
