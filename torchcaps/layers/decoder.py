"""Decoder from a capsule's pose to an image (Sabour 2017, figure 2)."""

from itertools import pairwise
from math import prod

from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.layers.capsules import check_capsules


class Decoder(nn.Module):
    """Fully connected decoder that reconstructs an image. [*b j e] -> [*b c h w].

    `keep` [*b j] multiplies the capsules, 0 for those that are masked out.

    Example:

        decoder = Decoder(n_in=10, d_in=16, shape=(1, 28, 28))
        list(decoder(torch.randn(4, 10, 16), keep=torch.eye(10)[:4]).shape)  # [4, 1, 28, 28]
    """

    def __init__(
        self, n_in: int, d_in: int, shape: tuple[int, int, int], hidden: tuple[int, ...] = (512, 1024)
    ) -> None:
        super().__init__()
        self.n_in, self.d_in, self.shape = n_in, d_in, tuple(shape)
        sizes = (n_in * d_in, *hidden, prod(shape))
        layers: list[nn.Module] = []
        for size_in, size_out in pairwise(sizes):
            layers += [nn.Linear(size_in, size_out), nn.ReLU()]
        self.net = nn.Sequential(*layers[:-1], nn.Sigmoid())
        # a training step on CUDA reads these in bfloat16: train/rounded.py
        self.ROUNDED = tuple(f"net.{at}.weight" for at in range(0, len(self.net), 2))

    def forward(self, poses: Float[Tensor, "*b j e"], keep: Float[Tensor, "*b j"]) -> Float[Tensor, "*b c h w"]:
        check_capsules("Decoder", poses, self.n_in, self.d_in)
        if keep.shape != poses.shape[:-1]:
            raise ValueError(
                f"Decoder: keep must be {list(poses.shape[:-1])}, one number per capsule, got {list(keep.shape)}"
            )
        return self.net((poses * keep.unsqueeze(-1)).flatten(-2)).unflatten(-1, self.shape)
