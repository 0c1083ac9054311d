"""EM routing, in the open: every output capsule is a Gaussian over the votes it uses (Heinsen 2019, Algorithm 1).

Paper's symbols: input scores a_i, input poses μ_icd, transforms W, biases B, votes V_ijch, routing probabilities R_ij,
data used D^use_ij and ignored D^ign_ij, net benefit to use β^use and net cost to ignore β^ign; output scores a_j, poses
μ_jch, variances σ²_jch. Letters here: r rows of a matrix pose (paper: c), d input column, e output column (paper: h).
A score is what a logistic function is applied to: its gate f(a) is the share of the capsule that is there at all.

The shape of a transform says who shares it: `[i j d e]` one per pair, for a fixed number of inputs (bias `[i j r e]`,
betas `[i j]`); `[n j d e]` shared by the places of each of n types, for inputs ordered by type (bias `[n j r e]`, betas
`[n j]`); `[j d e]` shared by any number of inputs (bias `[j r e]`, betas `[j]`); `[d e]` one for everything (bias
`[r e]`, betas `[j]`, which say how many outputs there are; with equal betas these are all the same).

The same tensor for both betas ties them (section 3.5.1: ignoring costs what using would bring); `beta_ignore` of zeros
is routing without a cost. `density` names the model of the votes; densities.py defines each.

A score of -inf is a mask: the input counts for nothing whatever its pose holds, NaN included, and gets a gradient of
zero. +inf is a capsule that is there for certain; scores log(x / (1 - x)) make the share x of it there, as mixup needs.
Where every input of a sample is masked, scores and poses are 0 and variances 1e-5.

With one transform for everything and betas that do not tell the outputs apart (section 3.1.1: as many outputs as
inputs, any number of both), all outputs see the same votes and stay the same for ever. `prior`, logits of the first R,
breaks the symmetry: `own_output_prior` favours i = j.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from torchcaps.ops.em.densities import DENSITIES, density_named, fit
from torchcaps.ops.votes import over_places

INF = float("inf")

Transform = Float[Tensor, "n j d e"] | Float[Tensor, "j d e"] | Float[Tensor, "d e"]
Bias = Float[Tensor, "n j r e"] | Float[Tensor, "j r e"] | Float[Tensor, "r e"]
Beta = Float[Tensor, "n j"] | Float[Tensor, "j"]
Prior = Float[Tensor, "*b i j"] | Float[Tensor, "i j"]


class EMRouted(NamedTuple):
    """Model and score of every output capsule.

    Example:

        weight, cost = torch.randn(32, 10, 4, 4), torch.ones(32, 10)
        routed = em_routing(torch.zeros(32), torch.randn(32, 4, 4), weight, None, cost, cost)
        list(routed.scores.shape), list(routed.poses.shape)  # ([10], [10, 4, 4])
    """

    scores: Float[Tensor, "*b j"]
    poses: Float[Tensor, "*b j r e"]
    variances: Float[Tensor, "*b j r e"]


class EMStep(NamedTuple):
    """One iteration of the routing, for figures and tests.

    Example:

        weight, cost = torch.randn(32, 10, 4, 4), torch.ones(32, 10)
        steps = list(em_routing_steps(torch.zeros(32), torch.randn(32, 4, 4), weight, None, cost, cost, n_iters=3))
        len(steps), list(steps[-1].used.shape)  # (3, [32, 10])
    """

    probabilities: Float[Tensor, "*b i j"]  # R, of input i belonging to output j
    used: Float[Tensor, "*b i j"]  # D^use, what output j uses of input i
    ignored: Float[Tensor, "*b i j"]  # D^ign, what it ignores of it; with the gated-off 1 - f(a_i), both make 1
    scores: Float[Tensor, "*b j"]
    poses: Float[Tensor, "*b j r e"]
    variances: Float[Tensor, "*b j r e"]


def em_routing_steps(
    scores: Float[Tensor, "*b i"],
    poses: Float[Tensor, "*b i r d"],
    weight: Transform,
    bias: Bias | None,
    beta_use: Beta,
    beta_ignore: Beta,
    n_iters: int = 3,
    *,
    density: str = "gaussian",
    prior: Prior | None = None,
) -> Iterator[EMStep]:
    """Yield every iteration of Algorithm 1, as `em_routing` computes it."""
    check(scores, poses, weight, bias, beta_use, beta_ignore, n_iters, density, prior)
    weight, bias, beta_use, beta_ignore = over_inputs(poses.shape[-3], weight, bias, beta_use, beta_ignore)
    model, dtype, n_out = DENSITIES[density], torch.promote_types(poses.dtype, torch.float32), beta_use.shape[-1]
    beta_use, beta_ignore = beta_use.to(dtype), beta_ignore.to(dtype)
    gates = scores.to(dtype).sigmoid().unsqueeze(-1)  # [*b i 1]
    # masked inputs may hold NaN, and 0 · NaN is not 0
    votes = _votes(poses.masked_fill((gates == 0).unsqueeze(-1), 0), weight, bias, n_out, dtype)  # [*b i j r e]
    shape, trust = votes.shape[:-2], None
    probabilities = votes.new_full(shape, 1 / n_out) if prior is None else prior.to(dtype).softmax(-1).expand(shape)
    for t in range(n_iters):
        if t > 0:
            logits = logsigmoid(found).unsqueeze(-2) + model.log(fitted.off, fitted.variances)
            probabilities = (logits if prior is None else logits.masked_fill(prior == -INF, -INF)).softmax(-1)
            trust = model.trust(fitted.off, fitted.variances) if model.trust else None
        used = gates * probabilities  # [*b i j]
        benefit = beta_use * used
        ignored = gates - used
        found = (benefit - beta_ignore * ignored).sum(-2)  # [*b j]
        fitted = fit(model, used, votes, trust)
        models = fitted.means.to(poses.dtype), fitted.variances.to(poses.dtype)
        yield EMStep(probabilities, used, ignored, found.to(scores.dtype), *models)


def own_output_prior(scores: Float[Tensor, "*b i"]) -> Float[Tensor, "*b i i"]:
    """Make logits that give about half of every input to the output of its own index and share the rest evenly.

    For as many outputs as inputs: the output of a masked input is closed to all, so that padding changes nothing.
    """
    gone = (scores == -INF).unsqueeze(-2)  # [*b 1 j]
    gone = gone & ~gone.all(-1, keepdim=True)  # where all are masked, an input must still have somewhere to go
    n_there = (~gone).sum(-1, keepdim=True)
    own = torch.eye(scores.shape[-1], dtype=scores.dtype, device=scores.device)
    return (own * n_there.to(scores.dtype).log()).masked_fill(gone, -INF)


def over_inputs(n_in: int, weight: Tensor, *others: Tensor | None) -> list[Tensor | None]:
    """Repeat the parameters of each type for its places; parameters that all inputs share stay as they are."""
    if weight.ndim < 4 or len(weight) == n_in:
        return [weight, *others]
    return [None if x is None else over_places(x, n_in) for x in (weight, *others)]


def routed(**args) -> EMRouted:
    """Route with all votes in memory: what every other implementation must equal."""
    *_, last = em_routing_steps(**args)
    return EMRouted(last.scores, last.poses, last.variances)


def _votes(poses, weight, bias, n_out: int, dtype: torch.dtype) -> Float[Tensor, "*b i j r e"]:
    pairs = {2: "...ird,de->...ire", 3: "...ird,jde->...ijre", 4: "...ird,ijde->...ijre"}[weight.ndim]
    if poses.dtype == torch.float16:  # votes could overflow
        poses, weight = poses.to(dtype), weight.to(dtype)
    votes = torch.einsum(pairs, poses, weight).to(dtype)
    if bias is not None:
        votes = votes + bias.to(dtype)
    return votes.unsqueeze(-3).expand(*votes.shape[:-2], n_out, *votes.shape[-2:]) if weight.ndim == 2 else votes


def check(scores, poses, weight, bias, beta_use, beta_ignore, n_iters, density, prior) -> None:
    """Refuse what einsum and broadcasting would let pass in silence."""
    density_named(density)
    if n_iters < 1:
        raise ValueError(f"em_routing needs at least one iteration, got n_iters={n_iters}")
    if poses.ndim < 3 or weight.ndim not in (2, 3, 4):
        raise ValueError(
            "em_routing expects poses [*b i r d] and a weight [i j d e], [n j d e] for n types, [j d e] or [d e]; "
            f"got {list(poses.shape)} and {list(weight.shape)}"
        )
    n_in, rows, d_in = poses.shape[-3:]
    if scores.shape != poses.shape[:-2]:
        raise ValueError(
            f"em_routing: poses {list(poses.shape)} need scores {list(poses.shape[:-2])}, got {list(scores.shape)}"
        )
    if weight.shape[-2] != d_in:
        raise ValueError(
            f"em_routing: the weight {list(weight.shape)} takes poses with rows of {weight.shape[-2]} dimensions, "
            f"got {d_in}"
        )
    n_types = len(weight) if weight.ndim == 4 else n_in
    if n_types != n_in and (not 0 < n_types < n_in or n_in % n_types):
        raise ValueError(
            f"em_routing: the weight {list(weight.shape)} is for {n_types} capsules, or types of as many each, and got "
            f"{n_in}; share it over the inputs with a weight [j d e], or rebuild it"
        )
    wanted = (*weight.shape[:-2], rows, weight.shape[-1])
    if bias is not None and tuple(bias.shape) != wanted:
        raise ValueError(f"em_routing: bias must be {list(wanted)} for this weight, got {list(bias.shape)}")
    # one transform for all does not say how many outputs there are, so the betas do
    wanted = tuple(weight.shape[:-2]) if weight.ndim > 2 else tuple(beta_use.shape[-1:])
    for name, beta in (("beta_use", beta_use), ("beta_ignore", beta_ignore)):
        if tuple(beta.shape) != wanted or beta.ndim == 0:
            raise ValueError(
                f"em_routing: {name} must be {list(wanted) or '[j]'} for this weight, got {list(beta.shape)}"
            )
    if beta_use.shape[-1] == 0:
        raise ValueError("em_routing needs at least one output capsule, got none")
    pairs = [n_in, beta_use.shape[-1]]
    if prior is not None and list(prior.shape) not in (pairs, [*scores.shape[:-1], *pairs]):
        raise ValueError(f"em_routing: prior logits must be {pairs}, or that for every sample, got {list(prior.shape)}")
