"""Batch normalisation of poses, alone and in self-routing, with the bias of the authors' code."""

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.nn.functional import logsigmoid

import torchcaps
from torchcaps.layers import (
    CapsuleLayer,
    Capsules,
    Dynamic,
    MatrixCapsules,
    MatrixEM,
    RoutedCapsules,
    SelfRoutedCapsules,
    SelfRouting,
)
from torchcaps.layers.initialisation import LONG
from torchcaps.layers.norm import PoseNorm, share_statistics
from torchcaps.ops import self_routing

INF = float("inf")
BOTH = {"bias": True, "batch_norm": True}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def everywhere(poses: torch.Tensor) -> torch.Tensor:
    return torch.ones(poses.shape[:-1], dtype=torch.bool)


def test_by_hand():
    """Two types at two places, one dimension: the first type holds 1, 3, 5, 7, the second 0, 0, 0, 4."""
    norm = PoseNorm(2, 1).double()
    poses = torch.tensor([[1.0, 3.0, 0.0, 0.0], [5.0, 7.0, 0.0, 4.0]]).double().unsqueeze(-1)
    found = norm(poses, everywhere(poses)).squeeze(-1)
    first, second = (5 + 1e-5) ** 0.5, (3 + 1e-5) ** 0.5  # means 4 and 1, variances 5 and 3
    wanted = [[-3 / first, -1 / first, -1 / second, -1 / second], [1 / first, 3 / first, -1 / second, 3 / second]]
    torch.testing.assert_close(found, torch.tensor(wanted).double())
    torch.testing.assert_close(norm.running_mean, torch.tensor([0.4, 0.1]).double())
    torch.testing.assert_close(norm.running_var, torch.tensor([0.9 + 0.1 * 5 * 4 / 3, 0.9 + 0.1 * 3 * 4 / 3]).double())


@pytest.mark.parametrize("batch", [(), (5,), (2, 3)])
def test_it_is_torch_s_for_every_type_and_dimension(batch):
    poses, norm, theirs = torch.randn(*batch, 12, 4), PoseNorm(3, 4), nn.BatchNorm1d(12)
    for part in (norm, theirs):
        with torch.no_grad():
            part.weight.copy_(torch.rand(12, generator=torch.Generator().manual_seed(1)))
            part.bias.copy_(torch.rand(12, generator=torch.Generator().manual_seed(2)))
    rows = poses.reshape(-1, 3, 4, 4).transpose(1, 2)  # [b p n d]
    for mode in (True, True, False):
        found = norm.train(mode)(poses, everywhere(poses))
        wanted = theirs.train(mode)(rows.reshape(-1, 12)).reshape(rows.shape).transpose(1, 2)
        torch.testing.assert_close(found, wanted.reshape(poses.shape))
    torch.testing.assert_close(norm.state_dict(), theirs.state_dict())


def test_an_absent_capsule_is_as_good_as_not_there():
    norm, alone = PoseNorm(2, 3), PoseNorm(2, 3)
    poses, present = torch.randn(4, 10, 3), everywhere(torch.randn(4, 10, 3))
    present[:, [4, 9]] = False  # the last place of both types
    poses[~present] = 0
    kept = [0, 1, 2, 3, 5, 6, 7, 8]
    found, wanted = norm(poses, present), alone(poses[:, kept], present[:, kept])
    torch.testing.assert_close(found[:, kept], wanted)
    assert not found[~present].any()
    torch.testing.assert_close(norm.state_dict(), alone.state_dict())


def test_a_type_that_a_batch_does_not_have_keeps_its_statistics():
    norm, poses, present = PoseNorm(2, 3), torch.randn(4, 2, 3), torch.tensor([[True, False]] * 4)
    poses[~present] = 0
    found = norm(poses, present)
    assert found.isfinite().all() and norm.running_mean[:3].all()
    assert norm.running_mean[3:].tolist() == [0] * 3 and norm.running_var[3:].tolist() == [1] * 3


def test_one_pose_of_a_type_says_nothing_of_its_variance():
    norm, poses, present = PoseNorm(2, 3), torch.randn(4, 2, 3), torch.tensor([[True, False]] * 4)
    present[0, 1] = True
    poses[~present] = 0
    norm(poses, present)
    torch.testing.assert_close(norm.running_mean[3:], 0.1 * poses[0, 1])
    assert norm.running_var[3:].tolist() == [1] * 3 and (norm.running_var[:3] != 1).all()


def test_gradient_is_the_slope():
    norm, poses = PoseNorm(2, 2).double(), torch.randn(3, 4, 2, dtype=torch.float64)
    present = torch.tensor([[True, True, True, False]] * 3)
    poses[~present] = 0
    args = [x.detach().requires_grad_() for x in (poses, torch.rand(4).double(), torch.rand(4).double())]

    def normalised(poses, weight, bias):
        return torch.func.functional_call(norm, {"weight": weight, "bias": bias}, (poses, present))

    assert gradcheck(lambda poses, *rest: normalised(poses * present.unsqueeze(-1), *rest), args)


