"""Matrix capsules with EM routing: two convolutional capsule layers, then one capsule per class.

Hinton, Sabour and Frosst 2018, "Matrix capsules with EM routing", section 4 and figure 1. Paper's sizes: A `channels`;
B, C and D are `n_types`. A = B = C = D = 32 on smallNORB, cut to 32x32: 317,194 parameters (the paper: 310K);
A = 64, B = 8, C = D = 16: 68,754 (68K).
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import relu

from torchcaps.layers import Capsules
from torchcaps.layers.calibration import calibrate
from torchcaps.layers.matrix_em import ConvMatrixCapsules, MatrixCapsules
from torchcaps.layers.norm import check_varied, fit_statistics, kept_if_refused
from torchcaps.layers.sizes import check_each, check_sizes
from torchcaps.models.checks import check_images, checked_classes, checked_image

KERNEL, STRIDE = 5, 2  # for the convolution on the image
FIELD = 3  # kernel of both convolutional capsule layers; the first has a stride of 2


class MatrixCapsNet(nn.Module):
    """Images [b c h w] -> one capsule per class with a pose matrix, and the logit of its activity as score.

    `n_types` of the primary capsules and of the two convolutional capsule layers. `inverse_temperature` of the routing:
    0.01 for all layers, or None: as the sizes of each layer want it. `density_power` below the paper's 1 makes
    assignments softer and training steadier; None: as the sizes want it. `init` "paper" starts transforms near the
    identity, "alive" at random. `recompute` saves memory in eager training and takes time. `batch_norm`, which is not
    in the paper, normalises the maps of the first convolution and the inputs of every capsule layer.

    Example:

        model = MatrixCapsNet((2, 32, 32), n_classes=5, n_types=(8, 4, 4))
        list(model(torch.rand(2, 2, 32, 32)).poses.shape)  # [2, 5, 4, 4]
    """

    needs_calibration = True

    def __init__(
        self,
        image: tuple[int, int, int] = (2, 32, 32),
        n_classes: int = 5,
        *,
        channels: int = 32,
        n_types: tuple[int, int, int] = (32, 32, 32),
        rows: int = 4,
        n_iters: int = 3,
        inverse_temperature: float | None = None,
        density_power: float | None = 1.0,
        init: str = "paper",
        recompute: bool = False,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.image, self.n_classes = checked_image("MatrixCapsNet", image), checked_classes("MatrixCapsNet", n_classes)
        check_each("MatrixCapsNet", 3, n_types=n_types)
        check_sizes("MatrixCapsNet", channels=channels, rows=rows, n_iters=n_iters)
        self.rows, self.n_primary = rows, n_types[0]
        self.grid = tuple((size - KERNEL) // STRIDE + 1 for size in self.image[1:])
        least = KERNEL + STRIDE * (2 * FIELD)
        if min(self.image[1:]) < least:
            raise ValueError(
                f"MatrixCapsNet wants images of at least {least}x{least}, got {self.image[1]}x{self.image[2]}; "
                "give larger images"
            )
        # batch normalisation would subtract the biases of all three
        self.conv = nn.Conv2d(self.image[0], channels, KERNEL, STRIDE, bias=not batch_norm)
        self.norm = nn.BatchNorm2d(channels) if batch_norm else None
        self.poses = nn.Conv2d(channels, self.n_primary * rows * rows, 1, bias=not batch_norm)
        self.scores = nn.Conv2d(channels, self.n_primary, 1, bias=not batch_norm)
        rule = {"n_iters": n_iters, "inverse_temperature": inverse_temperature, "density_power": density_power}
        rule |= {"recompute": recompute, "init": init, "batch_norm": batch_norm}
        sizes = (rows, rows, rows)
        self.first = ConvMatrixCapsules(self.grid, n_types[0], n_types[1], *sizes, FIELD, 2, **rule)
        self.second = ConvMatrixCapsules(self.first.out_grid, n_types[1], n_types[2], *sizes, FIELD, **rule)
        self.classes = MatrixCapsules(self.second.n_out, self.n_classes, *sizes, grid=self.second.out_grid, **rule)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        return self.classes(self.second(self.first(self.primary_capsules(images))))

    def primary_capsules(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        """Compute the primary capsules, ordered (type, row, column) over `grid`."""
        maps = self._convolved(images)
        maps = relu(maps if self.norm is None else self.norm(maps))
        dtype = self.first.weight.dtype  # back from autocast
        poses = rearrange(self.poses(maps), "b (n r d) h w -> b (n h w) r d", r=self.rows, d=self.rows)
        return Capsules.scored(poses.to(dtype), rearrange(self.scores(maps), "b n h w -> b (n h w)").to(dtype))

    @torch.no_grad()
    def calibrate(self, images: Float[Tensor, "b c h w"]) -> None:
        """Scale every layer to a first batch; the training loop does it before the first step.

        Batch normalisation uses the statistics of this batch, as it will in training.
        """
        with kept_if_refused(self):
            if self.norm is not None:
                maps = rearrange(self._convolved(images), "b k p q -> (b p q) k")
                check_varied("MatrixCapsNet", fit_statistics(self.norm, maps, torch.ones_like(maps, dtype=torch.bool)))
            calibrate(self, images)

    def _convolved(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k p q"]:
        check_images("MatrixCapsNet", images, self.image, self.conv.weight.dtype)
        return self.conv(images)
