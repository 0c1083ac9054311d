"""Self-attention routing, without iterations (Mazzia, Salvetti, Chiaberge 2021, "Efficient-CapsNet").

Paper's symbols: input poses u_i, transforms W_ij, votes Û_ij, attention A_ii'j of two inputs for an output, couplings
C_ij, log priors B_ij. With e the dimensions of a vote:

    A_ii'j = Û_ij · Û_i'j / √e,  C_ij = softmax over j of Σ_i' A_ii'j,  s_j = Σ_i (C_ij + B_ij) Û_ij

Only sums of the attention over i' are used, so it is never formed: Σ_i' Û_ij · Û_i'j is the product of a vote with the
sum of all votes for j. So this is one iteration of agreement with the plain sum.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.ops.dynamic.reference import RoutingStep
from torchcaps.ops.squash import squash_exponential
from torchcaps.ops.votes import votes_of


def self_attention_routing(
    poses: Float[Tensor, "*b i d"], weight: Float[Tensor, "n j d e"], prior: Float[Tensor, "i j"] | None = None
) -> Float[Tensor, "*b j e"]:
    """Route votes by their agreement with all votes; the length of an output is its activity.

    A weight for n types is shared by the inputs of a type, which follow each other. Computed in float32 at least; the
    poses come back in the dtype of the poses.
    """
    (step,) = self_attention_routing_steps(poses, weight, prior)
    return step.poses


def self_attention_routing_steps(
    poses: Float[Tensor, "*b i d"], weight: Float[Tensor, "n j d e"], prior: Float[Tensor, "i j"] | None = None
) -> Iterator[RoutingStep]:
    """Yield the only step, as `self_attention_routing` computes it; its couplings have the prior added."""
    check_pairs("self_attention_routing", poses, weight)
    n_in, (_, n_out, _, d_out) = poses.shape[-2], weight.shape
    if prior is not None and tuple(prior.shape) != (n_in, n_out):
        raise ValueError(f"self_attention_routing: the prior must be [{n_in}, {n_out}], got {list(prior.shape)}")
    votes = votes_of(poses, weight, n_out)  # [*b i j e]
    votes = votes.to(torch.promote_types(votes.dtype, torch.float32))
    logits = (votes * votes.sum(-3, keepdim=True)).sum(-1) * max(d_out, 1) ** -0.5  # [*b i j]
    couplings = logits.softmax(-1)
    if prior is not None:
        couplings = couplings + prior
    parents = squash_exponential((couplings.unsqueeze(-1) * votes).sum(-3))
    yield RoutingStep(logits, couplings, parents.to(poses.dtype))


def check_pairs(op: str, poses: Tensor, weight: Tensor) -> None:
    """Refuse a weight that is not a transform for each pair of a type, or of an input, and an output."""
    n_types = weight.shape[0] if weight.ndim == 4 else 0
    if poses.ndim < 2 or not n_types or poses.shape[-2] % n_types or poses.shape[-1] != weight.shape[2]:
        raise ValueError(
            f"{op} expects poses [*b i d] and a weight [i j d e], or [n j d e] for n types of i / n inputs each; "
            f"got {list(poses.shape)} and {list(weight.shape)}"
        )