def test_one_sample_without_places_is_refused_in_training_only():
    layer = SelfRoutedCapsules(6, 3, 4, 5, batch_norm=True)
    for poses in (torch.randn(1, 6, 4), torch.randn(6, 4)):
        with pytest.raises(ValueError, match=r"more than one pose of each type to train .* give a larger batch"):
            layer.train()(poses)
        assert layer.eval()(poses).activity.isfinite().all()
        with pytest.raises(ValueError, match="to train or calibrate, got one"):
            layer.calibrate(poses)
        assert not layer.norm.training and layer.norm.momentum == 0.1
    shared = SelfRoutedCapsules(6, 3, 4, 5, n_types=2, batch_norm=True)
    assert shared(torch.randn(6, 4)).poses.shape == (3, 5)  # three places are three poses


@pytest.mark.parametrize("n_types", [None, 2])
def test_the_layer_is_the_op_on_normalised_poses(n_types):
    layer = SelfRoutedCapsules(6, 3, 4, 5, n_types=n_types, **BOTH)
    nn.init.normal_(layer.bias)
    capsules = Capsules(torch.randn(7, 6, 4), torch.rand(7, 6))
    for mode in (True, False):
        found = layer.train(mode)(capsules)
        poses = layer.norm(capsules.poses, everywhere(capsules.poses))
        wanted = self_routing(capsules.activity, poses, layer.weight, layer.route, layer.bias)
        torch.testing.assert_close(found.poses, wanted.poses)
        torch.testing.assert_close(logsigmoid(found.score), wanted.log_activity)
        (step,) = layer.eval().steps(capsules)
        found = layer(capsules)
        torch.testing.assert_close(step.poses, found.poses)
        torch.testing.assert_close(step.log_activity, logsigmoid(found.score))


@pytest.mark.parametrize("n_types", [None, 3])
def test_a_masked_input_counts_for_nothing_whatever_it_holds(n_types):
    layer, poses, score = (
        SelfRoutedCapsules(6, 3, 4, 5, n_types=n_types, **BOTH),
        torch.randn(4, 6, 4),
        torch.randn(4, 6),
    )
    score[:2, 2] = -INF
    given = []
    for value in (0.0, 9.0, float("nan")):
        held = poses.clone()
        held[:2, 2] = value
        layer.zero_grad()
        found = layer(Capsules.scored(held.requires_grad_(), score))
        (found.poses.square().sum() + found.score.square().sum()).backward()
        given.append([*found, layer.norm.bias.grad.clone(), layer.route.grad.clone(), held.grad])
        statistics = layer.norm.running_mean.clone()
        layer.norm.reset_running_stats()
    torch.testing.assert_close(given[1], given[0])
    torch.testing.assert_close(given[2], given[0])
    counted = poses.unflatten(1, (n_types or 6, -1)).transpose(1, 2)  # [b p n d]
    there = (score != -INF).unflatten(1, (n_types or 6, -1)).transpose(1, 2).unsqueeze(-1)
    mean = torch.where(there, counted, 0).sum((0, 1)) / there.sum((0, 1))
    torch.testing.assert_close(statistics, 0.1 * mean.flatten())


def test_the_bias_alone_sends_inputs_of_pose_zero():
    """A bias of log 3 for the first output of two: three quarters of every input go there."""
    layer = SelfRoutedCapsules(6, 2, 4, 5, bias=True)
    with torch.no_grad():
        layer.bias[:, 0] = torch.tensor(3.0).log()
    found = layer(torch.zeros(1, 6, 4))
    torch.testing.assert_close(found.activity, torch.tensor([[0.75, 0.25]]))


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_calibration_takes_the_statistics_of_its_batch(mode, offset):
    """Poses that hardly vary about a large mean, as means of many votes do."""
    layer, poses = SelfRoutedCapsules(12, 5, 8, 16, n_types=3, **BOTH).train(mode), torch.randn(32, 12, 8) + offset
    returned = layer.calibrate(poses)
    assert layer.training == layer.norm.training == mode and layer.norm.momentum == 0.1
    torch.testing.assert_close(layer(poses), returned, rtol=0.01, atol=0.01)
    torch.testing.assert_close(layer.eval()(poses), returned, rtol=1e-3, atol=1e-4)
    (step,) = layer.steps(poses)
    assert 0.4 < step.logits.std() < 0.6


def test_calibration_leaves_the_bias_out():
    layer, poses = SelfRoutedCapsules(12, 5, 8, 16, **BOTH), torch.randn(32, 12, 8)
    with torch.no_grad():
        layer.bias.normal_(std=3)
    layer.calibrate(poses)
    (step,) = layer.steps(poses)
    assert 0.45 < (step.logits - layer.bias).square().mean().sqrt() < 0.55


