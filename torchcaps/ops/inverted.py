"""Inverted dot-product attention routing (Tsai, Srivastava, Goh, Salakhutdinov 2020).

Paper's symbols: input poses p_i, transforms W_ij, votes v_ij, agreements a_ij, routing probabilities r_ij, output poses
p_j. Attention is inverted: outputs compete for an input, and an input is shared among them. Per iteration:

    a_ij = p_j · v_ij (0 in the first iteration),  r_ij = softmax over j of a_ij,  p_j = LayerNorm(Σ_i r_ij v_ij)

A capsule has no activity: poses are normalised, not squashed.
"""

from collections.abc import Iterator

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import layer_norm

from torchcaps.ops.dynamic.reference import RoutingStep
from torchcaps.ops.self_attention import check_pairs
from torchcaps.ops.votes import votes_of

NormWeight = Float[Tensor, "e"] | None


def inverted_routing(
    poses: Float[Tensor, "*b i d"],
    weight: Float[Tensor, "n j d2 e2"],
    n_iters: int = 2,
    *,
    rows: int = 1,
    scale: NormWeight = None,
    bias: NormWeight = None,
    start: Float[Tensor, "*b j e"] | None = None,
) -> Float[Tensor, "*b j e"]:
    """Share every input among the outputs that agree with its votes.

    `rows`: poses are matrices of so many rows, written row by row; a weight multiplies each row, [i j d/rows e/rows].
    A weight for n types is shared by the inputs of a type, which follow each other.
    `scale` and `bias` of the layer norm. `start`: output poses that the first iteration agrees with, in place of none.
    Computed in float32 at least; the poses come back in the dtype of the poses.
    """
    *_, last = inverted_routing_steps(poses, weight, n_iters, rows=rows, scale=scale, bias=bias, start=start)
    return last.poses


def inverted_routing_steps(
    poses: Float[Tensor, "*b i d"],
    weight: Float[Tensor, "n j d2 e2"],
    n_iters: int = 2,
    *,
    rows: int = 1,
    scale: NormWeight = None,
    bias: NormWeight = None,
    start: Float[Tensor, "*b j e"] | None = None,
) -> Iterator[RoutingStep]:
    """Yield every iteration, as `inverted_routing` computes it."""
    _check(poses, weight, n_iters, rows, scale, bias, start)
    n_out, d_out = weight.shape[1], weight.shape[3] * rows
    by_row = poses.unflatten(-1, (rows, poses.shape[-1] // rows)).movedim(-2, -3)  # [*b r i d/r]
    votes = rearrange(votes_of(by_row, weight, n_out), "... r i j e -> ... i j (r e)")
    dtype = torch.promote_types(votes.dtype, torch.float32)
    votes = votes.to(dtype)
    scale, bias = (None if part is None else part.to(dtype) for part in (scale, bias))
    parents = start
    for _ in range(n_iters):
        if parents is None:
            logits = votes.new_zeros(votes.shape[:-1])
        else:
            logits = (votes * parents.to(dtype).unsqueeze(-3)).sum(-1)  # [*b i j]
        couplings = logits.softmax(-1)
        total = (couplings.unsqueeze(-1) * votes).sum(-3)
        parents = layer_norm(total, (d_out,), scale, bias)
        yield RoutingStep(logits, couplings, parents.to(poses.dtype))


def _check(poses, weight, n_iters, rows, scale, bias, start) -> None:
    """Refuse what einsum and broadcasting would let pass in silence."""
    if n_iters < 1:
        raise ValueError(f"inverted_routing needs at least one iteration, got n_iters={n_iters}")
    if rows < 1 or poses.shape[-1] % rows:
        raise ValueError(f"inverted_routing: poses of {poses.shape[-1]} dimensions do not form matrices of {rows} rows")
    check_pairs("inverted_routing", poses[..., : poses.shape[-1] // rows], weight)
    n_out, d_out = weight.shape[1], weight.shape[3] * rows
    if d_out < 2:
        raise ValueError("inverted_routing: layer norm leaves nothing of one number; give outputs of two or more")
    wanted = {"scale": (d_out,), "bias": (d_out,), "start": (*poses.shape[:-2], n_out, d_out)}
    for name, given in {"scale": scale, "bias": bias, "start": start}.items():
        if given is not None and tuple(given.shape) != wanted[name]:
            raise ValueError(f"inverted_routing: {name} must be {list(wanted[name])}, got {list(given.shape)}")
