"""Efficient-CapsNet: a narrow convolutional stem, sixteen primary capsules, class capsules by self-attention routing.

Mazzia, Salvetti, Chiaberge 2021, "Efficient-CapsNet: Capsule Network with Self-Attention Routing", section 3: 161,824
parameters without decoder for MNIST, 151,664 for smallNORB. The preset "smallnorb-official" has what the authors ran:
leaky ReLUs of slope 0.3.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import one_hot

from torchcaps.layers import Capsules, Decoder, SelfAttentionCapsules
from torchcaps.layers.sizes import check_each, check_sizes
from torchcaps.models.checks import check_images, checked_classes, checked_image
from torchcaps.ops import RoutingStep, squash_exponential


class Stem(NamedTuple):
    """First convolution, normalisation and slope, in which the networks differ."""

    kernel: int
    stride: int
    norm: str  # "batch" or "instance"
    slope: float = 0.0  # of the ReLUs below zero, in all stages


STEMS = {
    "mnist": Stem(5, 1, "batch"),
    "smallnorb": Stem(7, 2, "instance"),
    "smallnorb-official": Stem(7, 2, "instance", slope=0.3),
}


class EfficientCapsNet(nn.Module):
    """Images [b c h w] -> one capsule per class, whose length is the confidence that the class is present.

    `channels` of the four convolutions, the last of stride 2. A filter as large as the map turns each of the last
    channels into one number; `d_primary` of them form a primary capsule.

    Example:

        model = EfficientCapsNet((1, 28, 28), n_classes=10)
        list(model(torch.rand(2, 1, 28, 28)).poses.shape)  # [2, 10, 16]
    """

    def __init__(
        self,
        image: tuple[int, int, int] = (1, 28, 28),
        n_classes: int = 10,
        *,
        preset: str = "mnist",
        channels: tuple[int, ...] = (32, 64, 64, 128),
        d_primary: int = 8,
        d_class: int = 16,
        reconstruction: bool = True,
        hidden: tuple[int, ...] = (512, 1024),
    ) -> None:
        super().__init__()
        if preset not in STEMS:
            raise ValueError(f"EfficientCapsNet: preset must be one of {', '.join(STEMS)}; got {preset!r}")
        name = type(self).__name__
        check_each(name, 4, channels=channels)
        check_sizes(name, d_primary=d_primary, d_class=d_class)
        if channels[-1] % d_primary:
            raise ValueError(
                f"EfficientCapsNet: the last channels are cut into poses of {d_primary} dimensions, "
                f"got {channels[-1]}; give a multiple"
            )
        self.image, self.n_classes = checked_image(name, image), checked_classes(name, n_classes)
        self.preset, self.d_primary = preset, d_primary
        first = STEMS[preset]
        kernels, strides = (first.kernel, 3, 3, 3), (first.stride, 1, 1, 2)
        self.grid = _places(self.image, kernels, strides)
        sizes = pairwise((self.image[0], *channels))
        self.stem = nn.Sequential(
            *(_stage(*size, *how, first) for size, *how in zip(sizes, kernels, strides, strict=True))
        )
        # one filter for each channel, as large as the map: primary capsules of length 1 or so before the squash
        size = (d_primary * self.grid[0] * self.grid[1]) ** -0.5
        self.filters = nn.Parameter(torch.randn(channels[-1], *self.grid) * size)
        self.filters_bias = nn.Parameter(torch.zeros(channels[-1]))
        self.classes = SelfAttentionCapsules(channels[-1] // d_primary, n_classes, d_primary, d_class, init="paper")
        self.decoder = Decoder(n_classes, d_class, self.image, hidden) if reconstruction else None

    def forward(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        return self.classes(self.primary_capsules(images))

    def primary_capsules(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        """Compute the primary capsules; each sees the whole image."""
        check_images("EfficientCapsNet", images, self.image, self.filters.dtype)
        # multiply-and-sum, not a grouped convolution: compiled, it is one reduction in float32
        numbers = (self.stem(images) * self.filters).sum((-2, -1)) + self.filters_bias
        return Capsules.of(squash_exponential(numbers.unflatten(-1, (-1, self.d_primary))))

    def steps(self, images: Float[Tensor, "b c h w"]) -> Iterator[RoutingStep]:
        """Yield the only routing step between primary and class capsules."""
        return self.classes.steps(self.primary_capsules(images))

    def reconstruct(self, poses: Float[Tensor, "b j e"], labels: Int64[Tensor, "b"]) -> Float[Tensor, "b c h w"]:
        """Reconstruct images from the capsule of the class `labels`."""
        if self.decoder is None:
            raise ValueError("this EfficientCapsNet has no decoder; build and train it with reconstruction=True")
        return self.decoder(poses, one_hot(labels, self.n_classes).to(poses.dtype))

    def margin_weight(self) -> float:
        """Return the factor on the summed margin loss."""
        return 1.0


def _stage(c_in: int, c_out: int, kernel: int, stride: int, stem: Stem) -> nn.Sequential:
    """Build a convolution, a ReLU and then the normalisation, in the paper's order."""
    activation = nn.LeakyReLU(stem.slope) if stem.slope else nn.ReLU()
    convolution = nn.Conv2d(c_in, c_out, kernel, stride)
    nn.init.kaiming_normal_(convolution.weight)
    nn.init.zeros_(convolution.bias)
    if stem.norm == "instance":
        return nn.Sequential(convolution, activation, nn.InstanceNorm2d(c_out, affine=True))
    # a slow average of the statistics: batches of 16 vary much
    return nn.Sequential(convolution, activation, nn.BatchNorm2d(c_out, momentum=0.01))


def _places(image: tuple[int, int, int], kernels: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """Return the rows and columns that the convolutions leave of an image."""
    grid = []
    for size in image[1:]:
        for kernel, stride in zip(kernels, strides, strict=True):
            size = (size - kernel) // stride + 1 if size >= kernel else 0
        grid.append(size)
    if min(grid) < 1:
        raise ValueError(
            f"EfficientCapsNet: an image of {image[1]}x{image[2]} is too small for kernels of "
            f"{', '.join(map(str, kernels))}; give larger images"
        )
    return grid[0], grid[1]
