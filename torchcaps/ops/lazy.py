"""Routing of long sequences without forming votes (Heinsen 2022, "An Algorithm for Routing Vectors in Sequences").

Every output predicts the inputs, is given those that it predicts best, and gets credit for them: benefit for what it
uses less cost for what it ignores, as in EM routing (Heinsen 2019, Eq. 8). An output is the sum of its votes, each
times its credit.

Paper's symbols: inputs x_id, input scores a_i, votes V_ijh, predicted inputs x̂_jd, similarities S_ij, routing
probabilities R_ij, data used D^use_ij and ignored D^ign_ij, "bang per bit" φ_ij, here `credit`, outputs x_jh (here h is
e). With n inputs that are not masked, f the logistic function and N a normalization to mean 0 and variance 1, per
iteration:

    R = 1 / j in the first iteration, later softmax over j of S
        with x̂_jd = Σ_e N(x_je) W^G1_ed W^G2_jd + B^G2_jd  and  S_ij = log f(W^S_ij Σ_d x_id x̂_jd + B^S_ij)
    D^use = f(a_i) R,  D^ign = f(a_i) - D^use,  φ = β^use D^use - β^ign D^ign
    x_je = Σ_i φ_ij V_ije  with  V_ije = Σ_d (x_id / √n) W^F1_jd W^F2_de + B^F2_je

The last sum is taken over i first: Σ_d (Σ_i φ_ij x_id / √n) W^F1_jd W^F2_de + (Σ_i φ_ij) B^F2_je. So nothing larger
than [i j], [i d] and [j d] is ever there, where the votes are [i j e].

A score of -inf is a mask: the input counts for nothing whatever it holds, NaN included, gets no credit and a gradient
of zero.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import layer_norm, logsigmoid

PerPair = Float[Tensor, "*b i j"] | Float[Tensor, "i j"] | Float[Tensor, "j"]


class LazyWeights(NamedTuple):
    """Parameters of votes, predictions and similarities.

    Example:

        mix, ones = torch.randn(10, 8), torch.ones(32, 10)
        votes = mix, torch.randn(8, 16), torch.zeros(10, 16)
        weights = LazyWeights(*votes, torch.randn(16, 8), mix, 0 * mix, ones, ones)
        list(lazy_routing(torch.zeros(32), torch.randn(32, 8), weights, ones, ones).poses.shape)  # [10, 16]
    """

    vote_mix: Float[Tensor, "j d"]  # W^F1
    vote: Float[Tensor, "d e"]  # W^F2
    vote_bias: Float[Tensor, "j e"]  # B^F2
    guess: Float[Tensor, "e d"]  # W^G1
    guess_mix: Float[Tensor, "j d"]  # W^G2
    guess_bias: Float[Tensor, "j d"]  # B^G2
    match: Float[Tensor, "i j"] | Float[Tensor, "j"]  # W^S; [j] for any number of inputs
    match_bias: Float[Tensor, "i j"] | Float[Tensor, "j"]  # B^S


class LazyRouted(NamedTuple):
    """Output poses, and the credit that made them.

    Example:

        mix, ones = torch.randn(10, 8), torch.ones(32, 10)
        votes = mix, torch.randn(8, 16), torch.zeros(10, 16)
        weights = LazyWeights(*votes, torch.randn(16, 8), mix, 0 * mix, ones, ones)
        list(lazy_routing(torch.zeros(32), torch.randn(32, 8), weights, ones, ones).credit.shape)  # [32, 10]
    """

    poses: Float[Tensor, "*b j e"]
    credit: Float[Tensor, "*b i j"]  # gain of output j by input i; below zero where the input harms it


class LazyStep(NamedTuple):
    """One iteration of the routing, for figures and tests.

    Example:

        mix, ones = torch.randn(10, 8), torch.ones(32, 10)
        votes = mix, torch.randn(8, 16), torch.zeros(10, 16)
        weights = LazyWeights(*votes, torch.randn(16, 8), mix, 0 * mix, ones, ones)
        steps = list(lazy_routing_steps(torch.zeros(32), torch.randn(32, 8), weights, ones, ones, n_iters=2))
        len(steps), list(steps[-1].used.shape)  # (2, [32, 10])
    """

    probabilities: Float[Tensor, "*b i j"]  # R, of input i belonging to output j
    used: Float[Tensor, "*b i j"]
    ignored: Float[Tensor, "*b i j"]
    credit: Float[Tensor, "*b i j"]
    poses: Float[Tensor, "*b j e"]


def lazy_routing(
    scores: Float[Tensor, "*b i"],
    poses: Float[Tensor, "*b i d"],
    weights: LazyWeights,
    beta_use: PerPair,
    beta_ignore: PerPair,
    n_iters: int = 2,
    *,
    normalise: bool = True,
) -> LazyRouted:
    """Send every input vector to the outputs that predict it best.

    `normalise`: each output to mean 0 and variance 1, unless it is a single number. Computed in float32 at least; the
    poses come back in the dtype of the poses.
    """
    *_, last = lazy_routing_steps(scores, poses, weights, beta_use, beta_ignore, n_iters, normalise=normalise)
    return LazyRouted(last.poses, last.credit)


def lazy_routing_steps(
    scores: Float[Tensor, "*b i"],
    poses: Float[Tensor, "*b i d"],
    weights: LazyWeights,
    beta_use: PerPair,
    beta_ignore: PerPair,
    n_iters: int = 2,
    *,
    normalise: bool = True,
) -> Iterator[LazyStep]:
    """Yield every iteration, as `lazy_routing` computes it."""
    _check(scores, poses, weights, beta_use, beta_ignore, n_iters)
    dtype, n_out = torch.promote_types(poses.dtype, torch.float32), len(weights.vote_mix)
    weights, beta_use, beta_ignore = (
        LazyWeights(*(x.to(dtype) for x in weights)),
        beta_use.to(dtype),
        beta_ignore.to(dtype),
    )
    gates = scores.to(dtype).sigmoid().unsqueeze(-1)  # [*b i 1]
    gone = gates == 0
    vectors = poses.to(dtype).masked_fill(gone, 0)  # masked inputs may hold NaN, and 0 · NaN is not 0
    scale = (~gone).sum(-2, keepdim=True).clamp(min=1).to(dtype).rsqrt()  # [*b 1 1]
    probabilities = gates.new_full((*scores.shape, n_out), 1 / n_out)
    for t in range(n_iters):
        if t > 0:
            probabilities = _similarities(vectors, outputs, weights).softmax(-1)
        used = gates * probabilities  # [*b i j]
        ignored = gates - used
        credit = beta_use * used - beta_ignore * ignored
        gathered = torch.einsum("...ij,...id->...jd", credit, vectors) * scale * weights.vote_mix
        outputs = (
            torch.einsum("...jd,de->...je", gathered, weights.vote) + credit.sum(-2).unsqueeze(-1) * weights.vote_bias
        )
        yield LazyStep(
            probabilities, used, ignored, credit, (_normal(outputs) if normalise else outputs).to(poses.dtype)
        )


def _similarities(vectors: Tensor, outputs: Tensor, weights: LazyWeights) -> Float[Tensor, "*b i j"]:
    """Similarity of each input to its prediction by each output: log f of their product."""
    guessed = torch.einsum("...je,ed->...jd", _normal(outputs), weights.guess) * weights.guess_mix + weights.guess_bias
    return logsigmoid(torch.einsum("...id,...jd->...ij", vectors, guessed) * weights.match + weights.match_bias)


def _normal(outputs: Float[Tensor, "*b j e"]) -> Float[Tensor, "*b j e"]:
    """Normalise to mean 0 and variance 1, unless there is a single number, of which nothing would be left."""
    return layer_norm(outputs, outputs.shape[-1:]) if outputs.shape[-1] > 1 else outputs


def _check(scores, poses, weights, beta_use, beta_ignore, n_iters) -> None:
    """Refuse what einsum and broadcasting would let pass in silence."""
    if n_iters < 1:
        raise ValueError(f"lazy_routing needs at least one iteration, got n_iters={n_iters}")
    if poses.ndim < 2 or scores.shape != poses.shape[:-1]:
        raise ValueError(
            f"lazy_routing expects poses [*b i d] and scores [*b i], got {list(poses.shape)} and {list(scores.shape)}"
        )
    if weights.vote_mix.ndim != 2 or weights.vote.ndim != 2:
        raise ValueError(
            "lazy_routing expects vote_mix [j d] and vote [d e], "
            f"got {list(weights.vote_mix.shape)} and {list(weights.vote.shape)}"
        )
    (n_in, d_in), n_out, d_out = poses.shape[-2:], len(weights.vote_mix), weights.vote.shape[-1]
    mix, each = [[n_out, d_in]], [[n_out], [n_in, n_out]]
    wanted = {
        "vote_mix": mix, "vote": [[d_in, d_out]], "vote_bias": [[n_out, d_out]],
        "guess": [[d_out, d_in]], "guess_mix": mix, "guess_bias": mix, "match": each, "match_bias": each,
    }  # fmt: skip
    betas = {"beta_use": beta_use, "beta_ignore": beta_ignore}
    for name, x in (weights._asdict() | betas).items():
        shapes = wanted.get(name) or [*each, [*scores.shape, n_out]]
        if list(x.shape) not in shapes:
            raise ValueError(
                f"lazy_routing: {name} must be {' or '.join(map(str, shapes))} for poses {list(poses.shape)}, "
                f"got {list(x.shape)}; weights with an axis for the inputs are for that number of inputs only"
            )
