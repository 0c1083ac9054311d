"""Routing by expectation-maximization: every output capsule is a Gaussian over the votes it uses (Heinsen 2019, Algorithm 1).

Paper's symbols: input scores a_i, input poses μ_icd, transforms W, biases B, votes V_ijch, routing probabilities R_ij,
data used D^use_ij and ignored D^ign_ij, net benefit to use β^use and net cost to ignore β^ign; output scores a_j, poses
μ_jch, variances σ²_jch. Letters here: r rows of a matrix pose (paper: c), d input column, e output column (paper: h).
A score is what a logistic function is applied to: its gate f(a) is the share of the capsule that is there at all.

Who shares a transform is said by its shape: `[i j d e]` one per pair, for a fixed number of inputs (bias `[i j r e]`, betas
`[i j]`); `[j d e]` shared by any number of inputs (bias `[j r e]`, betas `[j]`); `[d e]` one for everything (bias `[r e]`,
betas `[j]`, which say how many outputs there are; with equal betas these are all the same).

A score of -inf is a mask: the input counts for nothing whatever its pose holds, NaN included, and gets a gradient of zero.
+inf is a capsule that is there for certain. Where every input of a sample is masked, scores and poses are 0 and variances EPS.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from torchcaps.ops.backend import Implementation, cannot_compile, choose, many_programs

EPS = 1e-5  # added to the data used by an output, and to its variances (the author's code; not in the paper)

Transform = Float[Tensor, "i j d e"] | Float[Tensor, "j d e"] | Float[Tensor, "d e"]
Bias = Float[Tensor, "i j r e"] | Float[Tensor, "j r e"] | Float[Tensor, "r e"]
Beta = Float[Tensor, "i j"] | Float[Tensor, "j"]


class EMRouted(NamedTuple):
    """What EM routing returns: the Gaussian of every output capsule, and its score."""

    scores: Float[Tensor, "*b j"]
    poses: Float[Tensor, "*b j r e"]
    variances: Float[Tensor, "*b j r e"]


class EMStep(NamedTuple):
    """One pass of the routing, as figures and tests want to see it."""

    probabilities: Float[Tensor, "*b i j"]  # of input i belonging to output j
    scores: Float[Tensor, "*b j"]
    poses: Float[Tensor, "*b j r e"]
    variances: Float[Tensor, "*b j r e"]


def em_routing(
    scores: Float[Tensor, "*b i"],
    poses: Float[Tensor, "*b i r d"],
    weight: Transform,
    bias: Bias | None,
    beta_use: Beta,
    beta_ignore: Beta,
    n_iters: int = 3,
    *,
    backend: str = "auto",
) -> EMRouted:
    """Send every input capsule to the outputs whose Gaussian explains its votes.

    All statistics are computed in float32 at least; scores come back in the dtype of the scores, the rest in that of the poses.
    """
    args = {
        "scores": scores,
        "poses": poses,
        "weight": weight,
        "bias": bias,
        "beta_use": beta_use,
        "beta_ignore": beta_ignore,
        "n_iters": n_iters,
    }
    _check(**args)
    return _IMPLEMENTATIONS[choose("em_routing", _IMPLEMENTATIONS, backend, poses, args)].load()(**args)


def em_routing_steps(
    scores: Float[Tensor, "*b i"],
    poses: Float[Tensor, "*b i r d"],
    weight: Transform,
    bias: Bias | None,
    beta_use: Beta,
    beta_ignore: Beta,
    n_iters: int = 3,
) -> Iterator[EMStep]:
    """Yield every pass of Algorithm 1. The same maths as `em_routing`, in the open."""
    _check(scores, poses, weight, bias, beta_use, beta_ignore, n_iters)
    dtype, n_out = torch.promote_types(poses.dtype, torch.float32), beta_use.shape[-1]
    beta_use, beta_ignore = beta_use.to(dtype), beta_ignore.to(dtype)
    gates = scores.to(dtype).sigmoid().unsqueeze(-1)  # [*b i 1]
    # what is masked may hold NaN, and 0 · NaN is not 0
    votes = _votes(poses.masked_fill((gates == 0).unsqueeze(-1), 0), weight, bias, n_out, dtype)  # [*b i j r e]
    probabilities = votes.new_full(votes.shape[:-2], 1 / n_out)  # [*b i j]
    for t in range(n_iters):
        if t > 0:
            # the density's factor of 2π is the same for all outputs
            log_density = -(off.square() / (2 * variances).unsqueeze(-4)).sum((-2, -1)) - variances.log().sum((-2, -1)).unsqueeze(-2) / 2
            probabilities = (logsigmoid(found).unsqueeze(-2) + log_density).softmax(-1)
        used = gates * probabilities  # [*b i j]
        found = (beta_use * used - beta_ignore * (gates - used)).sum(-2)  # [*b j]
        share = used[..., None, None]
        total = share.sum(-4) + EPS
        means = (share * votes).sum(-4) / total
        off = votes - means.unsqueeze(-4)
        variances = (share * off.square()).sum(-4) / total + EPS
        yield EMStep(probabilities, found.to(scores.dtype), means.to(poses.dtype), variances.to(poses.dtype))


def _reference(**args) -> EMRouted:
    *_, last = em_routing_steps(**args)
    return EMRouted(last.scores, last.poses, last.variances)


@cache
def _compiled() -> Callable[..., EMRouted]:
    program = torch.compile(_reference, fullgraph=True)

    def run(**args) -> EMRouted:
        with many_programs():
            return program(**args)

    return run


def _triton() -> Callable[..., EMRouted]:
    from torchcaps.ops.em_triton import routed

    return lambda **args: EMRouted(*routed(**args))


def _not_for_triton(**args) -> str | None:
    from torchcaps.ops.em_triton import refuses

    return refuses(**args)


_IMPLEMENTATIONS = {
    "reference": Implementation(load=lambda: _reference),
    "compiled": Implementation(load=_compiled, refuses=cannot_compile),
    "triton": Implementation(load=_triton, refuses=_not_for_triton),
}


def _votes(poses, weight, bias, n_out: int, dtype: torch.dtype) -> Float[Tensor, "*b i j r e"]:
    pairs = {2: "...ird,de->...ire", 3: "...ird,jde->...ijre", 4: "...ird,ijde->...ijre"}[weight.ndim]
    votes = torch.einsum(pairs, poses, weight).to(dtype)
    if bias is not None:
        votes = votes + bias.to(dtype)
    return votes.unsqueeze(-3).expand(*votes.shape[:-2], n_out, *votes.shape[-2:]) if weight.ndim == 2 else votes


def _check(scores, poses, weight, bias, beta_use, beta_ignore, n_iters) -> None:
    """Refuse what einsum and broadcasting would let pass in silence."""
    if n_iters < 1:
        raise ValueError(f"em_routing needs at least one pass, got n_iters={n_iters}")
    if poses.ndim < 3 or weight.ndim not in (2, 3, 4):
        raise ValueError(
            "em_routing expects poses [*b i r d] and a weight [i j d e], [j d e] or [d e]; "
            f"got {list(poses.shape)} and {list(weight.shape)}"
        )
    n_in, rows, d_in = poses.shape[-3:]
    if scores.shape != poses.shape[:-2]:
        raise ValueError(f"em_routing: poses {list(poses.shape)} need scores {list(poses.shape[:-2])}, got {list(scores.shape)}")
    if weight.shape[-2] != d_in:
        raise ValueError(f"em_routing: the weight {list(weight.shape)} takes poses with rows of {weight.shape[-2]} numbers, got {d_in}")
    if weight.ndim == 4 and weight.shape[0] != n_in:
        raise ValueError(
            f"em_routing: the weight {list(weight.shape)} is for {weight.shape[0]} capsules, got {n_in}; "
            "share it over the inputs with a weight [j d e], or rebuild it"
        )
    wanted = (*weight.shape[:-2], rows, weight.shape[-1])
    if bias is not None and tuple(bias.shape) != wanted:
        raise ValueError(f"em_routing: bias must be {list(wanted)} for this weight, got {list(bias.shape)}")
    # one transform for all does not say how many outputs there are, so the betas do
    wanted = tuple(weight.shape[:-2]) if weight.ndim > 2 else tuple(beta_use.shape[-1:])
    for name, beta in (("beta_use", beta_use), ("beta_ignore", beta_ignore)):
        if tuple(beta.shape) != wanted or beta.ndim == 0:
            raise ValueError(f"em_routing: {name} must be {list(wanted) or '[j]'} for this weight, got {list(beta.shape)}")
    if beta_use.shape[-1] == 0:
        raise ValueError("em_routing needs at least one output capsule, got none")
