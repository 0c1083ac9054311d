"""SiLU with the sums that batch normalisation needs, also behind a convolution: which implementation runs."""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from torchcaps.ops.backend import Implementation, choose
from torchcaps.ops.convolution import convolve
from torchcaps.ops.silu_sums import reference, triton_conv_op, triton_op
from torchcaps.ops.silu_sums.reference import Activated


def silu_with_sums(
    maps: Float[Tensor, "*b c"],
    bias: Float[Tensor, "c"],
    centre: Float[Tensor, "c"],
    *,
    backend: str = "auto",
) -> Activated:
    """Compute silu(maps + bias) - centre, and per channel the sum and the sum of squares of what comes out.

    `centre`: any guess of the mean, a constant without gradient; bfloat16 keeps more digits of values around zero.
    The sums are those of the rounded values, which is what a convolution behind it sees. They are taken in float32 at
    least, and a gradient may come back through them.
    """
    _check_channels("silu_with_sums", maps.shape[-1], bias, centre)
    args = {"maps": maps, "bias": bias, "centre": centre}
    return _IMPLEMENTATIONS[choose("silu_with_sums", _IMPLEMENTATIONS, backend, maps, args)].load()(**args)


def conv_silu_with_sums(
    images: Float[Tensor, "b c h w"],
    weight: Float[Tensor, "k c y x"],
    bias: Float[Tensor, "k"],
    centre: Float[Tensor, "k"],
    stride: int = 1,
    *,
    backend: str = "auto",
) -> Activated:
    """Convolve, then compute `silu_with_sums` of the maps, with the channels last: [b p q k].

    The kernel is for a network's first layer. It takes few channels and gives no gradient of the images.
    """
    if images.ndim != 4 or weight.ndim != 4 or images.shape[1] != weight.shape[1] or stride < 1:
        raise ValueError(
            "conv_silu_with_sums takes images [b c h w], a weight [k c y x] of as many channels, and a stride of 1 or "
            f"more; got {list(images.shape)}, {list(weight.shape)} and {stride}; give images and a weight that fit"
        )
    _check_channels("conv_silu_with_sums", len(weight), bias, centre)
    args = {"images": images, "weight": weight, "bias": bias, "centre": centre, "stride": stride}
    return _CONVOLVED[choose("conv_silu_with_sums", _CONVOLVED, backend, images, args)].load()(**args, backend=backend)


def _check_channels(op: str, n: int, bias: Tensor, centre: Tensor) -> None:
    """Refuse what a sum would broadcast, and a kernel read beyond its end."""
    if not tuple(bias.shape) == tuple(centre.shape) == (n,):
        raise ValueError(
            f"{op} takes a bias and a centre for each of {n} channels, got {list(bias.shape)} and {list(centre.shape)}"
            "; give one number per channel"
        )


def _in_one(images: Tensor, weight: Tensor, bias: Tensor, centre: Tensor, stride: int, backend: str) -> Activated:
    # contiguous here: a compiled program writes them so at once
    return Activated(*triton_conv_op.conv_silu_sums(images.contiguous(), weight.contiguous(), bias, centre, stride))


def _in_two(images: Tensor, weight: Tensor, bias: Tensor, centre: Tensor, stride: int, backend: str) -> Activated:
    maps = rearrange(convolve(images, weight, None, stride), "b k p q -> b p q k")
    return silu_with_sums(maps, bias, centre, backend=backend)


_IMPLEMENTATIONS = {
    "reference": Implementation(load=lambda: reference.activated),
    "triton": Implementation(
        load=lambda: lambda **args: Activated(*triton_op.silu_sums(**args)), refuses=triton_op.refuses
    ),
}
_CONVOLVED = {
    "reference": Implementation(load=lambda: _in_two),
    "triton": Implementation(load=lambda: _in_one, refuses=triton_conv_op.refuses),
}
