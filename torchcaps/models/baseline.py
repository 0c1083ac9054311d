"""Convolutional baselines without capsules: those of Sabour 2017 (sections 5 and 6), and one for Heinsen 2019.

Convolutions keep the image size (padding "same"). The paper does not say so, but its parameter counts imply it.
"""

from itertools import pairwise
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.models.checks import check_images, checked_classes, checked_image
from torchcaps.ops import convolve


class Preset(NamedTuple):
    """Architecture of a baseline: convolutions, each with or without 2x2 max-pooling, then fully connected layers."""

    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    pool: tuple[bool, ...]
    hidden: tuple[int, ...]
    norm: bool = False  # batch normalisation before each convolution


PRESETS = {
    "mnist": Preset((256, 256, 128), (5, 5, 5), (False, False, False), (328, 192)),
    "multimnist": Preset((512, 256), (9, 5), (True, True), (1024,)),
    # the paper only says max-pooling, dropout and a similar size; 847 matches the parameters of the CapsNet for 40x40
    "affnist": Preset((256, 256, 128), (5, 5, 5), (True, True, False), (847, 192)),
    # 88 matches the parameters of the EMCapsNet for 96x96, which has batch normalisation too
    "smallnorb": Preset((32, 64, 64, 96, 96), (3, 3, 3, 3, 3), (True, True, True, True, True), (88,), norm=True),
    # for 28x28 and 32x32: about as many parameters as RoutingNet
    "photos": Preset((64, 64, 128, 128), (3, 3, 3, 3), (False, True, True, True), (64,), norm=True),
    # classifies generated images (torchcaps/analysis/sample_quality.py)
    "judge": Preset((32, 64), (5, 5), (True, True), (128,)),
    "small": Preset((8, 8), (5, 5), (True, True), (32,)),  # for tests
}


class PictureConv2d(nn.Conv2d):
    """First convolution, with padding "same". It uses `convolve`, like CapsNet's, which is faster for few channels."""

    def __init__(self, c_in: int, c_out: int, kernel: int) -> None:
        if kernel % 2 == 0:
            raise ValueError(f"PictureConv2d needs an odd kernel, whose zeros are alike on all sides; got {kernel}")
        super().__init__(c_in, c_out, kernel, padding=kernel // 2)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k h w"]:
        return convolve(images, self.weight, self.bias, padding=self.padding[0])


class Baseline(nn.Module):
    """Images [b c h w] -> class logits [b k], with dropout before the last layer.

    Example:

        model = Baseline((1, 28, 28), n_classes=10)
        list(model(torch.rand(2, 1, 28, 28)).shape)  # [2, 10]
    """

    def __init__(
        self,
        image: tuple[int, int, int] = (1, 28, 28),
        n_classes: int = 10,
        *,
        preset: str = "mnist",
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        if preset not in PRESETS:
            raise ValueError(f"Baseline: preset must be one of {', '.join(PRESETS)}; got {preset!r}")
        plan = PRESETS[preset]
        self.image, self.n_classes = checked_image("Baseline", image), checked_classes("Baseline", n_classes)
        self.preset = preset
        c, height, width = self.image
        layers: list[nn.Module] = []
        for (c_in, c_out), kernel, pool in zip(pairwise((c, *plan.channels)), plan.kernels, plan.pool, strict=True):
            layers += [nn.BatchNorm2d(c_in)] if plan.norm else []
            # later layers, and a first one after a norm, need the gradient of their input, which `convolve` makes slow
            layers += [
                nn.Conv2d(c_in, c_out, kernel, padding="same") if layers else PictureConv2d(c_in, c_out, kernel),
                nn.ReLU(),
            ]
            if pool:
                layers.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
        if min(height, width) < 1:
            raise ValueError(
                f"Baseline: an image of {self.image[1]}x{self.image[2]} is too small for the pooling of {preset!r}; "
                "give larger images"
            )
        self.maps = nn.Sequential(*layers, nn.Flatten())
        sizes = plan.channels[-1] * height * width, *plan.hidden
        self.hidden = nn.Sequential(*(layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())))
        self.dropout = nn.Dropout(dropout)
        self.classes = nn.Linear(plan.hidden[-1], n_classes)

    def features(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b f"]:
        """Compute the input of the last layer."""
        check_images("Baseline", images, self.image, self.classes.weight.dtype)
        return self.hidden(self.maps(images))

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        return self.classes(self.dropout(self.features(images)))
