"""Convolutional networks without capsules: those that Sabour 2017 compares CapsNet with (section 5 and 6), and one beside Heinsen 2019.

Convolutions keep the size of the picture (padding "same"), as the printed numbers of parameters say; the paper does not.
"""

from itertools import pairwise
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.ops import convolve


class Preset(NamedTuple):
    """Channels and kernels of the convolutions, whether 2x2 max-pooling follows each, fully connected layers, batch normalisation."""

    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    pool: tuple[bool, ...]
    hidden: tuple[int, ...]
    norm: bool = False  # before each convolution


PRESETS = {
    "mnist": Preset((256, 256, 128), (5, 5, 5), (False, False, False), (328, 192)),
    "multimnist": Preset((512, 256), (9, 5), (True, True), (1024,)),
    # the paper says no more than max-pooling, dropout and a similar size; 847 makes it that of the CapsNet for 40x40
    "affnist": Preset((256, 256, 128), (5, 5, 5), (True, True, False), (847, 192)),
    # 88 makes it as large as the EMCapsNet for 96x96, whose batch normalisation it has too
    "smallnorb": Preset((32, 64, 64, 96, 96), (3, 3, 3, 3, 3), (True, True, True, True, True), (88,), norm=True),
    # names the classes of generated pictures (torchcaps/generation.py)
    "judge": Preset((32, 64), (5, 5), (True, True), (128,)),
    "small": Preset((8, 8), (5, 5), (True, True), (32,)),  # for tests
}


class PictureConv2d(nn.Conv2d):
    """The first convolution, which keeps the size of the picture. Of few channels, by `convolve`, as CapsNet's: see there why."""

    def __init__(self, c_in: int, c_out: int, kernel: int) -> None:
        if kernel % 2 == 0:
            raise ValueError(f"PictureConv2d needs an odd kernel, whose zeros are alike on all sides; got {kernel}")
        super().__init__(c_in, c_out, kernel, padding=kernel // 2)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k h w"]:
        return convolve(images, self.weight, self.bias, padding=self.padding[0])


class Baseline(nn.Module):
    """Images [b c h w] -> one logit per class. Dropout before the last layer."""

    def __init__(
        self, image: tuple[int, int, int] = (1, 28, 28), n_classes: int = 10, *, preset: str = "mnist", dropout: float = 0.5
    ) -> None:
        super().__init__()
        if preset not in PRESETS:
            raise ValueError(f"Baseline: preset must be one of {', '.join(PRESETS)}; got {preset!r}")
        plan = PRESETS[preset]
        self.image, self.n_classes, self.preset = tuple(image), n_classes, preset
        c, height, width = self.image
        layers: list[nn.Module] = []
        for (c_in, c_out), kernel, pool in zip(pairwise((c, *plan.channels)), plan.kernels, plan.pool, strict=True):
            layers += [nn.BatchNorm2d(c_in)] if plan.norm else []
            # later layers, and a first one behind a norm, need the gradient of what they see, which patches make slow
            layers += [nn.Conv2d(c_in, c_out, kernel, padding="same") if layers else PictureConv2d(c_in, c_out, kernel), nn.ReLU()]
            if pool:
                layers.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
        if min(height, width) < 1:
            raise ValueError(
                f"Baseline: an image of {self.image[1]}x{self.image[2]} is too small for the pooling of {preset!r}; give larger images"
            )
        self.maps = nn.Sequential(*layers, nn.Flatten())
        sizes = plan.channels[-1] * height * width, *plan.hidden
        self.hidden = nn.Sequential(*(layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())))
        self.dropout = nn.Dropout(dropout)
        self.classes = nn.Linear(plan.hidden[-1], n_classes)

    def features(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b f"]:
        """What the last layer sees."""
        if images.ndim != 4 or tuple(images.shape[1:]) != self.image:
            raise ValueError(f"Baseline expects images [b, {', '.join(map(str, self.image))}], got {list(images.shape)}")
        return self.hidden(self.maps(images))

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        return self.classes(self.dropout(self.features(images)))
