"""Self-routing: every input decides alone where its votes go (Hahn, Pyeon, Kim 2019).

Paper's symbols: input poses u_i and activities a_i, transforms W^pose_ij, votes û_ij, routing weights W^route_i,
couplings c_ij, output poses u_j and activities a_j. There are no iterations, and agreement plays no part:

    c_ij = softmax over j of u_i W^route_i,  a_j = Σ_i c_ij a_i / Σ_i a_i,  u_j = Σ_i c_ij a_i û_ij / Σ_i c_ij a_i

So activities sum to one over the outputs. The authors' code adds a learnt bias to the logits. Everything is computed
from logarithms: a class that no input routes to still has a finite log activity and a gradient.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.ops.self_attention import check_pairs
from torchcaps.ops.votes import over_places, votes_of


class SelfRouted(NamedTuple):
    """Output poses and the logarithms of their activities.

    Example:

        route, weight = torch.randn(32, 8, 10), torch.randn(32, 10, 8, 16)
        routed = self_routing(torch.ones(32), torch.randn(32, 8), weight, route)
        list(routed.poses.shape), list(routed.log_activity.shape)  # ([10, 16], [10])
    """

    poses: Float[Tensor, "*b j e"]
    log_activity: Float[Tensor, "*b j"]  # float32 at least; the exponentials sum to 1


class SelfRoutingStep(NamedTuple):
    """Everything that the routing computes, for figures and tests.

    Example:

        route, weight = torch.randn(32, 8, 10), torch.randn(32, 10, 8, 16)
        (step,) = self_routing_steps(torch.ones(32), torch.randn(32, 8), weight, route)
        list(step.couplings.shape)  # [32, 10]
    """

    logits: Float[Tensor, "*b i j"]
    couplings: Float[Tensor, "*b i j"]  # sum to 1 over j
    poses: Float[Tensor, "*b j e"]
    log_activity: Float[Tensor, "*b j"]


def self_routing(
    activity: Float[Tensor, "*b i"],
    poses: Float[Tensor, "*b i d"],
    weight: Float[Tensor, "n j d e"],
    route: Float[Tensor, "n d j"],
    bias: Float[Tensor, "n j"] | None = None,
) -> SelfRouted:
    """Send every input where a linear map of its own pose says, weighted by its activity.

    `bias` is added to the routing logits. Weights for n types are shared by the inputs of a type, which follow each
    other. An activity of 0 masks an input of finite pose, unless all inputs of a sample have it: then all count alike.
    Computed in float32 at least; the poses come back in the dtype of the poses.
    """
    (step,) = self_routing_steps(activity, poses, weight, route, bias)
    return SelfRouted(step.poses, step.log_activity)


def self_routing_steps(
    activity: Float[Tensor, "*b i"],
    poses: Float[Tensor, "*b i d"],
    weight: Float[Tensor, "n j d e"],
    route: Float[Tensor, "n d j"],
    bias: Float[Tensor, "n j"] | None = None,
) -> Iterator[SelfRoutingStep]:
    """Yield the only step, as `self_routing` computes it."""
    _check(activity, poses, weight, route, bias)
    dtype = torch.promote_types(poses.dtype, torch.float32)
    present = activity.to(dtype).clamp(min=torch.finfo(dtype).tiny).log()  # [*b i]
    logits = votes_of(poses, route.unsqueeze(1), 1).squeeze(-2).to(dtype)  # [*b i j]
    if bias is not None:
        logits = logits + over_places(bias, poses.shape[-2]).to(dtype)
    arriving = logits.log_softmax(-1) + present.log_softmax(-1).unsqueeze(-1)  # log of c_ij a_i / Σ a_i
    votes = votes_of(poses, weight, weight.shape[1]).to(dtype)  # [*b i j e]
    parents = (arriving.softmax(-2).unsqueeze(-1) * votes).sum(-3)
    yield SelfRoutingStep(logits, logits.softmax(-1), parents.to(poses.dtype), arriving.logsumexp(-2))


def _check(activity, poses, weight, route, bias) -> None:
    """Refuse what einsum and broadcasting would let pass in silence."""
    check_pairs("self_routing", poses, weight)
    n_types, n_out, d_in, _ = weight.shape
    wanted = {"activity": poses.shape[:-1], "route": (n_types, d_in, n_out), "bias": (n_types, n_out)}
    for name, given in {"activity": activity, "route": route, "bias": bias}.items():
        if given is not None and tuple(given.shape) != tuple(wanted[name]):
            raise ValueError(
                f"self_routing: {name} must be {list(wanted[name])} for poses {list(poses.shape)} and a weight "
                f"{list(weight.shape)}, got {list(given.shape)}"
            )
