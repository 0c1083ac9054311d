"""Proves by torch's gradcheck and gradgradcheck that every op's first and second derivatives are right in float64.

The table is held against all functions that `torchcaps.ops` exports: a new one has to be added, or to say why it has
no gradient. Files of tests/ops check each op's variants (rules, sharing, densities) beyond its plain form here.
"""

from collections.abc import Callable, Iterator
from inspect import isfunction

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError

from torchcaps import ops

F64 = torch.float64
PRESENT = torch.eye(3, dtype=F64)[[0, 2]]
GRID = ops.local_grid(2, 3, 2)
NO_GRADIENT = {
    "after_batch": "counts",
    "boosted_ranks": "whole numbers",
    "count_wins": "whole numbers",
    "dynamic_routing_backend": "a name",
    "em_routing_backend": "a name",
    "matrix_em_routing_backend": "a name",
    "local_grid": "tables of whole numbers",
    "own_output_prior": "logits that depend on masks alone",
    "rank_mask": "a function of ranks",
    "without_kernels": "a context",
}


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=F64)


def positive(*shape: int) -> Tensor:
    """Between 0.1 and 0.8: lengths, activities, shares."""
    return torch.rand(shape, dtype=F64) * 0.7 + 0.1


def last(steps: Iterator[tuple]) -> tuple[Tensor, ...]:
    """All that the last step of an iterator holds."""
    *_, found = steps
    return tuple(found)


def lazily(op: Callable) -> Callable:
    def call(scores, poses, beta_use, beta_ignore, *weights):
        return op(scores, poses, ops.LazyWeights(*weights), beta_use, beta_ignore)

    return call


def routing() -> tuple[Tensor, ...]:
    return normal(1, 3, 2), normal(3, 2, 2, 2) / 2, normal(2, 2)


def em() -> tuple[Tensor, ...]:
    return normal(1, 3), normal(1, 3, 1, 2), normal(3, 2, 2, 2), normal(3, 2, 1, 2), normal(3, 2), normal(3, 2)


def matrix_em() -> tuple[Tensor, ...]:
    return normal(1, 6), normal(1, 6, 1, 2), normal(1, 4, 2, 2, 2), normal(2), normal(2)


def lazy() -> tuple[Tensor, ...]:
    weights = normal(2, 2), normal(2, 3), normal(2, 3), normal(3, 2), normal(2, 2), normal(2, 2), normal(3, 2)
    return normal(1, 3), normal(1, 3, 2), normal(3, 2), normal(3, 2), *weights, normal(3, 2)


def attentive() -> tuple[Tensor, ...]:
    return normal(1, 3, 2), normal(3, 2, 2, 2) / 2, normal(3, 2)


def self_routed() -> tuple[Tensor, ...]:
    return positive(1, 3), normal(1, 3, 2), normal(3, 2, 2, 2), normal(3, 2, 2), normal(3, 2)


def ladder() -> tuple[Tensor, ...]:
    return normal(1, 3, 2), normal(1, 2, 3, 2, 2), positive(1, 2, 3)


