"""Coupling rules: how a capsule shares itself among its parents, as functions of the routing logits.

A rule takes logits `[*b j]` (j: the parents that one child reaches, -inf where there is no such parent) and returns
couplings of the same shape; `dim` says where j is if not at the end. `COUPLINGS` holds all rules by name; `FIXED` names
those that ignore agreement, so that further routing iterations would change nothing.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Logits = Float[Tensor, "*b j"]
Couplings = Float[Tensor, "*b j"]


LEAST_SPAN, ROUNDINGS = 1e-12, 16  # for max-min: the smallest difference of logits that counts


class CouplingRule(NamedTuple):
    """One entry of `COUPLINGS`, looked up by `coupling_rule`."""

    share: Callable[..., Tensor]  # share(logits, dim=-1) -> couplings
    fixed: bool  # ignores agreement


def softmax(logits: Logits, dim: int = -1) -> Couplings:
    """Eq. 3 of Sabour 2017: every child spends exactly one vote."""
    return logits.softmax(dim)


def leaky(logits: Logits, dim: int = -1) -> Couplings:
    """Softmax with one more parent of logit zero, "none of the above", whose share is then dropped."""
    if logits.shape[dim] == 0:
        return logits
    orphan = torch.zeros_like(logits.narrow(dim, 0, 1))
    return torch.cat([logits, orphan], dim).softmax(dim).narrow(dim, 0, logits.shape[dim])


def max_min(logits: Logits, dim: int = -1) -> Couplings:
    """Scale linearly over the parents: 0.01 + 0.99 (b - min b) / (max b - min b) (Zhao 2019).

    Uniform where all logits are equal, as in a first iteration without prior, and where they differ by no more than
    1e-12 or by rounding. The rule jumps there, from uniform to 0.01 .. 1, however little parents differ. So it suits
    transforms of each parent's own: with one transform for all parents the logits differ by rounding alone.
    """
    if logits.shape[dim] == 0:
        return logits
    there = logits > -torch.inf
    # parents that are not there must count neither in the maximum nor in the minimum
    low = logits.masked_fill(~there, torch.inf).amin(dim, keepdim=True)
    span = logits.amax(dim, keepdim=True) - low
    # below, the slope 1 / span and its products would overflow, or rounding would be scaled up to a decision
    rounding = ROUNDINGS * torch.finfo(logits.dtype).eps * logits.masked_fill(~there, 0.0).abs().amax(dim, keepdim=True)
    flat = span <= rounding.clamp(min=LEAST_SPAN)
    scaled = 0.01 + 0.99 * (logits.masked_fill(~there, 0.0) - low) / span.masked_fill(flat, 1.0)
    equal = torch.ones_like(scaled) / there.sum(dim, keepdim=True)
    return torch.where(flat, equal, scaled).masked_fill(~there, 0.0)


def uniform(logits: Logits, dim: int = -1) -> Couplings:
    """Give every parent the same share: the control without routing."""
    return logits.masked_fill(logits > -torch.inf, 0.0).softmax(dim)


COUPLINGS: dict[str, Callable[..., Tensor]] = {
    "softmax": softmax,
    "leaky": leaky,
    "max-min": max_min,
    "uniform": uniform,
    "random": softmax,  # takes the prior alone, which the layer draws once from a standard normal
}
FIXED = ("uniform", "random")


def coupling_rule(name: str) -> CouplingRule:
    """Look up a rule, or raise an error that lists the names."""
    if name not in COUPLINGS:
        raise ValueError(f"couplings must be one of {', '.join(COUPLINGS)}; got {name!r}")
    return CouplingRule(COUPLINGS[name], name in FIXED)
