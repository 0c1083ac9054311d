"""Matrix EM routing on CUDA without the votes: two ops that torch sees, `fit` and `densities`, and plain PyTorch.

Votes [s v h m] are made in registers, again in every pass. Kept for the backward pass: the poses as parents see them
[s v r d], and one logit per vote and output type [s v m] of every iteration but the first. The shares of a child among
parents of all places follow from sums over types, which are small and stay in PyTorch. No kernel adds up by atomics:
the same inputs give the same bits. All arithmetic is float32 whatever the inputs are. Tensors lie as triton_forward.py
says.
"""

from math import log

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid, pad
from torch.utils.checkpoint import checkpoint

from torchcaps.ops.backend import cannot_run_kernels, cannot_span_devices, is_exporting
from torchcaps.ops.kernel_op import kernel_op
from torchcaps.ops.matrix_em import triton_launch
from torchcaps.ops.matrix_em.reference import ABSENT, EPSILON, RISE, Field, MatrixEMRouted, _Fitted
from torchcaps.ops.matrix_em.triton_launch import LANES, Problem, Slopes
from torchcaps.ops.tiles import ceil_div

LARGEST = 16  # numbers of a pose, of a transform: they lie in registers


def refuses(scores, poses, weight, beta_use, beta_activate, n_iters, grid, coordinates, *rest, **more) -> str | None:
    """Say why the Triton backend cannot run these arguments, or None."""
    if reason := cannot_run_kernels(poses):
        return reason
    tensors = [x for x in (scores, poses, weight, beta_use, beta_activate, coordinates) if x is not None]
    if reason := cannot_span_devices(tensors):
        return reason
    if wide := {x.dtype for x in tensors} - {torch.float32, torch.bfloat16, torch.float16}:
        return f"computes in float32, got {', '.join(map(str, wide))}; convert the input"
    rows, d_in, d_out = *poses.shape[-2:], weight.shape[-1]
    if max(rows * d_in, rows * d_out, d_in * d_out) > LARGEST:
        return (
            f"keeps poses and transforms in registers, at most {LARGEST} numbers each, got poses "
            f"{rows}x{d_in} -> {rows}x{d_out}; make them smaller"
        )
    if 0 in poses.shape or 0 in weight.shape:
        return f"needs capsules, got poses {list(poses.shape)} and a weight {list(weight.shape)}; give some"
    if is_exporting():  # for any batch, and parents are laid out in groups
        return "does not run inside torch.export; leave the choice to backend='auto'"
    if coordinates is not None and coordinates.requires_grad:
        return "has no gradient of the coordinates; detach them"
    return None


def routed(
    scores, poses, weight, beta_use, beta_activate, n_iters, grid, coordinates,
    inverse_temperature, density_power, recompute,
) -> MatrixEMRouted:  # fmt: skip
    """Compute scores, poses and variances, like the reference."""
    field = Field(scores, poses, weight, grid)
    seen = field.seen(poses)  # [n k v rd]
    places, n_parents = seen.shape[1:3]
    seen = _grouped(rearrange(seen.float(), "n k v x -> (n k) x v"))
    weight = weight.float().reshape(-1, *weight.shape[-3:]).contiguous()
    coordinates = None if coordinates is None else coordinates.float().contiguous()
    beta_use, beta_activate = beta_use.float().unsqueeze(-1), beta_activate.float().unsqueeze(-1)  # [m 1]
    fitted = None
    for t in range(n_iters):
        warmth = inverse_temperature * (1 - RISE ** (t + 1))
        args = (field, density_power, warmth, fitted, seen, weight, coordinates, places, beta_use, beta_activate)
        if recompute and torch.is_grad_enabled():
            fitted = checkpoint(_iterate, *args, use_reentrant=False)
        else:
            fitted = _iterate(*args)
    return field.routed(_Fitted(*(rearrange(x, "g m ... l -> (g l) ... m")[:n_parents] for x in fitted)))


