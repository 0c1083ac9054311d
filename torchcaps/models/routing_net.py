"""RoutingNet: one convolutional stem, part and class capsules of any routing, to compare routings under one training.

No paper's network. The stem is that of EMCapsNet (Heinsen 2019); the transforms of parts are shared over places.
PooledNet is the same stem without capsules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import silu

from torchcaps.layers import Capsules
from torchcaps.layers.norm import kept_if_refused
from torchcaps.layers.routings import CapsuleLayer, Ladder, Routing, routing_named
from torchcaps.layers.sizes import check_sizes
from torchcaps.models.checks import check_images, checked_classes, checked_image
from torchcaps.models.em_images import STRIDES, checked_grid, grid_after, stem, with_coordinates

LEAST_PLACES = 4  # rows and columns that the default strides leave


class RoutingNet(nn.Module):
    """Images [b c h w] -> one capsule per class, through part capsules, both of the given routing.

    `routing`: a name of `ROUTINGS`, or options such as `EM(rows=2)`. Primary capsules of `n_types` types with a pose
    and a score at every place, `n_parts` part capsules; all poses have `d_pose` dimensions.
    `strides` None: as many of EMCapsNet's convolutions as leave 4x4 places.

    Example:

        model = RoutingNet((1, 28, 28), n_classes=10, routing="self-attention", channels=16)
        list(model(torch.rand(2, 1, 28, 28)).poses.shape)  # [2, 10, 16]
    """

    needs_calibration = True
    decoder = None

    def __init__(
        self,
        image: tuple[int, int, int] = (2, 96, 96),
        n_classes: int = 5,
        *,
        routing: str | Routing = "dynamic",
        channels: int = 64,
        strides: tuple[int, ...] | None = None,
        n_types: int = 16,
        n_parts: int = 32,
        d_pose: int = 16,
    ) -> None:
        super().__init__()
        self.image, self.n_classes = checked_image("RoutingNet", image), checked_classes("RoutingNet", n_classes)
        check_sizes("RoutingNet", channels=channels, n_types=n_types, n_parts=n_parts, d_pose=d_pose)
        self.routing = routing_named(routing)
        if isinstance(self.routing, Ladder):
            raise ValueError("RoutingNet: ladders share no transforms and do not stack; give another routing")
        self.strides = strides_for(self.image) if strides is None else tuple(strides)
        self.grid = checked_grid("RoutingNet", self.strides, *self.image[1:])
        self.n_types, self.d_pose = n_types, d_pose
        self.maps = stem(self.image[0] + 2, channels, self.strides)
        self.scores = nn.Sequential(nn.BatchNorm2d(channels), nn.Conv2d(channels, n_types, 1))
        self.poses = nn.Sequential(nn.BatchNorm2d(channels), nn.Conv2d(channels, n_types * d_pose, 1))
        n_in = n_types * self.grid[0] * self.grid[1]
        parts = CapsuleLayer(n_in, n_parts, d_pose, d_pose, self.routing, n_types=n_types)
        classes = CapsuleLayer(n_parts, n_classes, d_pose, d_pose, self.routing)
        self.levels = nn.ModuleList([parts, classes])

    def forward(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        parts, classes = self.levels
        return classes(parts(self.primary_capsules(images)))

    def primary_capsules(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        """Compute the primary capsules, ordered (type, row, column) over `grid`."""
        dtype = self.scores[1].weight.dtype
        check_images("RoutingNet", images, self.image, dtype)
        maps = self.maps(with_coordinates(images))
        poses = rearrange(self.poses(maps), "b (n d) h w -> b (n h w) d", d=self.d_pose)
        # back from autocast: scores are sums over many capsules
        return Capsules.scored(poses.to(dtype), rearrange(self.scores(maps), "b n h w -> b (n h w)").to(dtype))

    @torch.no_grad()
    def calibrate(self, images: Float[Tensor, "b c h w"]) -> None:
        """Scale both layers to a first batch; the training loop does it before the first step.

        Batch normalisation uses the statistics of this batch, as it will in training.
        """
        with kept_if_refused(self):
            capsules = self.train().primary_capsules(images)
            for layer in self.levels:
                capsules = layer.calibrate(capsules)

    def steps(self, images: Float[Tensor, "b c h w"]) -> Iterator[Any]:
        """Yield every routing iteration between part and class capsules, where the routing has iterations."""
        parts, classes = self.levels
        return classes.steps(parts(self.primary_capsules(images)))

    def margin_weight(self) -> float:
        """Return the factor on the summed margin loss."""
        return 1.0


class PooledNet(nn.Module):
    """RoutingNet without capsules: images [b c h w] -> class logits [b k], from the mean of features over places.

    Example:

        model = PooledNet((1, 28, 28), n_classes=10, channels=16)
        list(model(torch.rand(2, 1, 28, 28)).shape)  # [2, 10]
    """

    def __init__(
        self,
        image: tuple[int, int, int] = (2, 96, 96),
        n_classes: int = 5,
        *,
        channels: int = 64,
        strides: tuple[int, ...] | None = None,
        n_features: int = 256,
    ) -> None:
        super().__init__()
        self.image, self.n_classes = checked_image("PooledNet", image), checked_classes("PooledNet", n_classes)
        check_sizes("PooledNet", channels=channels, n_features=n_features)
        self.strides = strides_for(self.image) if strides is None else tuple(strides)
        self.grid = checked_grid("PooledNet", self.strides, *self.image[1:])
        self.maps = stem(self.image[0] + 2, channels, self.strides)
        self.features = nn.Sequential(nn.BatchNorm2d(channels), nn.Conv2d(channels, n_features, 1))
        self.classes = nn.Linear(n_features, n_classes)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        check_images("PooledNet", images, self.image, self.classes.weight.dtype)
        return self.classes(silu(self.features(self.maps(with_coordinates(images)))).mean((-2, -1)))


def strides_for(image: tuple[int, int, int]) -> tuple[int, ...]:
    """Return the first strides of EMCapsNet's stem, as many as leave 4x4 places, and one at least."""
    many = [STRIDES[:n] for n in range(2, len(STRIDES) + 1)]
    return max((strides for strides in many if min(grid_after(strides, *image[1:])) >= LEAST_PLACES), default=(1,))
