"""EM routing on a CPU without the votes, fast where inputs share their transforms.

A vote is affine in its pose x, so all that a Gaussian asks of votes is quadratic in the pose: log densities, and the
sums of an M-step. Both are products with the K features of an input, which are x_d x_d' of every row, x and 1: 57 for
4x4 matrices. So an iteration is two matrix products for each of the n types of inputs, whose p places share a
transform. Probabilities [b n p j], features [b n p k] and factors [b n j k] are written out, votes never.

Sums of squares cancel, so all is float64 and poses are taken from the mean of their type. Variances keep an error of
about 1e-16 (spread of the poses / deviation of the votes)², which shows from a ratio of 1e6 on. Images do not influence
each other, so that a block of a few is routed at a time: temporary tensors stay small.
"""

from functools import partial
from math import prod
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.utils.checkpoint import checkpoint

from torchcaps.ops.backend import inside_transform, is_exporting
from torchcaps.ops.em import reference
from torchcaps.ops.em.densities import EPS
from torchcaps.ops.em.reference import INF, EMRouted

# that the images of a block may keep, see `bytes_of_image`; with a quarter of it routing takes a third longer
BLOCK_BYTES = 32 << 20
KEPT_BYTES = 1 << 30  # that all images may keep for the backward pass; beyond it, blocks are computed again there
FEW_VOTES = 1 << 16  # numbers of all votes, below which the reference has less to prepare
# Costs of one feature for one input, in products with it, fitted on an x86-64 core: to make it, to find its factor in
# the density of an output, and the product of the weight for that. And what a number of a vote costs the reference
COST_FEATURE, COST_FACTOR, COST_WEIGHT, COST_VOTE = 12, 48, 5, 24
NARROW = (torch.float32, torch.bfloat16, torch.float16)


def refuses(scores, poses, weight, bias, beta_use, beta_ignore, n_iters, density, prior) -> str | None:
    """Say why the blocked backend cannot run these arguments, or None."""
    if density != "gaussian":
        return f"knows the Gaussian model of the votes only, got density={density!r}; use density='gaussian'"
    if poses.device.type != "cpu":
        return f"needs tensors on the CPU, got one on {poses.device.type}; move the input"
    if poses.dtype != weight.dtype:
        return f"needs poses and weight of one type, got {poses.dtype} and {weight.dtype}; convert one"
    if wide := {x.dtype for x in (scores, poses, weight)} - {*NARROW}:
        return f"computes inputs of at most 32 bits in float64, got {', '.join(map(str, wide))}; convert the input"
    if inside_transform():
        return "does not run inside torch.func transforms; leave them"
    return "does not run under autocast; leave the region" if torch.is_autocast_enabled("cpu") else None


def loses(scores, poses, weight, bias, beta_use, beta_ignore, n_iters, density, prior) -> bool:
    """Whether the reference should be faster: few votes, few places, or far more features than dimensions of a vote."""
    return _loses(scores.numel(), poses, weight, beta_use.shape[-1], n_iters)


def loses_in_program(scores, poses, weight, bias, beta_use, beta_ignore, n_iters, density, prior) -> bool:
    """Ask the same for one image, since a program is for any batch; one for any number of inputs cannot ask."""
    from torch.fx.experimental.symbolic_shapes import has_static_value  # takes a second, and who traces has it

    n_in = poses.shape[-3]
    return not has_static_value(n_in) or _loses(n_in, poses, weight, beta_use.shape[-1], n_iters)


def _loses(n_inputs: int, poses: Tensor, weight: Tensor, n_out: int, n_iters: int) -> bool:
    (n_in, rows, d_in), d_out, n_types = poses.shape[-3:], weight.shape[-1], _n_types(weight)
    n_votes = n_inputs * n_out * rows * d_out
    if n_votes < FEW_VOTES:
        return True
    of_an_input = COST_FEATURE + (n_iters - 1) / 2 * n_out + n_iters / 3 * COST_FACTOR * n_out * n_types / n_in
    of_the_weight = COST_WEIGHT * n_types * n_out * d_out
    products = n_features(rows, d_in) * (n_inputs * of_an_input + of_the_weight)
    return products > (n_iters + 1) / 4 * COST_VOTE * n_votes


