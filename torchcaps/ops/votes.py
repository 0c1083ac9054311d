"""What every input capsule predicts of every output: its pose through a transform (Sabour 2017, Eq. 2: û_j|i = W_ij u_i)."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

Poses = Float[Tensor, "*b i d"]
Weight = Float[Tensor, "i j d e"] | Float[Tensor, "n j d e"] | Float[Tensor, "j d e"] | Float[Tensor, "d e"]


def votes_of(poses: Poses, weight: Weight, n_out: int) -> Float[Tensor, "*b i j e"]:
    """The votes, in the open. The shape of the weight says who shares a transform."""
    if weight.ndim == 2:
        return torch.einsum("...id,de->...ie", poses, weight).unsqueeze(-2).expand(*poses.shape[:-1], n_out, weight.shape[-1])
    if weight.ndim == 3:
        return torch.einsum("...id,jde->...ije", poses, weight)
    if weight.shape[0] == poses.shape[-2]:
        return torch.einsum("...id,ijde->...ije", poses, weight)
    by_type = rearrange(poses, "... (n p) d -> ... n p d", n=weight.shape[0])
    return rearrange(torch.einsum("...npd,njde->...npje", by_type, weight), "... n p j e -> ... (n p) j e")
