"""EM routing of images: convolutions, capsules with a pose matrix and a score at every place, two layers of EM routing.

Heinsen 2019, "An Algorithm for Routing Capsules in All Domains", section 4 and figure 3: 271,688 parameters for
smallNORB. Paper's names: the 3x3 convolutions `maps`, the 1x1 convolutions `scores` and `poses`, the routing layers
`parts` and `classes`.
"""

from collections.abc import Iterator

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.layers import Capsules, EMCapsules
from torchcaps.layers.conv_stem import ConvStem
from torchcaps.models.checks import check_images, checked_classes, checked_image
from torchcaps.ops import EMStep

KERNEL = 3
STRIDES = (1, 2, 1, 2, 1, 2)
PRESETS = ("official", "torch-1.1")


class EMCapsNet(nn.Module):
    """Images [b c h w] of any size -> one capsule per class, with the class logit as score.

    `image`: number of channels, and a size that is checked at construction; `forward` accepts any size that leaves at
    least one place. `coordinates`: adds two channels with the pixel position, which the first routing layer ignores.
    `preset` of the initialisation: "official" is the author's last code; "torch-1.1" is how his released weights
    started, with PyTorch's default for all convolutions and scales of batch normalisation from U(0, 1).

    Example:

        model = EMCapsNet((2, 32, 32), n_classes=5, channels=16, n_types=8, n_parts=8)
        list(model(torch.rand(2, 2, 32, 32)).score.shape)  # [2, 5]
    """

    def __init__(
        self,
        image: tuple[int, int, int] = (2, 96, 96),
        n_classes: int = 5,
        *,
        preset: str = "official",
        channels: int = 64,
        strides: tuple[int, ...] = STRIDES,
        n_types: int = 64,
        n_parts: int = 64,
        d_pose: int = 4,
        n_iters: int = 3,
        coordinates: bool = True,
        cost: str = "separate",
        density: str = "gaussian",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if preset not in PRESETS:
            raise ValueError(f"EMCapsNet: preset must be one of {', '.join(PRESETS)}; got {preset!r}")
        self.image, self.n_classes = checked_image("EMCapsNet", image), checked_classes("EMCapsNet", n_classes)
        self.d_pose, self.coordinates = d_pose, coordinates
        self.strides = tuple(strides)
        self.grid = self.places(*self.image[1:])
        self.maps = stem(self.image[0] + 2 * coordinates, channels, self.strides)
        self.scores = nn.Sequential(nn.BatchNorm2d(channels), nn.Conv2d(channels, n_types, 1))
        self.poses = nn.Sequential(nn.BatchNorm2d(channels), nn.Conv2d(channels, n_types * d_pose * d_pose, 1))
        rule = {"cost": cost, "density": density, "backend": backend, "init": "paper"}
        self.parts = EMCapsules(None, n_parts, d_pose, d_pose, d_pose, n_iters, sharing="inputs", **rule)
        self.classes = EMCapsules(n_parts, n_classes, d_pose, d_pose, d_pose, n_iters, **rule)
        if preset == "torch-1.1":
            self._start_like_torch_1_1()

    def _start_like_torch_1_1(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                module.reset_parameters()
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        return self.classes(self.parts(self.primary_capsules(images)))

    def primary_capsules(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        """Compute the primary capsules, ordered (type, row, column) over `places(h, w)`."""
        check_images("EMCapsNet", images, self.image, self.parts.weight.dtype, any_size=True)
        self.places(*images.shape[2:])
        maps = self.maps(with_coordinates(images) if self.coordinates else images)
        dtype = self.parts.weight.dtype  # back from autocast: scores are sums over thousands of capsules
        poses = rearrange(self.poses(maps), "b (n r d) h w -> b (n h w) r d", r=self.d_pose, d=self.d_pose)
        return Capsules.scored(poses.to(dtype), rearrange(self.scores(maps), "b n h w -> b (n h w)").to(dtype))

    def steps(self, images: Float[Tensor, "b c h w"]) -> Iterator[EMStep]:
        """Yield every routing iteration between part and class capsules."""
        return self.classes.steps(self.parts(self.primary_capsules(images)))

    def places(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of capsules for an image size."""
        return checked_grid("EMCapsNet", self.strides, height, width)


def stem(c_in: int, channels: int, strides: tuple[int, ...]) -> ConvStem:
    """Build 3x3 convolutions with these strides, each after a batch normalisation."""
    sizes = [c_in, *[channels] * len(strides)]
    return ConvStem(*(_stage(c, channels, stride) for c, stride in zip(sizes[:-1], strides, strict=True)))


def grid_after(strides: tuple[int, ...], height: int, width: int) -> tuple[int, int]:
    """Return the rows and columns of places that the convolutions leave; 0 where the image is too small."""
    grid = []
    for size in (height, width):
        for stride in strides:
            size = (size - KERNEL) // stride + 1 if size >= KERNEL else 0
        grid.append(size)
    return grid[0], grid[1]


def checked_grid(model: str, strides: tuple[int, ...], height: int, width: int) -> tuple[int, int]:
    """Return the rows and columns of places, or refuse an image that leaves none."""
    grid = grid_after(strides, height, width)
    if min(grid) < 1:
        least = 1
        for stride in reversed(strides):
            least = (least - 1) * stride + KERNEL
        raise ValueError(
            f"{model}: {len(strides)} convolutions of {KERNEL}x{KERNEL} with strides {', '.join(map(str, strides))} "
            f"want images of at least {least}x{least}, got {height}x{width}; give larger images, or fewer strides"
        )
    return grid


def _stage(c_in: int, c_out: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(c_in, c_out, KERNEL, stride)
    nn.init.kaiming_normal_(convolution.weight)  # the author's 1x1 convolutions use PyTorch's default
    nn.init.zeros_(convolution.bias)
    return nn.Sequential(nn.BatchNorm2d(c_in), convolution, nn.SiLU())


def with_coordinates(images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h w"]:
    """Append two channels: column and row, each from -1 to 1."""
    height, width = images.shape[2:]
    rows, columns = (torch.linspace(-1, 1, size, device=images.device, dtype=images.dtype) for size in (height, width))
    across, down = columns.expand(height, width), rows.unsqueeze(-1).expand(height, width)
    return torch.cat([images, torch.stack([across, down]).expand(images.shape[0], 2, height, width)], dim=1)
