"""SparseCaps: an unsupervised CapsNet whose latent capsules specialise through a sparsity mask.

Rawlinson, Ahmed, Kowadlo 2018, "Sparse Unsupervised Capsules Generalize Better", section 2. Convolution, primary
capsules and decoder are those of CapsNet; its class capsules become latent capsules without labels.
`SparseCaps` has two presets: `sparse`, and `dense`, trained without the mask (section 2.1). `SupervisedCaps` is the
paper's baseline (SUPCAPS), whose capsules specialise through labels.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import one_hot

from torchcaps.layers import Capsules, RankMask
from torchcaps.layers.routed import Supported
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.checks import check_images, checked_classes, checked_image
from torchcaps.ops.sparse import FREQUENCIES, GROUPS, SHARPNESS

PRESETS = ("sparse", "dense")


class Latent(NamedTuple):
    """Latent capsules of an image, with their support and mask."""

    poses: Float[Tensor, "b j e"]  # before the mask
    support: Float[Tensor, "b j"]  # routing support before boosting
    mask: Float[Tensor, "b j"]

    def masked(self) -> Capsules:
        """Return the masked capsules, the input of later layers (Eq. 4)."""
        return Capsules.of(self.poses * self.mask.unsqueeze(-1).to(self.poses.dtype))


class Features(NamedTuple):
    """Capsules flattened to feature vectors, for a classifier."""

    masked: Float[Tensor, "b f"]
    pre_mask: Float[Tensor, "b f"]


class SparseCaps(nn.Module):
    """Images [b c h w] -> masked latent capsules, from which the decoder reconstructs the image.

    `sharpness` to `boost_gain` are arguments of `RankMask`; `capsnet_preset`, its `preset`, `sharing` and `network` are
    arguments of `CapsNet`. `support`: the groups of `routing_support`, `places` as in the paper's text or `runs` as in
    the authors' code.

    Example:

        model = SparseCaps((1, 28, 28), channels=32, n_types=4)
        list(model(torch.rand(2, 1, 28, 28)).poses.shape)  # [2, 16, 16]
    """

    def __init__(
        self,
        image: tuple[int, int, int] = (1, 28, 28),
        n_classes: int = 10,  # unused: all models take it
        *,
        preset: str = "sparse",
        capsnet_preset: str = "official",
        sharing: str = "none",
        n_latent: int = 16,
        d_latent: int = 16,
        sharpness: float = SHARPNESS,
        frequencies: tuple[float, float] = FREQUENCIES,
        boost_step: float = 0.1,
        boost_every: int = 50,
        decay: float = 0.99,
        boost_gain: float = 0.0,
        support: str = "places",
        **network,
    ) -> None:
        super().__init__()
        if preset not in PRESETS:
            raise ValueError(f"SparseCaps: preset must be one of {', '.join(PRESETS)}; got {preset!r}")
        if support not in GROUPS:
            raise ValueError(f"SparseCaps: support must be one of {', '.join(GROUPS)}; got {support!r}")
        image, self.n_classes = checked_image("SparseCaps", image), checked_classes("SparseCaps", n_classes)
        capsnet = {"preset": capsnet_preset, "sharing": sharing}
        self.net = CapsNet(image, n_latent, d_class=d_latent, reconstruction=True, **capsnet, **network)
        rule = {
            "sharpness": sharpness,
            "frequencies": frequencies,
            "boost_step": boost_step,
            "boost_every": boost_every,
            "decay": decay,
        }
        self.mask = RankMask(n_latent, **rule, gain=boost_gain) if preset == "sparse" else None
        self.support = support

    def forward(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        """Compute the masked latent capsules; in training, also count the winners."""
        if self.mask is None:
            return self.net.classes(self._primary(images))
        capsules, support = self._with_support(images)
        return Latent(capsules.poses, support, self.mask(support)).masked()

    def latent(self, images: Float[Tensor, "b c h w"]) -> Latent:
        """Compute the latent capsules with support and mask, without counting winners."""
        capsules, support = self._with_support(images)
        return Latent(
            capsules.poses, support, torch.ones_like(support) if self.mask is None else self.mask.mask(support)
        )

    def supports(self, images: Float[Tensor, "b c h w"]) -> dict[str, Float[Tensor, "b j"]]:
        """Compute the support before boosting with every grouping of `routing_support`."""
        primary = self._primary(images)
        return {groups: self._routed(primary, groups).support for groups in GROUPS}

    def features(self, images: Float[Tensor, "b c h w"]) -> Features:
        """Compute features for a classifier: with the mask (Eq. 4), and without (the authors' code)."""
        return features_of(self.latent(images))

    def reconstruct(self, poses: Float[Tensor, "b j e"]) -> Float[Tensor, "b c h w"]:
        """Reconstruct images from all latent capsules together."""
        return self.net.decoder(poses, torch.ones_like(poses[..., 0]))

    def _with_support(self, images: Float[Tensor, "b c h w"]) -> Supported:
        return self._routed(self._primary(images), self.support)

    def _primary(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        check_images("SparseCaps", images, self.net.image, self.net.conv.weight.dtype)
        return self.net.primary_capsules(images)

    def _routed(self, primary: Capsules, groups: str) -> Supported:
        return self.net.classes.with_support(primary, self.net.primary.n_types, groups)


class SupervisedCaps(CapsNet):
    """CapsNet with the latent interface of `SparseCaps`; the mask keeps the longest class capsule.

    Example:

        model = SupervisedCaps((1, 28, 28), n_classes=10, channels=32, n_types=4)
        list(model(torch.rand(2, 1, 28, 28)).poses.shape)  # [2, 10, 16]
    """

    support = "places"
    swaps_routing = False  # support is measured on couplings of routing by agreement

    def latent(self, images: Float[Tensor, "b c h w"]) -> Latent:
        """Compute the class capsules with support, and a mask that keeps the longest."""
        capsules, support = self.classes.with_support(self.primary_capsules(images), self.primary.n_types)
        return Latent(capsules.poses, support, one_hot(capsules.activity.argmax(-1), self.n_classes).to(support.dtype))

    def supports(self, images: Float[Tensor, "b c h w"]) -> dict[str, Float[Tensor, "b j"]]:
        """Compute the support with every grouping of `routing_support`."""
        primary = self.primary_capsules(images)
        return {groups: self.classes.with_support(primary, self.primary.n_types, groups).support for groups in GROUPS}

    def features(self, images: Float[Tensor, "b c h w"]) -> Features:
        """Compute features for a classifier, with and without the mask."""
        return features_of(self.latent(images))


def features_of(latent: Latent) -> Features:
    """Flatten latent capsules to feature vectors, with and without the mask."""
    return Features(latent.masked().poses.flatten(-2), latent.poses.flatten(-2))