@pytest.mark.parametrize(
    ("value", "told"), [(0.0, "or not finite"), (float("nan"), "or not finite"), (3.3, "constant")]
)
def test_a_refused_calibration_changes_nothing(value, told):
    layer = SelfRoutedCapsules(12, 5, 8, 16, **BOTH)
    before = {name: part.clone() for name, part in layer.state_dict().items()}
    with pytest.raises(ValueError, match=rf"SelfRoutedCapsules\.calibrate: the inputs are all zero.*{told}"):
        layer.calibrate(torch.full((32, 12, 8), value))
    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)


LAYERS = {
    "routed": lambda: RoutedCapsules(12, 5, 16, 16, batch_norm=True),
    "self-routing": lambda: SelfRoutedCapsules(12, 5, 16, 16, batch_norm=True),
    "matrix-em": lambda: MatrixCapsules(12, 5, 4, 4, 4, batch_norm=True),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_constants_beside_absent_types_are_refused(make):
    """An absent type keeps the variance that it starts with, which says nothing of the others."""
    layer, score = make(), torch.zeros(32, 12)
    score[:, 6:] = -INF
    before = {name: part.clone() for name, part in layer.state_dict().items()}
    with pytest.raises(ValueError, match="or constant"):
        layer.calibrate(Capsules.scored(torch.full((32, 12, 4, 4), 3.3), score))
    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_inputs_that_vary_little_are_no_constants(make, dtype):
    """By a thousandth of their mean in 32 bits, by a thirtieth in half precision, whose sums have 32 bits too."""
    layer, noise = make().to(dtype), torch.randn(256, 12, 4, 4)
    poses = (noise + (1000 if dtype == torch.float32 else 30)).to(dtype)
    before = layer.weight.detach().clone()
    layer.calibrate(poses)
    assert 0.1 < (layer.weight.float().square().mean() / before.float().square().mean()).sqrt() < 10


def test_the_first_logits_are_as_wide_with_the_norm_as_without():
    poses = torch.randn(64, 12, 8)
    short = LONG * poses / poses.square().sum(-1, keepdim=True).sqrt()
    for given, norm in ((poses, True), (short, False)):
        (step,) = SelfRoutedCapsules(12, 5, 8, 16, batch_norm=norm).steps(given)
        assert 0.4 < step.logits.std() < 0.6, norm


def test_a_stack_is_calibrated_layer_by_layer():
    routing = SelfRouting(batch_norm=True)
    stack = nn.Sequential(CapsuleLayer(12, 8, 8, 8, routing), CapsuleLayer(8, 5, 8, 8, routing))
    poses = torch.randn(32, 12, 8) * 50
    torchcaps.calibrate(stack, poses)
    assert stack.training and 0.05 < stack(poses).activity.median() < 0.5


def test_sums_are_float32_whatever_the_poses_are():
    """A sum of 4,096 poses around 100 is beyond half precision, and bfloat16 stops at 256 times one of them."""
    for dtype in (torch.float16, torch.bfloat16):
        poses = (torch.randn(4096, 2, 3) + 100).to(dtype)
        norm = PoseNorm(2, 3)
        found, wanted = norm(poses, everywhere(poses)), PoseNorm(2, 3).double()(poses.double(), everywhere(poses))
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), wanted, rtol=0.01, atol=0.01)


def test_several_processes_leave_it_as_it_is():
    layer = SelfRoutedCapsules(6, 3, 4, 5, batch_norm=True)
    norm = layer.norm
    assert share_statistics(layer).norm is norm


@pytest.mark.parametrize("routing", [Dynamic(batch_norm=True), SelfRouting(batch_norm=True), MatrixEM(batch_norm=True)])
def test_sync_batch_norm_leaves_it_and_replaces_the_others(routing, rng):
    model = nn.Sequential(nn.BatchNorm1d(6), CapsuleLayer(6, 3, 16, 16, routing=routing))
    poses = torch.randn(4, 6, 16, generator=rng)
    wanted = model.eval()(poses)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert isinstance(converted[0], nn.SyncBatchNorm)
    torch.testing.assert_close(converted[1](converted[0](poses)), wanted, rtol=0, atol=0)


@pytest.mark.slow
def test_it_compiles_whole_and_exports_with_a_free_batch(fresh_dynamo):
    layer, poses = SelfRoutedCapsules(6, 3, 4, 5, n_types=2, **BOTH), torch.randn(5, 6, 4)
    wanted, before = layer(poses), {name: buffer.clone() for name, buffer in layer.named_buffers()}
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(poses), wanted)
    assert all(not torch.equal(before[name], buffer) for name, buffer in layer.named_buffers())
    free = torch.export.Dim.AUTO
    program = torch.export.export(layer.eval(), (torch.randn(2, 6, 4),), dynamic_shapes=({0: free},))
    torch.testing.assert_close(program.module()(poses), layer(poses))
