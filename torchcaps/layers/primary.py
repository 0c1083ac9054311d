"""The lowest capsules: a convolution whose channels are cut into poses."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from torchcaps.layers.capsules import Capsules
from torchcaps.ops import convolve, squash


class PrimaryCapsules(nn.Module):
    """Channels [b c h w] -> n_types · h' · w' capsules of d_out numbers, ordered (type, row, column).

    `share`: what the convolution's output is divided by before bias and squash. The authors' code routes the primary
    capsules once with equal couplings, which amounts to dividing by the number of types; the paper's text divides by 1.
    `rectify`: no number of a pose below zero before the squash, as the withdrawn file of Jeong 2019 has it.
    `padding`: zeros on each side, or "same" for ceil(size / stride) places, TensorFlow's way: an odd one goes right and below.
    """

    def __init__(
        self, c_in: int, n_types: int = 32, d_out: int = 8, kernel: int = 9, stride: int = 2, padding: int | str = 0, share: int = 1,
        rectify: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.rectify = rectify
        self.n_types, self.d_out, self.kernel, self.stride, self.padding, self.share = n_types, d_out, kernel, stride, padding, share
        self.weight = nn.Parameter(torch.empty(n_types * d_out, c_in, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(n_types * d_out))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def forward(self, features: Float[Tensor, "b c h w"]) -> Capsules:
        around = [n for size in (features.shape[3], features.shape[2]) for n in self._around(size)]  # columns first, as pad wants it
        cut = convolve(pad(features, around) if any(around) else features, self.weight, stride=self.stride) / self.share
        cut = cut + self.bias.view(-1, 1, 1)
        cut = cut.relu() if self.rectify else cut
        # the channels of one type form a pose; without naming the axes a "capsule" is eight neighbouring pixels
        poses = rearrange(cut, "b (n d) h w -> b (n h w) d", d=self.d_out)
        # back from autocast: from here on lengths are compared, and near 1 they need more than eight bits
        return Capsules.of(squash(poses.to(self.weight.dtype)))

    def _around(self, size: int) -> tuple[int, int]:
        if self.padding == "same":
            missing = max((-(-size // self.stride) - 1) * self.stride + self.kernel - size, 0)
            return missing // 2, missing - missing // 2
        return self.padding, self.padding

    def places(self, size: int) -> int:
        """Along an axis of so many pixels."""
        return (size + sum(self._around(size)) - self.kernel) // self.stride + 1

    def extra_repr(self) -> str:
        c_in = self.weight.shape[1]
        return f"{c_in}, n_types={self.n_types}, d_out={self.d_out}, kernel={self.kernel}, stride={self.stride}, share={self.share}"