WARM = {"grid": GRID, "inverse_temperature": 0.3}
# name of the op: how it is called, and what it is differentiated by
CASES: dict[str, tuple[Callable, Callable[[], tuple[Tensor, ...]]]] = {
    "code_loss": (lambda activity: ops.code_loss(PRESENT, activity), lambda: (positive(2, 3),)),
    "conv_silu_with_sums": (
        lambda *x: ops.conv_silu_with_sums(*x, torch.ones(2)),
        lambda: (normal(1, 2, 4, 4), normal(2, 2, 3, 3), normal(2)),
    ),
    "convolve": (ops.convolve, lambda: (normal(1, 2, 4, 4), normal(2, 2, 3, 3), normal(2))),
    "convolve_relu": (ops.convolve_relu, lambda: (normal(1, 2, 4, 4), normal(2, 2, 3, 3), normal(2))),
    "cross_entropy_loss": (lambda scores: ops.cross_entropy_loss(scores, PRESENT), lambda: (normal(2, 3),)),
    "dynamic_routing": (ops.dynamic_routing, routing),
    "dynamic_routing_steps": (lambda *x: last(ops.dynamic_routing_steps(*x)), routing),
    "em_routing": (ops.em_routing, em),
    "em_routing_steps": (lambda *x: last(ops.em_routing_steps(*x)), em),
    "inverted_routing": (lambda poses, weight, _: ops.inverted_routing(poses, weight), attentive),
    "inverted_routing_steps": (lambda poses, weight, _: last(ops.inverted_routing_steps(poses, weight)), attentive),
    "keep_most_active": (
        lambda poses: ops.keep_most_active(poses, poses.square().sum(-1), 2).poses,
        lambda: (normal(1, 3, 2),),
    ),
    "ladder_activity": (ops.ladder_activity, lambda: (positive(2, 3), positive())),
    "lazy_routing": (lazily(ops.lazy_routing), lazy),
    "lazy_routing_steps": (lazily(lambda *x: last(ops.lazy_routing_steps(*x))), lazy),
    "length": (ops.length, lambda: (normal(2, 3),)),
    "likelihood_loss": (lambda scores: ops.likelihood_loss(scores, PRESENT), lambda: (normal(2, 3),)),
    "local_routing": (
        lambda *x: ops.local_routing(*x, GRID),
        lambda: (normal(1, 6, 2), normal(1, 4, 2, 2, 2) / 2, normal(2, 2)),
    ),
    "margin_loss": (lambda lengths: ops.margin_loss(lengths, PRESENT), lambda: (positive(2, 3) + 0.05,)),
    "matrix_em_routing": (lambda *x: ops.matrix_em_routing(*x, **WARM), matrix_em),
    "matrix_em_routing_steps": (lambda *x: last(ops.matrix_em_routing_steps(*x, **WARM)), matrix_em),
    "misfit": (ops.misfit, lambda: (normal(1, 2, 3, 2), normal(1, 3, 2), positive(1, 3) + 1)),
    "presence_loss": (lambda logits: ops.presence_loss(logits, PRESENT), lambda: (normal(2, 3),)),
    "propagate": (ops.propagate, ladder),
    "reconstruction_loss": (ops.reconstruction_loss, lambda: (normal(2, 1, 2, 2), normal(2, 1, 2, 2))),
    "recover_couplings": (lambda *x: ops.recover_couplings(*x), lambda: (*routing()[:2], normal(1, 2, 2))),
    "recover_support": (lambda *x: ops.recover_support(*x, n_types=3), lambda: (*routing()[:2], normal(1, 2, 2))),
    "regress": (ops.regress, lambda: (normal(1, 2, 2), normal(1, 2, 3, 2, 2))),
    "routing_support": (lambda couplings: ops.routing_support(couplings, 2), lambda: (positive(1, 4, 2),)),
    "self_attention_routing": (ops.self_attention_routing, attentive),
    "self_attention_routing_steps": (lambda *x: last(ops.self_attention_routing_steps(*x)), attentive),
    "self_routing": (ops.self_routing, self_routed),
    "self_routing_steps": (lambda *x: last(ops.self_routing_steps(*x)), self_routed),
    "silu_with_sums": (lambda *x: ops.silu_with_sums(*x, torch.ones(4)), lambda: (normal(2, 3, 4), normal(4))),
    "spread_loss": (lambda scores: ops.spread_loss(scores, PRESENT, margin=0.9), lambda: (positive(2, 3),)),
    "squash": (ops.squash, lambda: (normal(2, 3),)),
    "squash_exponential": (ops.squash_exponential, lambda: (normal(2, 3),)),
    "unsquash": (ops.unsquash, lambda: (normal(2, 3) / 6,)),
}


def test_the_table_has_every_exported_function():
    exported = {name for name in ops.__all__ if isfunction(getattr(ops, name))}
    assert exported == CASES.keys() | NO_GRADIENT.keys() and not CASES.keys() & NO_GRADIENT.keys()
    assert len(CASES) == 38 and len(NO_GRADIENT) == 10


def leaves(name: str) -> tuple[Tensor, ...]:
    return tuple(tensor.requires_grad_() for tensor in CASES[name][1]())


def differentiable(name: str) -> Callable[..., tuple[Tensor, ...]]:
    """Outputs without those that depend on nothing."""

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        found = CASES[name][0](*inputs)
        found = (found,) if isinstance(found, Tensor) else tuple(found)
        return tuple(part for part in found if part.requires_grad)

    return call


@pytest.mark.parametrize("name", CASES)
def test_first_derivatives(name):
    assert gradcheck(differentiable(name), leaves(name), fast_mode=True)


# the steps of these are what the op itself runs
SLOW = {"em_routing_steps", "lazy_routing_steps", "matrix_em_routing_steps"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CASES]
)
def test_second_derivatives(name):
    assert gradgradcheck(differentiable(name), leaves(name), fast_mode=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_whole_jacobian(name):
    """Every entry of the first derivatives, not a random direction."""
    assert gradcheck(differentiable(name), leaves(name))


def test_the_check_sees_a_gradient_that_is_cut():
    """`detach` leaves out the votes of all iterations but the last: no longer the slope."""
    with pytest.raises(GradcheckError):
        gradcheck(lambda *x: ops.dynamic_routing(*x, detach=True).poses, leaves("dynamic_routing"), fast_mode=True)
