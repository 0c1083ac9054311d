"""One interface: activity is a probability with its logit at hand, and any layer may follow any other."""

import re

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from torchcaps.layers import (
    Capsules,
    ConvMatrixCapsules,
    ConvRoutedCapsules,
    EMCapsules,
    ExpertCapsules,
    InvertedCapsules,
    LadderCapsules,
    LazyRoutedCapsules,
    MatrixCapsules,
    PrimaryCapsules,
    RoutedCapsules,
    SelfAttentionCapsules,
    SelfRoutedCapsules,
)
from torchcaps.layers.routings import ROUTINGS, CapsuleLayer
from torchcaps.ops import length, squash
from torchcaps.ops.squash import direction

INF = float("inf")
VECTOR_LAYERS = {
    "routed": lambda: RoutedCapsules(6, 3, 8, 5),
    "routed, normalised": lambda: RoutedCapsules(6, 3, 8, 5, batch_norm=True),
    "conv": lambda: ConvRoutedCapsules((1, 3), 2, 3, 8, 5, kernel=1),
    "lazy": lambda: LazyRoutedCapsules(6, 3, 8, 5),
    "ladder": lambda: LadderCapsules(6, 3, 8, 5, n_kept=2),
    "self-attention": lambda: SelfAttentionCapsules(6, 3, 8, 5),
    "self-routing": lambda: SelfRoutedCapsules(6, 3, 8, 5),
    "self-routing, normalised": lambda: SelfRoutedCapsules(6, 3, 8, 5, bias=True, batch_norm=True),
    "inverted": lambda: InvertedCapsules(6, 3, 8, 5),
}


def test_layers_of_all_routings_follow_each_other_and_all_of_them_learn(rng):
    torch.manual_seed(0)
    model = nn.Sequential(
        RoutedCapsules(12, 8, 6, 16),
        EMCapsules(8, 6, rows=4, d_in=4, d_out=4),
        RoutedCapsules(6, 8, 16, 8),
        LazyRoutedCapsules(8, 6, 8, 16),
        SelfAttentionCapsules(6, 8, 16, 8),
        InvertedCapsules(8, 6, 8, 8),
        SelfRoutedCapsules(6, 8, 8, 16),
        EMCapsules(8, 3, rows=2, d_in=8, d_out=4),
    )
    capsules = squash(torch.randn(4, 12, 6, generator=rng))
    for layer in model:
        capsules = layer(capsules)
        assert ((capsules.activity > 0) & (capsules.activity < 1)).all()
        torch.testing.assert_close(capsules.logit.sigmoid(), capsules.activity)
    cross_entropy(capsules.logit, torch.tensor([0, 1, 2, 0])).backward()
    silent = {name for name, p in model.named_parameters() if not p.grad.any() or not p.grad.isfinite().all()}
    # the pose bias of the last layer does not change a score
    assert silent <= {"7.bias"}


@pytest.mark.parametrize("name", VECTOR_LAYERS)
def test_a_layer_of_vectors_reads_matrices_row_by_row(name, rng):
    layer, poses = VECTOR_LAYERS[name](), squash(torch.randn(2, 6, 2, 4, generator=rng))
    activity = torch.rand(2, 6, generator=rng)
    wanted = layer(Capsules(poses.reshape(2, 6, 8), activity))
    torch.testing.assert_close(layer(Capsules(poses, activity)).poses, wanted.poses)
    torch.testing.assert_close(layer(poses).poses, layer(poses.reshape(2, 6, 8)).poses)


def test_to_a_layer_of_vectors_a_scored_capsule_is_as_long_as_it_is_active(rng):
    layer, poses, score = RoutedCapsules(6, 3, 8, 5), torch.randn(2, 6, 2, 4, generator=rng) * 9, torch.randn(2, 6)
    score[0, 1] = -INF
    scaled = direction(poses.flatten(-2)) * score.sigmoid().unsqueeze(-1)
    torch.testing.assert_close(length(scaled), score.sigmoid())
    torch.testing.assert_close(layer(Capsules.scored(poses, score)).poses, layer(scaled).poses)


