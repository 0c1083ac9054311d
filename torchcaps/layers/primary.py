"""Primary capsules: a convolution whose channels are split into poses."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from torchcaps.layers.calibration import scale_until_alive
from torchcaps.layers.capsules import Capsules
from torchcaps.layers.inputs import check_dtype, check_tensor
from torchcaps.layers.sizes import check_sizes
from torchcaps.ops import convolve, squash


class PrimaryCapsules(nn.Module):
    """Channels [b c h w] -> n_types · h' · w' capsules of d_out dimensions, ordered (type, row, column).

    `share`: divisor of the convolution's output before bias and squash. It is 1 in the paper's text; the authors' code
    routes once with equal couplings, which divides by the number of types. `rectify`: a ReLU before the squash, as in
    the withdrawn code of Jeong 2019. `padding`: zeros on each side, or "same" for ceil(size / stride) places, as in
    TensorFlow: an odd row or column of zeros goes below or right.

    Example:

        layer = PrimaryCapsules(c_in=256, n_types=32, d_out=8)
        list(layer(torch.randn(4, 256, 20, 20)).poses.shape)  # [4, 1152, 8]
    """

    # a training step on CUDA reads these in bfloat16: train/rounded.py; a subclass that uses one twice sets ()
    ROUNDED = ("weight",)

    def __init__(
        self,
        c_in: int,
        n_types: int = 32,
        d_out: int = 8,
        kernel: int = 9,
        stride: int = 2,
        padding: int | str = 0,
        share: int = 1,
        rectify: bool = False,
    ) -> None:
        super().__init__()
        check_sizes("PrimaryCapsules", c_in=c_in, n_types=n_types, d_out=d_out)
        self.n_types, self.d_out, self.share, self.rectify = n_types, d_out, share, rectify
        self.kernel, self.stride, self.padding = kernel, stride, padding
        self.weight = nn.Parameter(torch.empty(n_types * d_out, c_in, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(n_types * d_out))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def forward(self, features: Float[Tensor, "b c h w"]) -> Capsules:
        c_in = self.weight.shape[1]
        check_tensor("PrimaryCapsules", "features", features)
        if features.ndim != 4 or features.shape[1] != c_in:
            came = list(features.shape)
            if features.ndim == 4:
                do = f"give features of {c_in} channels, or build PrimaryCapsules({came[1]}, ...) for such ones"
            else:
                do = "add the batch axis: features.unsqueeze(0)" if features.ndim == 3 else "give a batch of features"
            raise ValueError(f"PrimaryCapsules expects features [b, {c_in}, height, width], got {came}; {do}")
        check_dtype("PrimaryCapsules", "features", features, self.bias.dtype)
        # columns first, the order of pad
        around = [n for size in (features.shape[3], features.shape[2]) for n in self._around(size)]
        cut = convolve(pad(features, around) if any(around) else features, self.weight, stride=self.stride) / self.share
        cut = cut + self.bias.view(-1, 1, 1)
        cut = cut.relu() if self.rectify else cut
        # the channels of one type form a pose; a plain view would make a "capsule" of eight neighbouring pixels
        poses = rearrange(cut, "b (n d) h w -> b (n h w) d", d=self.d_out)
        # back from autocast: lengths near 1 are compared from here on and need more than eight bits
        return Capsules.of(squash(poses.to(self.bias.dtype)))

    @torch.no_grad()
    def calibrate(self, features: Float[Tensor, "b c h w"]) -> Capsules:
        """Scale the filters so that these features give a median activity of 0.2 to 0.7; return the capsules."""
        if not features.isfinite().all() or not features.any():
            raise ValueError(
                "PrimaryCapsules.calibrate: the features are all zero or not finite; give a batch of real images"
            )
        return scale_until_alive(self, features, self.weight.mul_, n_tries=200)

    def _around(self, size: int) -> tuple[int, int]:
        if self.padding == "same":
            missing = max((-(-size // self.stride) - 1) * self.stride + self.kernel - size, 0)
            return missing // 2, missing - missing // 2
        return self.padding, self.padding

    def places(self, size: int) -> int:
        """Return the number of places along an axis of `size` input pixels."""
        return (size + sum(self._around(size)) - self.kernel) // self.stride + 1

    def extra_repr(self) -> str:
        c_in = self.weight.shape[1]
        sizes = f"{c_in}, n_types={self.n_types}, d_out={self.d_out}"
        return f"{sizes}, kernel={self.kernel}, stride={self.stride}, share={self.share}"
