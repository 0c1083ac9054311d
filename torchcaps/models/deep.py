"""DeepCapsNet: any number of capsule layers of any routing on a small convolutional stem.

No paper's network: its layers start alive and are calibrated on the first batch, so that all of them learn.
"""

from itertools import pairwise

from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import one_hot, relu

from torchcaps.layers import Capsules, ConvRoutedCapsules, Decoder, PrimaryCapsules
from torchcaps.layers.calibration import calibrate
from torchcaps.layers.routings import CapsuleLayer, Ladder, Routing, routing_named
from torchcaps.models.checks import check_images, checked_classes, checked_image


class DeepCapsNet(nn.Module):
    """Images [b c h w] -> one capsule per class, through `depth` routed layers.

    `routing`: a name of `ROUTINGS`, or options such as `EM(rows=2)`. `n_hidden` capsules of `d_hidden` dimensions in
    each layer between primary and class capsules. `n_conv` convolutional layers of stride 2 come before them, always
    with dynamic routing.
    `stride` of the first convolution: 2 or more for large images.

    Example:

        model = DeepCapsNet((3, 32, 32), n_classes=10, routing="em", depth=3)
        list(model(torch.rand(2, 3, 32, 32)).activity.shape)  # [2, 10]
    """

    needs_calibration = True

    def __init__(
        self,
        image: tuple[int, int, int] = (1, 28, 28),
        n_classes: int = 10,
        *,
        routing: str | Routing = "dynamic",
        depth: int = 2,
        n_hidden: int = 32,
        d_hidden: int = 8,
        n_conv: int = 0,
        channels: int = 64,
        kernel: int = 9,
        stride: int = 1,
        n_types: int = 16,
        d_primary: int = 8,
        primary_kernel: int = 9,
        primary_stride: int = 2,
        d_class: int = 16,
        reconstruction: bool = False,
        hidden: tuple[int, ...] = (512, 1024),
    ) -> None:
        super().__init__()
        if depth < 1:
            raise ValueError(f"DeepCapsNet needs at least one routed layer, got depth={depth}")
        self.image, self.n_classes = checked_image("DeepCapsNet", image), checked_classes("DeepCapsNet", n_classes)
        self.routing = routing_named(routing)
        if isinstance(self.routing, Ladder) and depth > 1:
            raise ValueError(
                f"DeepCapsNet: ladders do not learn on top of each other, got depth={depth}; give depth=1, or another "
                "routing"
            )
        self.conv = nn.Conv2d(self.image[0], channels, kernel, stride)
        self.primary = PrimaryCapsules(channels, n_types, d_primary, primary_kernel, primary_stride)
        self.grid = tuple(self.primary.places((size - kernel) // stride + 1) for size in self.image[1:])
        if min(self.grid) < 1:
            raise ValueError(
                f"DeepCapsNet: an image of {self.image[1]}x{self.image[2]} is too small for kernels of {kernel} and "
                f"{primary_kernel}; give smaller kernels"
            )
        grid, self.local = self.grid, nn.ModuleList()
        for _ in range(n_conv):
            layer = ConvRoutedCapsules(grid, n_types, n_types, d_primary, d_primary, min(3, *grid), min(2, *grid))
            self.local.append(layer)
            grid = layer.out_grid
        sizes = [
            (n_types * grid[0] * grid[1], d_primary),
            *[(n_hidden, d_hidden)] * (depth - 1),
            (n_classes, d_class),
        ]
        self.levels = nn.ModuleList(
            CapsuleLayer(n_in, n_out, d_in, d_out, self.routing) for (n_in, d_in), (n_out, d_out) in pairwise(sizes)
        )
        self.decoder = Decoder(n_classes, d_class, self.image, hidden) if reconstruction else None

    def forward(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        capsules = self.primary_capsules(images)
        for layer in (*self.local, *self.levels):
            capsules = layer(capsules)
        return capsules

    def primary_capsules(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        """Compute the primary capsules, ordered (type, row, column) over `grid`."""
        check_images("DeepCapsNet", images, self.image, self.conv.weight.dtype)
        return self.primary(relu(self.conv(images)))

    def calibrate(self, images: Float[Tensor, "b c h w"]) -> None:
        """Scale every layer to a first batch; the training loop does it before the first step."""
        calibrate(self, images)

    def reconstruct(self, poses: Float[Tensor, "b j e"], labels: Int64[Tensor, "b"]) -> Float[Tensor, "b c h w"]:
        """Reconstruct images from the capsule of the class `labels`."""
        if self.decoder is None:
            raise ValueError("this DeepCapsNet has no decoder; build and train it with reconstruction=True")
        return self.decoder(poses, one_hot(labels, self.n_classes).to(poses.dtype))

    def margin_weight(self) -> float:
        """Return the factor on the summed margin loss."""
        return 1.0