@pytest.mark.parametrize("n_in", [6, None])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_layer_of_matrices_reads_vectors_row_by_row(rows, n_in, rng):
    layer = EMCapsules(n_in, 3, rows, 4, 5, sharing="inputs")
    poses, activity = torch.randn(2, 6, rows, 4, generator=rng), torch.rand(2, 6, generator=rng)
    flat = poses.flatten(-2)
    torch.testing.assert_close(layer(flat), layer(poses))
    wanted = layer(Capsules.scored(poses, activity.logit()))
    assert wanted.poses.shape == (2, 3, rows, 5)
    torch.testing.assert_close(layer(Capsules(flat, activity)), wanted)
    torch.testing.assert_close(layer(Capsules(poses, activity)), wanted)


def test_the_logit_comes_back_and_stays_finite_at_zero_and_one():
    poses, activity = torch.zeros(5, 2), torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0])
    logit = Capsules(poses, activity).logit
    assert logit.isfinite().all()
    torch.testing.assert_close(logit.sigmoid(), activity, atol=2e-6, rtol=0)
    score = torch.tensor([-INF, -3.0, 0.0, 40.0, INF])
    assert torch.equal(Capsules.scored(poses, score).logit, score)


def test_scores_saturate_but_confidence_still_ranks():
    capsules = Capsules.scored(torch.zeros(3, 2), torch.tensor([30.0, 50.0, 40.0]))
    assert (capsules.activity == 1).all()
    assert capsules.confidence.argsort().tolist() == [0, 2, 1]
    lengths = torch.tensor([0.2, 0.9, 0.5])
    assert torch.equal(Capsules(torch.zeros(3, 2), lengths).confidence, lengths)


def test_a_refused_shape_is_named_beside_both_readings():
    wrong = Capsules(torch.ones(2, 6, 2, 5), torch.ones(2, 6))
    both = "EMCapsules expects [..., 6 capsules, 2 rows, 4 dimensions each], or vectors of 8; got [2, 6, 2, 5]"
    with pytest.raises(ValueError, match=re.escape(both)):
        EMCapsules(6, 3, 2, 4, 5)(wrong)
    for layer in (make() for make in VECTOR_LAYERS.values()):
        both = f"{type(layer).__name__} expects [..., 6 capsules, 8 dimensions each], or matrices of 8 dimensions; got "
        with pytest.raises(ValueError, match=re.escape(both + "[2, 6, 2, 5]")):
            layer(wrong)


