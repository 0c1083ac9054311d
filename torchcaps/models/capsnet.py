"""CapsNet: convolution, primary capsules, class capsules routed by agreement, decoder.

Sabour, Frosst, Hinton 2017, "Dynamic Routing Between Capsules", section 4 and figures 1 and 2.
Paper's names: Conv1 `conv`, PrimaryCapsules `primary`, DigitCaps `classes`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import one_hot

from torchcaps.layers import Capsules, Decoder, PrimaryCapsules, RoutedCapsules
from torchcaps.layers.calibration import calibrate
from torchcaps.layers.routings import CapsuleLayer, Routing, routing_named
from torchcaps.models.checks import check_images, check_swap, checked_classes, checked_image
from torchcaps.ops import RoutingStep, convolve_relu


@dataclass(frozen=True)
class Preset:
    """Options in which the authors' code and the paper's text differ."""

    share_primary: bool  # divide the primary convolution's output by the number of types
    tensorflow_init: bool  # truncated normal and biases of 0.1, else PyTorch's defaults
    mean_margin: bool  # margin loss: half the mean over the classes, else their sum


PRESETS = {
    "official": Preset(share_primary=True, tensorflow_init=True, mean_margin=True),
    "paper": Preset(share_primary=False, tensorflow_init=False, mean_margin=False),
    # the authors' code with one of the three options changed, for ablations
    "official-whole-primary": Preset(share_primary=False, tensorflow_init=True, mean_margin=True),
    "official-torch-init": Preset(share_primary=True, tensorflow_init=False, mean_margin=True),
    "official-sum-margin": Preset(share_primary=True, tensorflow_init=True, mean_margin=False),
}


# defaults of the arguments that only routing by agreement has
OF_AGREEMENT = {"n_iters": 3, "couplings": "softmax", "sharing": "none", "backend": "auto"}


class CapsNet(nn.Module):
    """Images [b c h w] -> one capsule per class, whose length is the confidence that the class is present.

    `routing` of the class capsules: a name of `ROUTINGS`, or options such as `EM(rows=2)`. The network is then no
    paper's: the class capsules start alive, and the training loop calibrates the network on its first batch.

    Example:

        model = CapsNet((1, 28, 28), n_classes=10, channels=64, n_types=8)
        digits = model(torch.rand(4, 1, 28, 28))
        list(model.reconstruct(digits.poses, digits.activity.argmax(-1)).shape)  # [4, 1, 28, 28]
    """

    swaps_routing: ClassVar[bool] = True

    def __init__(
        self,
        image: tuple[int, int, int] = (1, 28, 28),
        n_classes: int = 10,
        *,
        preset: str = "official",
        routing: str | Routing | None = None,
        n_iters: int = 3,
        reconstruction: bool = True,
        channels: int = 256,
        kernel: int = 9,
        n_types: int = 32,
        d_primary: int = 8,
        primary_kernel: int = 9,
        primary_stride: int = 2,
        same: bool = False,
        d_class: int = 16,
        hidden: tuple[int, ...] = (512, 1024),
        couplings: str = "softmax",
        sharing: str = "none",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if preset not in PRESETS:
            raise ValueError(f"CapsNet: preset must be one of {', '.join(PRESETS)}; got {preset!r}")
        if same and kernel % 2 == 0:
            raise ValueError(
                f"CapsNet: same=True needs an odd kernel, whose zeros are alike on all sides; got {kernel}"
            )
        name = type(self).__name__
        if routing is not None:
            if not self.swaps_routing:
                raise ValueError(f"{name} needs routing by agreement, got routing={routing!r}; leave it out")
            given = {"n_iters": n_iters, "couplings": couplings, "sharing": sharing, "backend": backend}
            check_swap(name, routing, given, OF_AGREEMENT)
        self.image, self.n_classes = checked_image(name, image), checked_classes(name, n_classes)
        self.preset = preset
        self.routing = None if routing is None else routing_named(routing)
        self.needs_calibration = routing is not None
        share = (n_types + (couplings == "leaky")) if PRESETS[preset].share_primary else 1
        padding = "same" if same else 0  # both convolutions: as many places as pixels, then half as many
        self.conv = nn.Conv2d(self.image[0], channels, kernel, padding=kernel // 2 if same else 0)
        self.primary = PrimaryCapsules(
            channels, n_types, d_primary, primary_kernel, primary_stride, padding, share=share
        )
        grid = tuple(self.primary.places(size if same else size - kernel + 1) for size in self.image[1:])
        if min(grid) < 1:
            raise ValueError(
                f"CapsNet: an image of {self.image[1]}x{self.image[2]} is too small for kernels of {kernel} and "
                f"{primary_kernel}; give smaller kernels"
            )
        self.grid = grid
        sizes = n_types * grid[0] * grid[1], n_classes, d_primary, d_class
        if self.routing is None:
            self.classes: RoutedCapsules | CapsuleLayer = RoutedCapsules(
                *sizes, n_iters, couplings=couplings, sharing=sharing, n_types=n_types, backend=backend, init="paper"
            )
        else:
            self.classes = CapsuleLayer(*sizes, self.routing)
        # no decoder without reconstruction loss: parameters that never get a gradient break distributed training
        self.decoder = Decoder(n_classes, d_class, self.image, hidden) if reconstruction else None
        if PRESETS[preset].tensorflow_init:
            self._init_like_the_authors(sharing)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        return self.classes(self.primary_capsules(images))

    def primary_capsules(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        """Compute the primary capsules, ordered (type, row, column) over `grid`."""
        check_images(type(self).__name__, images, self.image, self.conv.weight.dtype)
        return self.primary(convolve_relu(images, self.conv.weight, self.conv.bias, padding=self.conv.padding[0]))

    def calibrate(self, images: Float[Tensor, "b c h w"]) -> None:
        """Scale every layer to a first batch; the training loop does it where a routing was chosen."""
        calibrate(self, images)

    def steps(self, images: Float[Tensor, "b c h w"]) -> Iterator[RoutingStep | Any]:
        """Yield every routing iteration between primary and class capsules."""
        return self.classes.steps(self.primary_capsules(images))

    def reconstruct(self, poses: Float[Tensor, "b j e"], labels: Int64[Tensor, "b"]) -> Float[Tensor, "b c h w"]:
        """Reconstruct images from the capsule of the class `labels`."""
        if self.decoder is None:
            raise ValueError(
                "this CapsNet has no decoder: it was built with reconstruction=False, or its weights were released "
                "without; take one built and trained with reconstruction=True"
            )
        return self.decoder(poses, one_hot(labels, self.n_classes).to(poses.dtype))

    def margin_weight(self) -> float:
        """Return the factor on the summed margin loss; with it, reconstruction has the preset's relative weight."""
        return 0.5 / self.n_classes if PRESETS[self.preset].mean_margin else 1.0

    def _init_like_the_authors(self, sharing: str) -> None:
        for name, parameter in self.named_parameters():
            if name == "classes.bias" and sharing == "all":
                continue  # with a single transform, equal biases would make all classes the same
            if self.routing is not None and name.startswith("classes."):
                continue  # another routing has its own
            if name.endswith("bias"):
                nn.init.constant_(parameter, 0.1)
            else:
                std = 0.05 if name.startswith("conv.") else 0.1
                nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)
