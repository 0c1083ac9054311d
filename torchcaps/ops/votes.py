"""Votes: an input's prediction of every output, its pose through a transform (Sabour 2017, Eq. 2: û_j|i = W_ij u_i)."""

from math import prod

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from torchcaps.ops.backend import autocast_dtype
from torchcaps.ops.tiles import ceil_div

Poses = Float[Tensor, "*b i d"]
BLOCK_BYTES = 64 << 20  # most that `agreements` forms at a time
Weight = Float[Tensor, "i j d e"] | Float[Tensor, "n j d e"] | Float[Tensor, "j d e"] | Float[Tensor, "d e"]


def n_outputs(weight: Weight, bias: Tensor | None, prior: Tensor | None) -> int:
    """Count the output capsules: the weight says, or where one transform serves all, the bias or the prior."""
    if weight.ndim > 2:
        return weight.shape[-3]
    if bias is not None:
        return bias.shape[-2]
    if prior is not None:
        return prior.shape[-1]
    raise ValueError(
        "dynamic_routing: one transform [d e] for all does not say how many outputs there are; give a bias [j e]"
    )


def has_transform_per_pair(poses: Poses, weight: Weight) -> bool:
    """Tell a weight [i j d e] from one that inputs share."""
    return weight.ndim == 4 and weight.shape[0] == poses.shape[-2]


def votes_of(poses: Poses, weight: Weight, n_out: int) -> Float[Tensor, "*b i j e"]:
    """Compute the votes, in the open. The shape of the weight says who shares a transform.

    Votes of float16 poses are float32: they could overflow, and so could their sums.
    """
    if poses.dtype == torch.float16:
        poses, weight = poses.float(), weight.float()
    if weight.ndim == 2:
        votes = torch.einsum("...id,de->...ie", poses, weight)
        return votes.unsqueeze(-2).expand(*poses.shape[:-1], n_out, weight.shape[-1])
    if weight.ndim == 3:
        return torch.einsum("...id,jde->...ije", poses, weight)
    if weight.shape[0] == poses.shape[-2]:
        return torch.einsum("...id,ijde->...ije", poses, weight)
    by_type = rearrange(poses, "... (n p) d -> ... n p d", n=weight.shape[0])
    return rearrange(torch.einsum("...npd,njde->...npje", by_type, weight), "... n p j e -> ... (n p) j e")


def agreements(poses: Poses, weight: Weight, parents: Float[Tensor, "*b j e"]) -> Float[Tensor, "*b i j"]:
    """Sum votes times parents over e, without the votes: a parent goes back through the transform to meet the pose.

    It forms a tensor [b i j d] where every pair has a transform of its own, for a block of images at a time;
    [b n j d] where transforms are shared by places and [b j d] where by all inputs. Sums are float32 at least.
    """
    dtype = torch.promote_types(poses.dtype, torch.float32)
    if poses.dtype == torch.float16:
        poses, weight, parents = poses.float(), weight.float(), parents.float()
    if weight.ndim < 4:
        back = torch.einsum("...je,jde->...jd" if weight.ndim == 3 else "...je,de->...jd", parents, weight)
        return torch.einsum("...id,...jd->...ij", poses.to(dtype), back.to(dtype))
    if weight.shape[0] != poses.shape[-2]:
        by_type = rearrange(poses, "... (n p) d -> ... n p d", n=weight.shape[0])
        back = torch.einsum("...je,njde->...njd", parents, weight)
        agreed = torch.einsum("...npd,...njd->...npj", by_type.to(dtype), back.to(dtype))
        return rearrange(agreed, "... n p j -> ... (n p) j")
    flat, sums = poses.reshape(-1, *poses.shape[-2:]), parents.reshape(-1, *parents.shape[-2:])
    found = [_pairwise(part, weight, total) for part, total in in_blocks(flat, sums, weight)]
    return (found[0] if len(found) == 1 else torch.cat(found)).reshape(*poses.shape[:-1], weight.shape[1])


def in_blocks(
    poses: Float[Tensor, "b i d"], parents: Float[Tensor, "b j e"], weight: Weight
) -> list[tuple[Float[Tensor, "m i d"], Float[Tensor, "m j e"]]]:
    """Cut into blocks of images whose tensors [i j d] take BLOCK_BYTES; one block if none is made.

    One block, too, in a compiled program, where their number would be fixed.
    Blocks have one size, but for the last: 64 and 64 images, not 113 and 15.
    """
    if not has_transform_per_pair(poses, weight) or torch.compiler.is_compiling():
        return [(poses, parents)]
    most = max(1, BLOCK_BYTES // (prod(weight.shape[:3]) * _bytes_each(weight)))
    if len(poses) <= most:
        return [(poses, parents)]
    n_blocks = ceil_div(len(poses), most)
    at_once = ceil_div(len(poses), n_blocks)
    return list(zip(poses.split(at_once), parents.split(at_once), strict=True))


def _bytes_each(weight: Weight) -> int:
    """Bytes of one number of a product with the weight: autocast makes it shorter."""
    return (autocast_dtype(weight.device) or weight.dtype).itemsize


def _pairwise(
    poses: Float[Tensor, "b i d"], weight: Float[Tensor, "i j d e"], parents: Float[Tensor, "b j e"]
) -> Float[Tensor, "b i j"]:
    back = torch.einsum("bje,ijde->bijd", parents, weight)
    # multiply-and-sum: compiled, that reads `back` once, and bfloat16 products of it are summed in float32
    return (poses.unsqueeze(-2) * back).sum(-1, dtype=torch.promote_types(poses.dtype, torch.float32))


def over_places(parameter: Tensor, n_in: int) -> Tensor:
    """Repeat a type's parameters for each of its places, [n ...] -> [i ...]; one per input stays as it is."""
    n_types, *rest = parameter.shape
    if n_types == n_in:
        return parameter
    return parameter.unsqueeze(1).expand(n_types, n_in // n_types, *rest).flatten(0, 1)
