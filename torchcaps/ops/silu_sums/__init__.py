"""SiLU with the sums that batch normalisation needs: the op, and which of its implementations runs."""

from jaxtyping import Float
from torch import Tensor

from torchcaps.ops.backend import Implementation, choose
from torchcaps.ops.silu_sums import reference, triton_op
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
    args = {"maps": maps, "bias": bias, "centre": centre}
    return _IMPLEMENTATIONS[choose("silu_with_sums", _IMPLEMENTATIONS, backend, maps, args)].load()(**args)


_IMPLEMENTATIONS = {
    "reference": Implementation(load=lambda: reference.activated),
    "triton": Implementation(
        load=lambda: lambda **args: Activated(*triton_op.silu_sums(**args)), refuses=triton_op.refuses
    ),
}
