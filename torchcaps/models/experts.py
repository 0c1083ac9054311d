"""Product of expert capsules that encodes and generates images: autoencoder, expert layers and their decoders.

Hauser 2019, "Training products of expert capsules with mixing by dynamic routing", section 4.1 and figure 1. The
squashed feature maps of a convolutional autoencoder are the primary capsules, 8 neighbouring channels at each place.
One or more layers of experts follow, each with a decoder back to the layer below. Layers are trained one by one, bottom
up.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.layers import Capsules, ConvAutoencoder, ExpertCapsules
from torchcaps.models.checks import check_images, checked_classes, checked_image
from torchcaps.ops import squash, unsquash
from torchcaps.ops.experts import Phase, firing, in_ball


class ExpertNet(nn.Module):
    """Images [b c h w] -> capsules of the highest layer; `reconstruct` decodes them, `draw_samples` decodes noise.

    `experts`: number and size of the capsules, per layer. `n_plain`: pose dimensions that do not lie on the sphere.
    `n_chains`: persistent chains per layer, 0 for none. `loud`: decoded capsules are scaled, by one factor per image,
    to the length of those of training images, and a decoder's initial logits are the log lengths. The paper has
    neither: without `loud`, decoded capsules are U's output, from logits of 0. `biases`: of the autoencoder; the paper
    lists none.

    Example:

        model = ExpertNet((1, 28, 28), channels=16)
        list(model(torch.rand(2, 1, 28, 28)).poses.shape)  # [2, 20, 16]
    """

    def __init__(
        self,
        image: tuple[int, int, int] = (1, 28, 28),
        n_classes: int = 10,  # unused: all models take it
        *,
        channels: int = 128,
        kernel: int = 9,
        dropped: float = 0.2,
        biases: bool = True,
        d_primary: int = 8,
        experts: Sequence[Sequence[int]] = ((20, 16),),
        n_plain: int = 0,
        n_chains: int = 0,
        loud: bool = True,
        rule: dict | None = None,
        decoder_rule: dict | None = None,
    ) -> None:
        super().__init__()
        if channels % d_primary:
            raise ValueError(f"ExpertNet: {channels} channels cannot be cut into capsules of {d_primary}")
        self.image, self.n_classes = checked_image("ExpertNet", image), checked_classes("ExpertNet", n_classes)
        self.d_primary, self.loud = d_primary, loud
        self.autoencoder = ConvAutoencoder(self.image, channels, kernel, dropped=dropped, biases=biases)
        self.n_types, self.grid = channels // d_primary, self.autoencoder.grid
        sizes = [(self.n_types * self.grid[0] * self.grid[1], d_primary), *map(tuple, experts)]
        start = "lengths" if loud else "zero"
        self.encoders, self.decoders = nn.ModuleList(), nn.ModuleList()
        for (n_in, d_in), (n_out, d_out) in pairwise(sizes):
            self.encoders.append(ExpertCapsules(n_in, n_out, d_in, d_out, n_plain=n_plain, **(rule or {})))
            self.decoders.append(ExpertCapsules(n_out, n_in, d_out, d_in, **({"start": start} | (decoder_rule or {}))))
        for number, ((n_in, d_in), (n_out, d_out)) in enumerate(pairwise(sizes)):
            # mean direction of each capsule: the hemisphere that training visits
            self.register_buffer(f"visited_{number}", torch.zeros(n_out, d_out))
            # root mean square length of all capsules below together, which the decoder's training rule does not fix
            self.register_buffer(f"loudness_{number}", torch.ones(()))
            if n_chains:
                self.register_buffer(f"chain_{number}", squash(torch.randn(n_chains, n_in, d_in)))

    def primary_capsules(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        """Compute the primary capsules: the autoencoder's feature maps, squashed."""
        return Capsules.of(squash(self.features(images)))

    def features(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b i d"]:
        """Compute the primary poses before the squash, as the autoencoder's decoder takes them."""
        check_images("ExpertNet", images, self.image, self.autoencoder.first.dtype)
        return rearrange(self.autoencoder.encode(images), "b (n d) h w -> b (n h w) d", d=self.d_primary)

    def below(
        self, images: Float[Tensor, "b c h w"], layer: int
    ) -> tuple[Float[Tensor, "b i d"], Float[Tensor, "b i d"]]:
        """Compute the input poses of an expert layer, and the sums before their squash."""
        sums = self.features(images)
        for encoder in self.encoders[:layer]:
            sums = encoder.phase(self._fired(sums, encoder)).sums
        return self._fired(sums, self.encoders[layer]), sums

    def phase(self, images: Float[Tensor, "b c h w"], layer: int = -1) -> Phase:
        """Compute poses, sums and couplings of an expert layer."""
        layer %= len(self.encoders)
        return self.encoders[layer].phase(self.below(images, layer)[0])

    def forward(self, images: Float[Tensor, "b c h w"]) -> Capsules:
        layer = len(self.encoders) - 1
        return self.encoders[layer](self.below(images, layer)[0])

    def phase_down(self, poses: Float[Tensor, "b j e"], layer: int) -> Phase:
        """Compute poses, sums and couplings of a layer's decoder; plain dimensions are mapped into the unit ball."""
        return self.decoders[layer].phase(in_ball(poses, self.encoders[layer].n_plain))

    def decode(self, poses: Float[Tensor, "b j e"], layer: int = -1) -> Float[Tensor, "b i d"]:
        """Decode experts of a layer to primary capsules; if `loud`, with the total length of a training image's."""
        for number in range(layer % len(self.encoders), -1, -1):
            sums = self.phase_down(poses, number).sums
            if self.loud:
                sums = sums * torch.rsqrt(sums.square().sum((-2, -1), keepdim=True) + 1e-12) * self.loudness(number)
            poses = self._fired(sums, self.encoders[number])
        return poses

    def reconstruct(self, poses: Float[Tensor, "b j e"], layer: int = -1) -> Float[Tensor, "b c h w"]:
        """Decode experts of a layer to images."""
        return self.draw(self.decode(poses, layer))

    def draw(self, poses: Float[Tensor, "b i d"]) -> Float[Tensor, "b c h w"]:
        """Decode primary capsules to images."""
        maps = rearrange(unsquash(poses), "b (n h w) d -> b (n d) h w", n=self.n_types, h=self.grid[0])
        return self.autoencoder.decode(maps).sigmoid()

    def restrict(self, numbers: Float[Tensor, "b j e"], layer: int = -1) -> Float[Tensor, "b j e"]:
        """Restrict noise to the domain of training: flip it into the visited hemisphere, shift plain dimensions."""
        layer %= len(self.encoders)
        visited = self.visited(layer)
        cut = numbers.shape[-1] - self.encoders[layer].n_plain
        away = (numbers[..., :cut] * visited[:, :cut]).sum(-1, keepdim=True) < 0
        return torch.cat(
            [torch.where(away, -numbers[..., :cut], numbers[..., :cut]), numbers[..., cut:] + visited[:, cut:]], -1
        )

    def alone(self, numbers: Float[Tensor, "b j e"], layer: int = -1) -> Float[Tensor, "b j j2 e"]:
        """Return one state per capsule, in which only that capsule is active."""
        fired = firing(numbers, n_plain=self.encoders[layer % len(self.encoders)].n_plain)
        return torch.einsum("bje,jk->bjke", fired, torch.eye(numbers.shape[1], dtype=fired.dtype, device=fired.device))

    def draw_samples(
        self, numbers: Float[Tensor, "b j e"], *, restricted: bool, layer: int = -1
    ) -> Float[Tensor, "b j c h w"]:
        """Decode normal noise, one capsule at a time, from the complete or the restricted domain (figure 2)."""
        states = self.alone(self.restrict(numbers, layer) if restricted else numbers, layer)
        pictures = [self.reconstruct(part, layer) for part in rearrange(states, "b j k e -> (b j) k e").split(500)]
        return rearrange(torch.cat(pictures), "(b j) c h w -> b j c h w", j=numbers.shape[1])

    def visited(self, layer: int = -1) -> Float[Tensor, "j e"]:
        """Return the mean direction of each expert of a layer over the training images."""
        return getattr(self, f"visited_{layer % len(self.encoders)}")

    def loudness(self, layer: int) -> Float[Tensor, ""]:
        """Return the root mean square length of all capsules below a layer together."""
        return getattr(self, f"loudness_{layer}")

    def chain(self, layer: int) -> Float[Tensor, "n i d"]:
        """Return the persistent chains of a layer."""
        return getattr(self, f"chain_{layer}")

    def _fired(self, sums: Float[Tensor, "b i d"], above: ExpertCapsules) -> Float[Tensor, "b i d"]:
        """Squash the inputs of `above` as the layer below does; primary capsules have no plain dimensions."""
        plain = above.n_plain if above is not self.encoders[0] else 0
        return firing(sums, n_plain=plain)
