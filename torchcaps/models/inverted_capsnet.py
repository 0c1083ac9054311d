"""InvertedCapsNet: a small residual stem, capsules on two grids, two dense layers, all by inverted attention routing.

Tsai, Srivastava, Goh, Salakhutdinov 2020, "Capsules with Inverted Dot-Product Attention Routing". Poses are
matrices of 4x4. A capsule on a grid is shared among the types of one place, anew for each place whose field it is in.
"""

from itertools import pairwise

import torch
from einops import rearrange
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import relu

from torchcaps.layers import Capsules
from torchcaps.layers.sizes import check_each, check_sizes
from torchcaps.models.checks import check_images, checked_classes, checked_image
from torchcaps.ops import inverted_routing

KERNEL, STRIDE = 3, 2  # for capsule layers on a grid

Poses = Float[Tensor, "b p n d"]  # places of a grid, types at each
Above = Float[Tensor, "b q j d"]  # the same of the next layer


class InvertedCapsNet(nn.Module):
    """Images [b c h w] -> one capsule per class, with the class logit as score.

    `n_iters` is for all layers at once: the first pass goes from layer to layer, and each further iteration updates all
    layers at the same time, from the poses of the iteration before. `n_types` capsules at each place of the grids, and
    in the dense layer before the classes. `rows` of a pose: a transform multiplies each; 1 for vectors.
    `n_blocks` residual blocks at each of the stem's two sizes.

    Example:

        model = InvertedCapsNet((3, 32, 32), n_classes=10, channels=(16, 32), n_types=4)
        list(model(torch.rand(2, 3, 32, 32)).score.shape)  # [2, 10]
    """

    def __init__(
        self,
        image: tuple[int, int, int] = (3, 32, 32),
        n_classes: int = 10,
        *,
        channels: tuple[int, int] = (64, 128),
        n_blocks: int = 1,
        n_types: int = 32,
        d_pose: int = 16,
        rows: int = 4,
        n_conv: int = 2,
        n_iters: int = 2,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_each(name, 2, channels=channels)
        check_sizes(name, n_iters=n_iters, n_blocks=n_blocks, n_types=n_types, d_pose=d_pose, rows=rows)
        if n_conv < 0:
            raise ValueError(f"InvertedCapsNet: n_conv must be 0 or more convolutional capsule layers, got {n_conv}")
        if d_pose % rows:
            raise ValueError(f"InvertedCapsNet: poses of {d_pose} dimensions do not form matrices of {rows} rows")
        self.image, self.n_classes = checked_image(name, image), checked_classes(name, n_classes)
        self.n_iters, self.n_types = n_iters, n_types
        self.stem = nn.Sequential(
            nn.Conv2d(self.image[0], channels[0], KERNEL, padding=1, bias=False),
            nn.BatchNorm2d(channels[0]),
            nn.ReLU(),
            *(_Block(channels[0], channels[0], 1) for _ in range(n_blocks)),
            _Block(*channels, STRIDE),
            *(_Block(channels[1], channels[1], 1) for _ in range(n_blocks - 1)),
        )
        self.primary = nn.Conv2d(channels[1], n_types * d_pose, KERNEL, padding=1)
        self.norm = nn.LayerNorm(d_pose)
        grid = tuple((size + 1) // STRIDE for size in self.image[1:])
        fields = []
        for _ in range(n_conv):
            fields.append(_fields(grid))
            grid = tuple((size - KERNEL) // STRIDE + 1 for size in grid)
        pose = d_pose, rows
        dense = _Level(grid[0] * grid[1] * n_types, n_types, *pose), _Level(n_types, n_classes, *pose)
        local = (_Level(KERNEL**2 * n_types, n_types, *pose, field) for field in fields)
        self.levels = nn.ModuleList([*local, *dense])
        self.score = nn.Linear(d_pose, 1)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        poses = [self.primary_poses(images)]
        for level in self.levels:
            poses.append(level(poses[-1], None))
        for _ in range(1, self.n_iters):
            pairs = zip(self.levels, pairwise(poses), strict=True)
            poses = [poses[0], *(level(below, above) for level, (below, above) in pairs)]
        classes = poses[-1].squeeze(1)
        return Capsules.scored(classes, self.score(classes).squeeze(-1).to(classes.dtype))

    def primary_poses(self, images: Float[Tensor, "b c h w"]) -> Poses:
        """Compute normalised poses at the places of the first grid."""
        check_images("InvertedCapsNet", images, self.image, self.score.weight.dtype)
        numbers = rearrange(self.primary(self.stem(images)), "b (n d) h w -> b (h w) n d", n=self.n_types)
        return self.norm(numbers.to(self.score.weight.dtype))  # back from autocast


class _Level(nn.Module):
    """One iteration of routing from the places of a field to those above, or from all places to a single one."""

    def __init__(
        self, n_in: int, n_out: int, d_pose: int, rows: int, field: Int64[Tensor, "p k"] | None = None
    ) -> None:
        super().__init__()
        self.rows, d_row = rows, d_pose // rows
        # votes of length 1 for normalised poses: their products with poses have deviation 1
        self.weight = nn.Parameter(torch.randn(n_in, n_out, d_row, d_row) * (d_pose * d_row) ** -0.5)
        self.scale, self.bias = nn.Parameter(torch.ones(d_pose)), nn.Parameter(torch.zeros(d_pose))
        self.register_buffer("field", field, persistent=False)

    def forward(self, below: Poses, above: Above | None) -> Above:
        seen = below.unsqueeze(1) if self.field is None else below[:, self.field]  # [b p k n d]
        how = {"rows": self.rows, "scale": self.scale, "bias": self.bias, "start": above}
        return inverted_routing(seen.flatten(2, 3), self.weight, 1, **how)


class _Block(nn.Module):
    """Residual block of two convolutions."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(c_in, c_out, KERNEL, stride, padding=1, bias=False),
            nn.BatchNorm2d(c_out),
            nn.ReLU(),
            nn.Conv2d(c_out, c_out, KERNEL, padding=1, bias=False),
            nn.BatchNorm2d(c_out),
        )
        same = stride == 1 and c_in == c_out
        self.around = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out))
        )

    def forward(self, features: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        return relu(self.body(features) + self.around(features))


def _fields(grid: tuple[int, int]) -> Int64[Tensor, "p k"]:
    """Return the places of a grid, counted row by row, that each place of the next grid sees."""
    if min(grid) < KERNEL:
        raise ValueError(
            f"InvertedCapsNet: a grid of {grid[0]}x{grid[1]} capsules is too small for a field of {KERNEL}x{KERNEL}; "
            "give larger images, or a smaller n_conv"
        )
    places = torch.arange(grid[0] * grid[1]).view(grid)
    return rearrange(places.unfold(0, KERNEL, STRIDE).unfold(1, KERNEL, STRIDE), "h w y x -> (h w) (y x)").clone()