def _iterate(
    field: Field, density_power: float, warmth: float, fitted: _Fitted | None, seen: Tensor, weight: Tensor,
    coordinates: Tensor | None, places: int, beta_use: Tensor, beta_activate: Tensor,
) -> _Fitted:  # fmt: skip
    """E- and M-step, as in the reference, of tensors in groups of parents."""
    common = seen, weight, coordinates, places
    if fitted is None:
        logits, claims = None, torch.full_like(field.log_activity, log(weight.shape[1]))
    else:
        ready = logsigmoid(fitted.scores) - density_power / 2 * fitted.variances.log().sum(-2)  # [g m l]
        logits = densities(ready, fitted.means, density_power / 2 / fitted.variances, *common)
        claims = rearrange(logits.logsumexp(2), "g s l -> s (g l)")[:, : field.log_activity.shape[1]]
    offset = _grouped(field.log_activity - field.claimed(claims), ABSENT)
    means, variances, amount, *_ = fit(logits, offset, *common)
    variances = variances + EPSILON
    cost = (means.shape[-2] * beta_use + variances.log().sum(-2) / 2) * amount
    return _Fitted(warmth * (beta_activate - cost), means, variances)


def _grouped(numbers: Float[Tensor, "*a v"], nobody: float = 0.0) -> Float[Tensor, "g *a l"]:
    """Lay out parents in groups, the last one filled up with `nobody`."""
    n_groups = ceil_div(numbers.shape[-1], LANES)
    filled = pad(numbers, (0, n_groups * LANES - numbers.shape[-1]), value=nobody)
    return rearrange(filled, "... (g l) -> g ... l", g=n_groups, l=LANES).contiguous()


