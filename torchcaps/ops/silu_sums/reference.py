"""SiLU and the sums over what comes out, in plain PyTorch."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import silu


class Activated(NamedTuple):
    """Activated maps and their sums per channel."""

    maps: Float[Tensor, "*b c"]
    sums: Float[Tensor, "2 c"]  # of the values, and of their squares


def activated(maps: Float[Tensor, "*b c"], bias: Float[Tensor, "c"], centre: Float[Tensor, "c"]) -> Activated:
    """Compute silu(maps + bias) - centre in float32 at least, round to the dtype of the maps, sum over all but c."""
    wide = torch.promote_types(maps.dtype, torch.float32)
    out = (silu(maps.to(wide) + bias.to(wide)) - centre.detach().to(wide)).to(maps.dtype)
    values = out.to(wide).flatten(0, -2)
    return Activated(out, torch.stack([values.sum(0), values.square().sum(0)]))
