"""Dynamic routing between capsules, in the open (Sabour, Frosst, Hinton 2017, Procedure 1).

Paper's symbols: input poses u_i, transforms W_ij, votes û_j|i, routing logits b_ij, couplings c_ij, output poses v_j.
Weights come in four shapes: `[i j d e]` one transform per pair, `[n j d e]` one per input type and output, shared over
the places of the type (i = n · places, type first), `[j d e]` shared by all inputs, `[d e]` one for everything.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.ops.couplings import CouplingRule, coupling_rule
from torchcaps.ops.squash import squash
from torchcaps.ops.votes import Poses, Weight, agreements, n_outputs, votes_of


class Routed(NamedTuple):
    """Output poses. The last iteration's logits are prior + votes · pose_sum, so they need not be stored.

    Example:

        routed = dynamic_routing(torch.randn(4, 32, 8), torch.randn(32, 10, 8, 16))
        list(routed.poses.shape), list(routed.pose_sum.shape)  # ([4, 10, 16], [4, 10, 16])
    """

    poses: Float[Tensor, "*b j e"]
    pose_sum: Float[Tensor, "*b j e"]  # sum of the output poses of all iterations but the last


class RoutingStep(NamedTuple):
    """One iteration of the routing, for figures and tests.

    Example:

        steps = list(dynamic_routing_steps(torch.randn(32, 8), torch.randn(32, 10, 8, 16), n_iters=3))
        len(steps), list(steps[-1].couplings.shape)  # (3, [32, 10])
    """

    logits: Float[Tensor, "*b i j"]
    couplings: Float[Tensor, "*b i j"]
    poses: Float[Tensor, "*b j e"]


def dynamic_routing_steps(
    poses: Poses,
    weight: Weight,
    bias: Float[Tensor, "j e"] | None = None,
    n_iters: int = 3,
    *,
    prior: Float[Tensor, "i j"] | None = None,
    couplings: str = "softmax",
    detach: bool = False,
) -> Iterator[RoutingStep]:
    """Yield every iteration of Procedure 1, as `dynamic_routing` computes it. `couplings` names the rule."""
    check(poses, weight, bias, n_iters, prior, couplings, detach)
    return _steps(poses, weight, bias, n_iters, prior, coupling_rule(couplings), detach)


def _steps(poses, weight, bias, n_iters: int, prior, rule: CouplingRule, detach: bool) -> Iterator[RoutingStep]:
    votes = votes_of(poses, weight, n_outputs(weight, bias, prior))  # [*b i j e]
    logits = _first_logits(votes, votes.shape[:-1], prior)  # [*b i j]
    for t in range(n_iters):
        last = t == n_iters - 1
        heard = votes.detach() if detach and not last else votes
        couplings = rule.share(logits)  # [*b i j], sums to 1 over j if the rule is softmax
        # multiply-and-sum, not einsum: it keeps bf16 votes in float32 sums and is twice as fast on a CPU
        total = (couplings.unsqueeze(-1) * heard).sum(-3)
        parents = squash(total if bias is None else total + bias)
        yield RoutingStep(logits, couplings, parents.to(poses.dtype))
        if not last and not rule.fixed:
            logits = logits + (heard * parents.unsqueeze(-3)).sum(-1)


def routed(poses, weight, bias, n_iters: int, prior, couplings: str, detach: bool) -> Routed:
    """Route with all votes in memory: what every other implementation must equal."""
    rule = coupling_rule(couplings)
    # agreement does not change fixed couplings, so that one iteration is all
    steps = _steps(poses, weight, bias, 1 if rule.fixed else n_iters, prior, rule, detach)
    *earlier, last = [step.poses for step in steps]
    return Routed(last, sum(earlier, torch.zeros_like(last)))


def recover_couplings(
    poses: Poses,
    weight: Weight,
    pose_sum: Float[Tensor, "*b j e"],
    *,
    prior: Float[Tensor, "i j"] | None = None,
    couplings: str = "softmax",
) -> Float[Tensor, "*b i j"]:
    """Compute the last iteration's couplings from what `dynamic_routing` returned, without forming the votes."""
    rule = coupling_rule(couplings)
    logits = _first_logits(poses, (*poses.shape[:-1], pose_sum.shape[-2]), prior)
    if not rule.fixed:
        logits = logits + agreements(poses, weight, pose_sum)
    return rule.share(logits)


def _first_logits(like: Tensor, shape: tuple[int, ...], prior: Tensor | None) -> Float[Tensor, "*b i j"]:
    """Zeros or the prior, in float32 at least; never shared over the batch."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    return like.new_zeros(shape, dtype=dtype) if prior is None else prior.to(dtype).expand(shape)


def check(poses, weight, bias, n_iters, prior, couplings, detach) -> None:
    """Refuse what einsum and broadcasting would let pass in silence."""
    coupling_rule(couplings)
    if n_iters < 1:
        raise ValueError(f"dynamic_routing needs at least one iteration, got n_iters={n_iters}")
    if poses.ndim < 2 or weight.ndim not in (2, 3, 4):
        raise ValueError(
            "dynamic_routing expects poses [*b i d] and a weight [i j d e], [n j d e], [j d e] or [d e]; "
            f"got {list(poses.shape)} and {list(weight.shape)}"
        )
    n_in, d_in = poses.shape[-2:]
    if weight.shape[-2] != d_in:
        raise ValueError(
            f"dynamic_routing: the weight {list(weight.shape)} takes poses of {weight.shape[-2]} dimensions, got {d_in}"
        )
    if weight.ndim == 4 and (weight.shape[0] == 0 or n_in % weight.shape[0] or n_in == 0):
        raise ValueError(
            f"dynamic_routing: the weight {list(weight.shape)} is for {weight.shape[0]} capsules or types, "
            f"got {n_in} capsules; share it over the inputs with a weight [j d e], or rebuild it"
        )
    n_out, d_out = n_outputs(weight, bias, prior), weight.shape[-1]
    if bias is not None and tuple(bias.shape) != (n_out, d_out):
        raise ValueError(f"dynamic_routing: bias must be [{n_out}, {d_out}] for this weight, got {list(bias.shape)}")
    if prior is not None and tuple(prior.shape) != (n_in, n_out):
        raise ValueError(f"dynamic_routing: prior logits must be [{n_in}, {n_out}], got {list(prior.shape)}")
    if couplings == "random" and prior is None:
        raise ValueError(
            "dynamic_routing: random couplings are the softmax of prior logits; give prior=torch.randn(n_in, n_out)"
        )