def routed(scores, poses, weight, bias, beta_use, beta_ignore, n_iters, density, prior) -> EMRouted:
    """Compute output scores, poses and variances, like the reference."""
    if 0 in (*poses.shape, *weight.shape):  # nothing to cut into blocks
        parameters = {"weight": weight, "bias": bias, "beta_use": beta_use, "beta_ignore": beta_ignore}
        how = {"n_iters": n_iters, "density": density, "prior": prior}
        return reference.routed(scores=scores, poses=poses, **parameters, **how)
    batch, n_in, n_out, n_types = poses.shape[:-3], poses.shape[-3], beta_use.shape[-1], _n_types(weight)
    weight, bias, beta_use, beta_ignore = (
        _by_type(x, n_types, n_out, n) for x, n in ((weight, 2), (bias, 2), (beta_use, 0), (beta_ignore, 0))
    )
    shared = weight, _products(weight.mT).mT, bias, beta_use, beta_ignore, n_iters
    prior = None if prior is None else prior.expand(*batch, n_in, n_out)
    inputs = [
        None if x is None else x.reshape(-1, n_types, n_in // n_types, *x.shape[len(batch) + 1 :])
        for x in (scores, poses, prior)
    ]
    bytes_each = bytes_of_image(n_types, n_in, n_out, *poses.shape[-2:], weight.shape[-1], n_iters)
    again = torch.is_grad_enabled() and not is_exporting() and bytes_each * prod(batch) > KEPT_BYTES
    size = max(1, BLOCK_BYTES // bytes_each)
    run = partial(checkpoint, route, use_reentrant=False, preserve_rng_state=False) if again else route
    # a program is for any batch
    whole = torch.compiler.is_compiling()
    cuts = [slice(None)] if whole else [slice(first, first + size) for first in range(0, prod(batch), size)]
    blocks = [[None if x is None else x[cut] for x in inputs] for cut in cuts]
    parts = [run(*block, *shared) for block in blocks]
    found = [torch.cat(part) for part in zip(*parts, strict=True)]
    dtypes = scores.dtype, poses.dtype, poses.dtype
    return EMRouted(*(x.reshape(*batch, *x.shape[1:]).to(dtype) for x, dtype in zip(found, dtypes, strict=True)))


def _n_types(weight: Tensor) -> int:
    return len(weight) if weight.ndim == 4 else 1


def _by_type(parameter: Tensor | None, n_types: int, n_out: int, n_axes: int) -> Tensor | None:
    """Give a parameter its axes n and j, in float64 first: the gradients of types and outputs are added up in that."""
    if parameter is None:
        return None
    return parameter.double().expand(n_types, n_out, *parameter.shape[parameter.ndim - n_axes :])


def n_features(rows: int, d_in: int) -> int:
    """Count the features of an input."""
    return rows * (d_in * (d_in + 1) // 2 + d_in) + 1


def bytes_of_image(n_types: int, n_in: int, n_out: int, rows: int, d_in: int, d_out: int, n_iters: int) -> int:
    """Estimate what one image keeps for the backward pass."""
    features = n_features(rows, d_in)
    of_inputs = n_in * (features + 2 * n_iters * n_out)  # probabilities, before and after the gates
    of_types = n_types * n_out * n_iters * (2 * features + 3 * rows * d_out)  # factors, sums, and what votes add up to
    return 8 * (of_inputs + of_types)


class Sums(NamedTuple):
    """Sums over the places of a type, weighted by the data that an output uses of each input."""

    squares: Float[Tensor, "b n j r q"]  # of x_d x_d', for the q pairs d' <= d
    poses: Float[Tensor, "b n j r d"]
    data: Float[Tensor, "b n j"]


class Model(NamedTuple):
    """Gaussian over the votes of an output, and its score. A vote is (x - centre) · weight + `off` from the mean."""

    scores: Float[Tensor, "b j"]
    means: Float[Tensor, "b j r e"]
    variances: Float[Tensor, "b j r e"]
    off: Float[Tensor, "b n j r e"]


def route(
    scores: Float[Tensor, "b n p"],
    poses: Float[Tensor, "b n p r d"],
    prior: Float[Tensor, "b n p j"] | None,
    weight: Float[Tensor, "n j d e"],
    pairs: Float[Tensor, "n j q e"],
    bias: Float[Tensor, "n j r e"] | None,
    beta_use: Float[Tensor, "n j"],
    beta_ignore: Float[Tensor, "n j"],
    n_iters: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Route some images; parameters are float64, `pairs` the products of the weight's rows.

    A vote is (x - centre) · weight + `start`.
    """
    gone = scores.float().sigmoid() == 0  # as the reference has it: float64 knows smaller gates
    gates = scores.double().sigmoid().masked_fill(gone, 0)
    x = poses.masked_fill(gone[..., None, None], 0).double()  # masked inputs may hold NaN
    centre = _centre(x.detach(), gates.detach())
    features = _features(x - centre.unsqueeze(2))
    start = torch.einsum("bnrd,njde->bnjre", centre, weight)
    start = start if bias is None else start + bias
    n_there, n_out = gates.sum(-1, keepdim=True), weight.shape[1]  # [b n 1]
    for t in range(n_iters):
        if t == 0 and prior is None:  # the same for all outputs
            totals = (gates.unsqueeze(-2) @ features / n_out).expand(-1, -1, n_out, -1)
        else:
            logits = prior.double() if t == 0 else features @ _densities(model, weight, pairs).mT
            if t > 0 and prior is not None:
                logits = logits.masked_fill(prior == -INF, -INF)
            totals = (gates.unsqueeze(-1) * logits.softmax(-1)).mT @ features
        sums = _split(totals, *poses.shape[-2:])
        found = (beta_use * sums.data - beta_ignore * (n_there - sums.data)).sum(1)
        model = Model(found, *_fit(sums, weight, pairs, start))
    return model[:3]


def _centre(x: Float[Tensor, "b n p r d"], gates: Float[Tensor, "b n p"]) -> Float[Tensor, "b n r d"]:
    """Mean pose of what is there of a type. Any place would do, but squares cancel least about this one."""
    return torch.einsum("bnp,bnprd->bnrd", gates, x) / gates.sum(-1).clamp_min(EPS)[..., None, None]


def _products(x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n q"]:
    """Multiply all pairs d' <= d. A quadratic form has two of each d' < d, so each of its two sides carries √2."""
    d_in, scaled = x.shape[-1], x * 2.0**0.5
    different = [scaled[..., k:] * x[..., : d_in - k] for k in range(1, d_in)]
    return torch.cat([x.square(), *different], -1)


def _features(x: Float[Tensor, "b n p r d"]) -> Float[Tensor, "b n p k"]:
    return torch.cat([_products(x).flatten(3), x.flatten(3), x.new_ones(*x.shape[:3], 1)], -1)


def _split(totals: Float[Tensor, "b n j k"], rows: int, d_in: int) -> Sums:
    """Undo the order of the features."""
    squares, poses, data = totals.split([rows * d_in * (d_in + 1) // 2, rows * d_in, 1], -1)
    return Sums(squares.unflatten(-1, (rows, -1)), poses.unflatten(-1, (rows, -1)), data.squeeze(-1))


def _fit(
    sums: Sums,
    weight: Float[Tensor, "n j d e"],
    pairs: Float[Tensor, "n j q e"],
    start: Float[Tensor, "b n j r e"],
) -> tuple[Float[Tensor, "b j r e"], Float[Tensor, "b j r e"], Float[Tensor, "b n j r e"]]:
    """M-step: means and variances of the votes, and how far the vote of a pose at the centre is from the mean."""
    data = sums.data[..., None, None]
    total = data.sum(1) + EPS
    votes = torch.einsum("bnjrd,njde->bnjre", sums.poses, weight)  # their sum but for `start`
    means = (votes + data * start).sum(1) / total
    off = start - means.unsqueeze(1)
    squares = torch.einsum("bnjrq,njqe->bnjre", sums.squares, pairs) + 2 * off * votes + off.square() * data
    return means, squares.sum(1).clamp_min(0) / total + EPS, off


def _densities(
    model: Model, weight: Float[Tensor, "n j d e"], pairs: Float[Tensor, "n j q e"]
) -> Float[Tensor, "b n j k"]:
    """E-step: the factors of the features in the logit of an input, log density and log score of every output."""
    precision = 1 / model.variances
    level = model.variances.log().sum((-2, -1)) - 2 * logsigmoid(model.scores)
    weighted = model.off * precision.unsqueeze(1)
    constant = (weighted * model.off).sum((-2, -1)) + level.unsqueeze(1)
    squares = torch.einsum("bjre,njqe->bnjrq", precision, pairs)
    poses = 2 * torch.einsum("bnjre,njde->bnjrd", weighted, weight)
    return torch.cat([squares.flatten(3), poses.flatten(3), constant.unsqueeze(-1)], -1) / -2