@pytest.mark.parametrize("name", ROUTINGS)
def test_poses_that_are_no_tensor_of_floating_point_are_refused(name):
    layer = CapsuleLayer(6, 3, 8, 8, name)
    inner = type(layer.routed).__name__
    wanted = f"{inner} expects poses in floating point, got torch.uint8; give poses.float()"
    with pytest.raises(ValueError, match=re.escape(wanted)):
        layer(torch.ones(2, 6, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match=rf"{inner} expects poses as a torch.Tensor, got numpy.ndarray; give "):
        layer(torch.ones(2, 6, 8).numpy())


def test_features_of_another_dtype_than_the_weights_are_refused():
    layer, features = PrimaryCapsules(3, 4, 8, kernel=3), torch.rand(2, 3, 9, 9)
    for wrong, do in ((features.half(), "features.to(torch.float32)"), (features.byte(), "features.float() / 255")):
        with pytest.raises(ValueError, match=rf"^PrimaryCapsules expects features of torch.float32.*{re.escape(do)}"):
            layer(wrong)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(features.bfloat16()).poses.dtype == torch.float32


LAYERS = VECTOR_LAYERS | {
    "em": lambda: EMCapsules(6, 3, rows=2, d_in=4, d_out=4),
    "matrix-em": lambda: MatrixCapsules(6, 3, rows=2, d_in=4, d_out=4),
    "conv-matrix": lambda: ConvMatrixCapsules((1, 3), 2, 3, rows=2, d_in=4, d_out=4, kernel=1),
    "experts": lambda: ExpertCapsules(6, 3, 8, 5),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", [name for name in LAYERS if name != "lazy"])
def test_poses_of_another_dtype_than_the_weights_are_refused(name, dtype):
    layer, poses = LAYERS[name](), torch.rand(2, 6, 8).to(dtype)
    inner = type(layer).__name__
    wanted = (
        f"{inner} expects poses of torch.float32, as its weights are, got {dtype}; "
        f"give poses.to(torch.float32), or convert the model by .to({dtype})"
    )
    for given in (poses, Capsules.of(poses), Capsules.scored(poses, poses[..., 0])):
        with pytest.raises(ValueError, match=f"^{re.escape(wanted)}$"):
            layer(given)
    assert layer(poses.float()).activity.isfinite().all()
    assert layer.to(dtype)(poses).activity.isfinite().all()


@pytest.mark.parametrize("name", LAYERS)
def test_under_autocast_poses_may_be_bfloat16(name):
    with torch.autocast("cpu", torch.bfloat16):
        assert LAYERS[name]()(torch.rand(2, 6, 8).bfloat16()).activity.isfinite().all()


def test_votes_of_float16_poses_are_computed_in_float32_and_lazy_layers_take_any():
    half = torch.rand(2, 6, 8).half()
    for name, make in LAYERS.items():
        if name in ("ladder", "conv", "experts"):
            with pytest.raises(ValueError, match=r"Capsules expects poses of torch.float32, as its weights are, got"):
                make()(half)
        else:
            assert make()(half).activity.isfinite().all()
    assert LAYERS["lazy"]()(half.bfloat16()).activity.isfinite().all()


MATRIX_LAYERS = {
    "em": lambda: EMCapsules(6, 3, rows=2, d_in=4, d_out=4),
    "matrix-em": lambda: MatrixCapsules(6, 3, rows=2, d_in=4),
}
ANY_NUMBER = {
    "routed": lambda: RoutedCapsules(None, 3, 8, 5, sharing="inputs"),
    "lazy": lambda: LazyRoutedCapsules(None, 3, 8, 5),
    "em": lambda: EMCapsules(None, 3, rows=2, d_in=4, d_out=4, sharing="inputs"),
}


@pytest.mark.parametrize("name", VECTOR_LAYERS | MATRIX_LAYERS)
def test_a_masked_capsule_counts_for_nothing_whatever_it_holds(name, rng):
    layer = (VECTOR_LAYERS | MATRIX_LAYERS)[name]()
    poses, present = squash(torch.randn(4, 6, 8, generator=rng)), torch.rand(4, 6, generator=rng) < 0.6
    present[:, 0] = True
    wanted = layer(Capsules.of(poses, present))
    for other in (100.0, torch.nan):
        found = layer(Capsules.of(poses.masked_fill(~present[..., None], other), present))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("name", VECTOR_LAYERS | MATRIX_LAYERS)
@pytest.mark.parametrize("held", [torch.nan, INF, 1e30])
def test_gradients_are_finite_whatever_a_masked_capsule_holds(name, held, rng):
    layer = (VECTOR_LAYERS | MATRIX_LAYERS)[name]()
    poses, present = squash(torch.randn(4, 6, 8, generator=rng)), torch.rand(4, 6, generator=rng) < 0.6
    present[:, 0] = True
    poses = poses.masked_fill(~present[..., None], held).requires_grad_()
    found = layer(Capsules.of(poses, present))
    (found.poses.square().sum() + found.activity.sum()).backward()
    assert poses.grad[present].isfinite().all() and poses.grad[present].any() and not poses.grad[~present].any()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_capsules_of_another_layer_are_masked_by_the_same_call(rng):
    capsules = EMCapsules(6, 3, rows=2, d_in=4, d_out=4)(squash(torch.randn(2, 6, 8, generator=rng)))
    present = torch.tensor([[True, False, True], [True, True, False]])
    torch.testing.assert_close(Capsules.of(capsules, present), capsules.masked(present), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["routed", "conv", "ladder", "self-attention", "self-routing", "em", "matrix-em"])
def test_a_mask_is_a_score_of_minus_infinity(name, rng):
    layer = (VECTOR_LAYERS | MATRIX_LAYERS)[name]()
    poses, present = squash(torch.randn(4, 6, 8, generator=rng)), torch.rand(4, 6, generator=rng) < 0.6
    capsules = Capsules.of(poses)
    scored = Capsules.scored(poses, capsules.logit.masked_fill(~present, -INF))
    torch.testing.assert_close(layer(scored), layer(capsules.masked(present)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", VECTOR_LAYERS | MATRIX_LAYERS)
def test_where_all_are_present_a_mask_changes_nothing(name, rng):
    layer, poses = (VECTOR_LAYERS | MATRIX_LAYERS)[name](), squash(torch.randn(4, 6, 8, generator=rng))
    everywhere = torch.ones(4, 6, dtype=torch.bool)
    found = layer(Capsules.of(poses, everywhere))
    torch.testing.assert_close(found, layer(Capsules.of(poses)), rtol=0, atol=0)


@pytest.mark.parametrize("name", ANY_NUMBER)
def test_padding_changes_nothing(name, rng):
    layer, poses = ANY_NUMBER[name](), squash(torch.randn(2, 5, 8, generator=rng))
    padded = torch.cat([poses, torch.randn(2, 4, 8, generator=rng)], 1)
    present = torch.arange(9).expand(2, 9) < 5
    torch.testing.assert_close(layer(Capsules.of(padded, present)), layer(Capsules.of(poses)))


def test_a_mask_keeps_scores_and_matrices(rng):
    poses, score = torch.randn(2, 3, 2, 4, generator=rng), torch.tensor([[0.5, 1.0, INF], [0.0, -INF, 2.0]])
    present = torch.tensor([[True, False, True], [True, True, False]])
    found = Capsules.scored(poses, score).masked(present)
    assert found.score.tolist() == [[0.5, -INF, INF], [0.0, -INF, -INF]]
    assert found.activity.tolist() == found.score.sigmoid().tolist()
    assert not found.poses[~present].any() and torch.equal(found.poses[present], poses[present])


@pytest.mark.parametrize(
    "make, why",
    [
        (
            lambda poses: Capsules.of(poses).masked(torch.ones(2, 3)),
            "expects present as torch.bool of [2, 3], true where",
        ),
        (lambda poses: Capsules.of(poses).masked(torch.ones(3, dtype=torch.bool)), "got torch.bool of [3]"),
        (lambda poses: Capsules.of(poses).masked(None), "expects present as a torch.Tensor, got builtins.NoneType"),
        (lambda poses: Capsules.scored(poses, torch.ones(2, 3) > 0), "write Capsules.of(poses, present)"),
        (lambda poses: Capsules.scored(poses, torch.ones(2, 2)), "got scores [2, 2] and poses [2, 3, 4]"),
        (lambda poses: Capsules.scored(poses, torch.ones(2, 3, 4)), "got scores [2, 3, 4] and poses [2, 3, 4]"),
        (lambda poses: Capsules.scored(poses, None), "expects score as a torch.Tensor, got builtins.NoneType"),
    ],
)
def test_a_mask_or_scores_that_do_not_fit_are_refused(make, why, rng):
    poses = torch.randn(2, 3, 4, generator=rng)
    with pytest.raises(ValueError, match=re.escape(why)):
        make(poses)
