"""Stacked latent capsules: what a mask leaves for the next layer, by agreement and by EM, and what each layer tells."""

import re

import pytest
import torch

from torchcaps.models import StackedCaps
from torchcaps.models.stackedcaps import lessened
from torchcaps.ops import length, reconstruction_loss, routing_support

SMALL = {
    "channels": 8,
    "kernel": 3,
    "n_types": 2,
    "d_primary": 4,
    "primary_kernel": 3,
    "hidden": (16, 8),
    "n_latent": 5,
    "d_latent": 8,
}
each_routing = pytest.mark.parametrize("routing", ["dynamic", "em"])


def small(**options) -> StackedCaps:
    return StackedCaps((1, 12, 12), **SMALL | {"frequencies": (0.1, 0.4)} | options)


def images(rng, n: int = 3) -> torch.Tensor:
    return torch.rand(n, 1, 12, 12, generator=rng)


def test_what_is_left_of_a_score_is_the_masks_share_of_its_gate():
    scores, mask = (
        torch.tensor([-3.0, 0.0, 2.0, 40.0, 1.5, -1.0]).double(),
        torch.tensor([0.5, 0.25, 0.1, 0.5, 1.0, 0.0]).double(),
    )
    scores.requires_grad_()
    less = lessened(scores, mask)
    torch.testing.assert_close(less.sigmoid(), scores.sigmoid() * mask)
    assert less[4] == 1.5 and less[5] == -torch.inf
    less.sigmoid().sum().backward()
    torch.testing.assert_close(scores.grad, mask * scores.sigmoid() * (1 - scores.sigmoid()))


@each_routing
def test_forward_is_the_last_level_and_each_level_sees_what_the_mask_left(routing, rng):
    model, batch = small(routing=routing).eval(), images(rng)
    levels = model.levels_of(batch)
    assert [tuple(level.latent.poses.shape) for level in levels] == [(3, 5, 8)] * 3
    kept = levels[-1].latent.masked().poses
    if routing == "dynamic":
        torch.testing.assert_close(model(batch).poses, kept)
        *_, last = model.levels[1].steps(levels[0].latent.masked())
        torch.testing.assert_close(levels[1].latent.poses, last.poses)
        torch.testing.assert_close(levels[1].latent.support, last.couplings.amax(-2))  # one place: the largest
        torch.testing.assert_close(levels[1].activity, length(last.poses))
    else:  # a gate is lessened before it scales the pose: the same product
        torch.testing.assert_close(model(batch).poses, kept)
        assert (levels[1].activity <= 1).all()
    assert (levels[0].latent.mask == 0).any() and (levels[0].latent.mask == 1).any()


def test_support_by_em_is_what_a_capsule_uses(rng):
    model, batch = small(routing="em", n_layers=1), images(rng)
    *_, last = model.levels[0].steps(model._primary(batch))
    torch.testing.assert_close(model.latent(batch).support, routing_support(last.used, 2))
    torch.testing.assert_close(model.latent(batch).poses, last.poses.flatten(-2) * last.scores.sigmoid().unsqueeze(-1))


@each_routing
def test_dense_has_no_masks_and_keeps_all(routing, rng):
    model, batch = small(routing=routing, preset="dense"), images(rng)
    assert model.mask is None and not list(model.buffers())
    level = model.levels_of(batch)[-1]
    assert (level.latent.mask == 1).all()
    torch.testing.assert_close(model(batch).poses, level.latent.poses)
    wide = small(routing=routing, sharpness=0.0)  # a mask that keeps all is none
    wide.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(wide(batch).poses, model(batch).poses)


@each_routing
def test_gradient_reaches_every_parameter(routing, rng):
    model, batch = small(routing=routing, sharpness=2.0), images(rng, 6)
    reconstruction_loss(model.reconstruct(model(batch).poses), batch).sum().backward()
    silent = {
        name
        for name, p in model.named_parameters()
        if p.grad is None or not p.grad.any() or not p.grad.isfinite().all()
    }
    assert silent == set()


@each_routing
def test_every_layer_counts_its_winners_in_training_only(routing, rng):
    model, batch = small(routing=routing), images(rng)
    model.levels_of(batch), model.features(batch), model.eval()(batch)
    assert [int(mask.n_batches) for mask in model.masks] == [0, 0, 0]
    model.train()(batch)
    assert [int(mask.n_batches) for mask in model.masks] == [1, 1, 1]
    assert model.mask is model.masks[-1]


@pytest.mark.slow
def test_it_compiles_whole_by_em_with_its_statistics(fresh_dynamo, rng):
    """By agreement: see the table of all models."""
    options = {"routing": "em", "n_layers": 1, "n_iters": 2}  # few operations: the compiler is slow
    model, eager, batch = small(**options), small(**options), images(rng)
    eager.load_state_dict(model.state_dict())
    program = torch.compile(lambda x: model.reconstruct(model(x).poses), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(program(batch), eager.reconstruct(eager(batch).poses))
    assert torch.equal(model.mask.frequency, eager.mask.frequency)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "loose"}, "preset must be one of sparse, dense; got 'loose'"),
        ({"routing": "random"}, "routing must be one of dynamic, em; got 'random'"),
        ({"n_layers": 0}, "at least one latent layer, got n_layers=0"),
        ({"routing": "em", "d_latent": 6}, "poses of 4 rows; d_primary=4 or d_latent=6 is no multiple"),
        (
            {"routing": "em", "backend": "triton"},
            "sparse EM routing must know what was used, which no triton backend tells",
        ),
        ({"kernel": 11}, "12x12 is too small for kernels of 11 and 3"),
    ],
)
def test_what_cannot_be_built_is_refused(options, message):
    with torch.device("meta"), pytest.raises(ValueError, match=re.escape(message)):
        small(**options)


def test_other_images_are_refused():
    with pytest.raises(ValueError, match=re.escape("StackedCaps expects images [b, 1, 12, 12], got [2, 1, 12, 11]")):
        small()(torch.rand(2, 1, 12, 11))