def _fitted(logits, offset, seen, weight, coordinates, places):
    n_groups, (_, n_out, d_in, d_out) = seen.shape[0], weight.shape
    models = (seen.new_empty(n_groups, n_out, seen.shape[2] // d_in * d_out, LANES) for _ in range(2))
    return *models, *(seen.new_empty(n_groups, n_out, LANES) for _ in range(3))


@kernel_op("torchcaps::matrix_em_fit", _fitted)
def fit(
    logits: Tensor | None, offset: Tensor, seen: Tensor, weight: Tensor, coordinates: Tensor | None, places: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Fit a Gaussian to the votes of each parent by weights that are the softmax of logits + offset over votes.

    Returns means and variances [g m h l], the sum of exp(logits + offset) [g m l], and what the weights follow from.
    """
    outputs = _fitted(logits, offset, seen, weight, coordinates, places)
    problem = Problem(seen.contiguous(), weight.contiguous(), coordinates, places)
    logits = None if logits is None else logits.contiguous()
    triton_launch.fit(problem, logits, offset.contiguous(), outputs)
    return outputs


def _fit_gradients(grad_means, grad_variances, grad_amount, logits, offset, seen, weight, *rest):
    grad_logits = seen.new_empty(0 if logits is None else logits.shape)
    return grad_logits, offset.new_empty(offset.shape), seen.new_empty(seen.shape), _like_weight(weight, rest[-1])


@kernel_op("torchcaps::matrix_em_fit_backward", _fit_gradients)
def fit_backward(
    grad_means: Tensor, grad_variances: Tensor, grad_amount: Tensor,
    logits: Tensor | None, offset: Tensor, seen: Tensor, weight: Tensor, coordinates: Tensor | None,
    means: Tensor, variances: Tensor, amount: Tensor, highest: Tensor, scale: Tensor, places: int, of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of logits (empty where there are none), offset, poses, weight (empty unless wanted)."""
    problem = Problem(seen.contiguous(), weight.contiguous(), coordinates, places)
    grads = seen.new_empty(0 if logits is None else logits.shape), *(x.new_empty(x.shape) for x in (offset, seen))
    # Σ_s weight · (vote - mean)² is the variance: what softmax subtracts from the gradient of each weight
    level = amount * grad_amount - (grad_variances * variances).sum(-2)
    slopes = Slopes(
        None if logits is None else logits.contiguous(), means, grad_variances.contiguous(),
        grad_means.contiguous(), offset.contiguous(), highest, scale, level.contiguous(),
    )  # fmt: skip
    found = triton_launch.votes_backward(problem, slopes, *grads, of_weight)
    return *grads, _of_types(found, weight)


def _keep_fit(ctx, inputs, output) -> None:
    *tensors, ctx.places = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _fit_backward(ctx, *incoming):
    saved = ctx.saved_tensors  # once: `checkpoint` unpacks no tensor twice
    incoming = [torch.zeros_like(x) if grad is None else grad for grad, x in zip(incoming[:3], saved[5:8], strict=True)]
    of_weight = ctx.needs_input_grad[3]
    grads = fit_backward(*incoming, *saved, ctx.places, of_weight)
    return None if saved[0] is None else grads[0], *grads[1:3], grads[3] if of_weight else None, None, None


def _logits(ready, means, factors, seen, weight, coordinates, places):
    return seen.new_empty(*seen.shape[:2], *means.shape[1:2], LANES)


@kernel_op("torchcaps::matrix_em_densities", _logits)
def densities(
    ready: Tensor, means: Tensor, factors: Tensor,
    seen: Tensor, weight: Tensor, coordinates: Tensor | None, places: int,
) -> Tensor:  # fmt: skip
    """Compute ready - Σ_h factors · (votes - means)² for every vote and parent: [g s m l]."""
    logits = _logits(ready, means, factors, seen, weight, coordinates, places)
    problem = Problem(seen.contiguous(), weight.contiguous(), coordinates, places)
    triton_launch.densities(problem, ready.contiguous(), means.contiguous(), factors.contiguous(), logits)
    return logits


def _density_gradients(grad, means, factors, seen, weight, coordinates, places, of_weight):
    n_groups, n_out = means.shape[:2]
    like = (means.new_empty(means.shape) for _ in range(2))
    return means.new_empty(n_groups, n_out, LANES), *like, seen.new_empty(seen.shape), _like_weight(weight, of_weight)


@kernel_op("torchcaps::matrix_em_densities_backward", _density_gradients)
def densities_backward(
    grad: Tensor, means: Tensor, factors: Tensor,
    seen: Tensor, weight: Tensor, coordinates: Tensor | None, places: int, of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of ready, means, factors, poses, and of weight (empty unless wanted)."""
    problem = Problem(seen.contiguous(), weight.contiguous(), coordinates, places)
    grad, means, grad_seen = grad.contiguous(), means.contiguous(), torch.empty_like(problem.seen)
    partial = triton_launch.moments(problem, grad, means).sum(0)
    slopes = Slopes(grad, means, (-2 * factors).contiguous())
    found = triton_launch.votes_backward(problem, slopes, grad_seen, grad_seen, grad_seen, of_weight)
    firsts, seconds, total = partial.split([problem.numbers, problem.numbers, 1], dim=2)
    grads = total.squeeze(2).clone(), 2 * factors * firsts, -seconds
    return *grads, grad_seen, _of_types(found, weight)


def _keep_densities(ctx, inputs, output) -> None:
    _, *tensors, ctx.places = inputs
    ctx.save_for_backward(*tensors)


def _densities_backward(ctx, grad):
    of_weight = ctx.needs_input_grad[4]
    *grads, grad_weight = densities_backward(grad, *ctx.saved_tensors, ctx.places, of_weight)
    return *grads, grad_weight if of_weight else None, None, None


def _like_weight(weight: Tensor, wanted: bool) -> Tensor:
    return weight.new_empty(weight.shape if wanted else (0,))


def _of_types(found: Tensor | None, weight: Tensor) -> Tensor:
    """Sum the gradients of every vote's transform over the places that share one."""
    if found is None:
        return _like_weight(weight, False)
    return found if found.shape == weight.shape else found.unflatten(0, (len(weight), -1)).sum(1)


def _refuse_second(ctx, *grads):
    raise RuntimeError(
        "matrix_em_routing: the triton backend has no second derivatives; "
        "use backend='reference', or torchcaps.ops.without_kernels()"
    )


fit.register_autograd(_fit_backward, setup_context=_keep_fit)
fit_backward.register_autograd(_refuse_second)
densities.register_autograd(_densities_backward, setup_context=_keep_densities)
densities_backward.register_autograd(_refuse_second)
