"""StackedCaps: several layers of unsupervised latent capsules, routed by agreement or by EM.

Rawlinson, Ahmed, Kowadlo 2018, section 4, leaves deeper networks and EM routing to future work. Convolution, primary
capsules and decoder are like those of `SparseCaps`; the next layer receives masked capsules.
A latent layer has a single place, where each capsule is a type, so the support of the next layer is its largest
coupling.
"""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from torchcaps.layers import Capsules, Decoder, EMCapsules, PrimaryCapsules, RankMask, RoutedCapsules
from torchcaps.models.checks import check_images, checked_classes, checked_image
from torchcaps.models.sparsecaps import PRESETS, Features, Latent, features_of
from torchcaps.ops import convolve_relu, routing_support
from torchcaps.ops.sparse import FREQUENCIES, SHARPNESS

ROUTINGS = ("dynamic", "em")
ROWS = 4  # rows of a pose matrix in EM routing


class Level(NamedTuple):
    """State of one latent layer, for figures and tests."""

    latent: Latent
    activity: Float[Tensor, "b j"]  # before the mask: the length, or the sigmoid of the score


class StackedCaps(nn.Module):
    """Images [b c h w] -> the last of `n_layers` latent layers, from which the decoder reconstructs the image.

    `routing` em: poses are matrices of 4 rows (`d_primary` and `d_latent` elements in all), and capsules have a score,
    whose sigmoid the mask multiplies. `sharpness` to `decay` are arguments of `RankMask`, one mask per layer.

    Example:

        model = StackedCaps((1, 28, 28), n_layers=2, channels=32, n_types=4)
        list(model(torch.rand(2, 1, 28, 28)).poses.shape)  # [2, 16, 16]
    """

    def __init__(
        self,
        image: tuple[int, int, int] = (1, 28, 28),
        n_classes: int = 10,  # unused: all models take it
        *,
        preset: str = "sparse",
        routing: str = "dynamic",
        n_layers: int = 3,
        n_latent: int = 16,
        d_latent: int = 16,
        n_iters: int = 3,
        channels: int = 256,
        kernel: int = 9,
        n_types: int = 32,
        d_primary: int = 8,
        primary_kernel: int = 9,
        primary_stride: int = 2,
        hidden: tuple[int, ...] = (512, 1024),
        sharpness: float = SHARPNESS,
        frequencies: tuple[float, float] = FREQUENCIES,
        boost_step: float = 0.1,
        boost_every: int = 50,
        decay: float = 0.99,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        for name, value, known in (("preset", preset, PRESETS), ("routing", routing, ROUTINGS)):
            if value not in known:
                raise ValueError(f"StackedCaps: {name} must be one of {', '.join(known)}; got {value!r}")
        if n_layers < 1:
            raise ValueError(f"StackedCaps needs at least one latent layer, got n_layers={n_layers}")
        if routing == "em" and (d_primary % ROWS or d_latent % ROWS):
            raise ValueError(
                f"StackedCaps: EM routing has poses of {ROWS} rows; d_primary={d_primary} or d_latent={d_latent} is "
                "no multiple"
            )
        if routing == "em" and preset == "sparse":
            if backend not in ("auto", "reference"):
                raise ValueError(
                    f"StackedCaps: sparse EM routing must know what was used, which no {backend} backend tells; "
                    "leave it at auto"
                )
            backend = "reference"  # `steps` runs it, so logs should name it
        self.image, self.n_classes = checked_image("StackedCaps", image), checked_classes("StackedCaps", n_classes)
        self.routing, self.n_types, self.d_primary = routing, n_types, d_primary
        self.conv = nn.Conv2d(self.image[0], channels, kernel)
        if routing == "em":
            self.primary = nn.Conv2d(channels, n_types * (d_primary + 1), primary_kernel, primary_stride)
        else:
            self.primary = PrimaryCapsules(channels, n_types, d_primary, primary_kernel, primary_stride)
        grid = tuple((size - kernel + 1 - primary_kernel) // primary_stride + 1 for size in self.image[1:])
        if min(grid) < 1:
            raise ValueError(
                f"StackedCaps: an image of {image[1]}x{image[2]} is too small for kernels of {kernel} and "
                f"{primary_kernel}"
            )
        sizes = [(n_types * grid[0] * grid[1], d_primary), *[(n_latent, d_latent)] * (n_layers - 1)]
        if routing == "em":
            parts = [
                EMCapsules(n, n_latent, ROWS, d // ROWS, d_latent // ROWS, n_iters, backend=backend, init="paper")
                for n, d in sizes
            ]
        else:
            parts = [RoutedCapsules(n, n_latent, d, d_latent, n_iters, backend=backend, init="paper") for n, d in sizes]
        self.levels = nn.ModuleList(parts)
        rule = {
            "sharpness": sharpness,
            "frequencies": frequencies,
            "boost_step": boost_step,
            "boost_every": boost_every,
            "decay": decay,
        }
        self.masks = nn.ModuleList([RankMask(n_latent, **rule) for _ in parts] if preset == "sparse" else [])
        self.decoder = Decoder(n_latent, d_latent, self.image, hidden)

    @property
    def mask(self) -> RankMask | None:
        """Mask of the last layer; None for the dense preset."""
        return self.masks[-1] if self.masks else None

    def forward(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        """Compute the masked capsules of the last layer; in training, count the winners of every layer."""
        capsules = self._primary(images)
        for number, layer in enumerate(self.levels):
            if not self.masks:
                capsules = layer(capsules)
                continue
            capsules, support = self._with_support(number, capsules)
            capsules = self._masked(capsules, self.masks[number](support))
        return self._plain(capsules)

    def levels_of(self, images: Float[Tensor, "b c h w"]) -> list[Level]:
        """Compute the state of every latent layer, without counting winners."""
        capsules, found = self._primary(images), []
        for number in range(len(self.levels)):
            capsules, support = self._with_support(number, capsules)
            mask = self.masks[number].mask(support) if self.masks else torch.ones_like(support)
            whole = self._plain(capsules)
            there = capsules.activity if self.routing == "em" else whole.activity
            found.append(Level(Latent(whole.poses, support, mask), there))
            capsules = self._masked(capsules, mask)
        return found

    def latent(self, images: Float[Tensor, "b c h w"]) -> Latent:
        """Compute the latent capsules of the last layer."""
        return self.levels_of(images)[-1].latent

    def features(self, images: Float[Tensor, "b c h w"]) -> Features:
        """Compute features of the last layer for a classifier, with and without the mask."""
        return features_of(self.latent(images))

    def reconstruct(self, poses: Float[Tensor, "b j e"]) -> Float[Tensor, "b c h w"]:
        """Reconstruct images from all capsules of the last layer together."""
        return self.decoder(poses, torch.ones_like(poses[..., 0]))

    def _primary(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        check_images("StackedCaps", images, self.image, self.conv.weight.dtype)
        maps = convolve_relu(images, self.conv.weight, self.conv.bias)
        if self.routing == "dynamic":
            return self.primary(maps)
        # back from autocast: scores are sums over hundreds of capsules
        cut = rearrange(self.primary(maps), "b (n d) h w -> b (n h w) d", n=self.n_types).to(
            self.levels[0].weight.dtype
        )
        return Capsules.scored(rearrange(cut[..., 1:], "b i (r d) -> b i r d", r=ROWS), cut[..., 0])

    def _with_support(self, number: int, capsules: Capsules) -> tuple[Capsules, Float[Tensor, "b j"]]:
        layer = self.levels[number]
        n_types = self.n_types if number == 0 else capsules.activity.shape[-1]
        if self.routing == "dynamic":
            return layer.with_support(capsules, n_types)
        *_, last = layer.steps(capsules)
        return Capsules.scored(last.poses, last.scores), routing_support(last.used.detach(), n_types)

    def _masked(self, capsules: Capsules, mask: Float[Tensor, "b j"]) -> Capsules:
        if self.routing == "em":
            return Capsules.scored(capsules.poses, lessened(capsules.score, mask))
        return Capsules.of(capsules.poses * mask.unsqueeze(-1).to(capsules.poses.dtype))

    def _plain(self, capsules: Capsules) -> Capsules:
        """Flatten pose matrices to vectors, scaled by the sigmoid of their scores."""
        if self.routing == "dynamic":
            return capsules
        return Capsules.of(capsules.poses.flatten(-2) * capsules.activity.unsqueeze(-1))


def lessened(scores: Float[Tensor, "*b j"], mask: Float[Tensor, "*b j"]) -> Float[Tensor, "*b j"]:
    """Multiply the sigmoid of the scores by `mask`: f(new) = f(old) · mask. 0 gives -inf; 1 changes no bit."""
    between = (mask > 0) & (mask < 1)
    share = torch.where(between, mask, 0.5)  # elsewhere any value with a finite gradient
    part = logsigmoid(scores) + share.log() - torch.log1p(-scores.sigmoid() * share)
    return torch.where(between, part, scores).masked_fill(mask == 0, -torch.inf)
