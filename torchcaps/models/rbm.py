"""Baselines for expert capsules: as many scalar units above the same autoencoder.

`neurons`: a restricted Boltzmann machine, the starting point of Hauser 2019. `linear`: the bottleneck of an
autoencoder, for backpropagation. Both take the autoencoder's standardised feature maps.
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.layers import Capsules, ConvAutoencoder
from torchcaps.models.checks import check_images, checked_classes, checked_image
from torchcaps.ops.rbm import Neurons, hidden_probability, visible_mean

FORMS = ("neurons", "linear")


class NeuronNet(nn.Module):
    """Images [b c h w] -> `width` units, as capsules of one dimension; `reconstruct` decodes them to images.

    Example:

        model = NeuronNet((1, 28, 28), width=320, channels=16)
        list(model(torch.rand(2, 1, 28, 28)).poses.shape)  # [2, 320, 1]
    """

    def __init__(
        self,
        image: tuple[int, int, int] = (1, 28, 28),
        n_classes: int = 10,  # unused: all models take it
        *,
        form: str = "neurons",
        width: int = 320,
        channels: int = 128,
        kernel: int = 9,
        dropped: float = 0.2,
    ) -> None:
        super().__init__()
        if form not in FORMS:
            raise ValueError(f"NeuronNet: form must be one of {', '.join(FORMS)}; got {form!r}")
        self.image, self.n_classes = checked_image("NeuronNet", image), checked_classes("NeuronNet", n_classes)
        self.form = form
        self.autoencoder = ConvAutoencoder(self.image, channels, kernel, dropped=dropped)
        self.map_shape = channels, *self.autoencoder.grid
        n = torch.Size(self.map_shape).numel()
        self.weight = nn.Parameter(0.01 * torch.randn(n, width))
        self.visible_bias, self.hidden_bias = nn.Parameter(torch.zeros(n)), nn.Parameter(torch.zeros(width))
        self.back = nn.Parameter(0.01 * torch.randn(width, n)) if form == "linear" else None
        self.register_buffer("mean", torch.zeros(n))
        self.register_buffer("spread", torch.ones(()))

    @torch.no_grad()
    def standardise(self, images: Float[Tensor, "b c h w"]) -> None:
        """Set mean and scale from a batch. One scale for all features, so that constant ones do not become noise."""
        maps = self.features(images)
        self.mean.copy_(maps.mean(0))
        self.spread.copy_((maps - self.mean).square().mean().sqrt().clamp(min=1e-6))

    def features(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b v"]:
        """Compute the autoencoder's feature maps, flattened."""
        check_images("NeuronNet", images, self.image, self.autoencoder.first.dtype)
        return self.autoencoder.encode(images).flatten(1)

    def visible(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b v"]:
        """Compute the visible units: the standardised features."""
        return (self.features(images) - self.mean) / self.spread

    def code(self, visible: Float[Tensor, "b v"]) -> Float[Tensor, "b h"]:
        """Compute the hidden units: probabilities of an RBM, or a linear code."""
        return (
            hidden_probability(visible, self.neurons())
            if self.back is None
            else visible @ self.weight + self.hidden_bias
        )

    def decode(self, code: Float[Tensor, "b h"]) -> Float[Tensor, "b v"]:
        """Compute the visible units from hidden ones."""
        return (
            visible_mean(code, self.neurons(), binary=False)
            if self.back is None
            else code @ self.back + self.visible_bias
        )

    def forward(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        return Capsules.of(self.code(self.visible(images)).unsqueeze(-1))

    def reconstruct(self, poses: Float[Tensor, "b j 1"]) -> Float[Tensor, "b c h w"]:
        """Reconstruct images from hidden units."""
        maps = self.decode(poses.squeeze(-1)) * self.spread + self.mean
        channels, height, width = self.map_shape
        return self.autoencoder.decode(rearrange(maps, "b (k h w) -> b k h w", k=channels, h=height, w=width)).sigmoid()

    def neurons(self) -> Neurons:
        """Return weights and biases as the RBM ops take them."""
        return Neurons(self.weight, self.visible_bias, self.hidden_bias)
