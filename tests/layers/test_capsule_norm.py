"""Batch normalisation of scores and poses, alone and in matrix capsules."""

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

import torchcaps
from torchcaps.layers import CapsuleLayer, Capsules, ConvMatrixCapsules, MatrixCapsules, MatrixEM
from torchcaps.layers.norm import CapsuleNorm, PoseNorm, share_statistics

INF = float("inf")
# by number of types: eight capsules with poses of 2x2
LAYERS = {
    "types": (2, lambda norm: MatrixCapsules(8, 3, 2, 2, 2, n_types=2, batch_norm=norm)),
    "grid": (2, lambda norm: MatrixCapsules(8, 3, 2, 2, 2, grid=(2, 2), batch_norm=norm)),
    "inputs": (8, lambda norm: MatrixCapsules(8, 3, 2, 2, 2, batch_norm=norm)),
    "local": (2, lambda norm: ConvMatrixCapsules((2, 2), 2, 3, 2, 2, 2, kernel=2, padding=1, batch_norm=norm)),
}
EVERY = pytest.mark.parametrize("name", LAYERS)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def made(name: str, norm: bool = True) -> nn.Module:
    return LAYERS[name][1](norm)


def capsules(n: int = 6) -> Capsules:
    """Capsules far from a mean of 0 and a deviation of 1."""
    return Capsules.scored(5 + 3 * torch.randn(n, 8, 2, 2), 4 * torch.randn(n, 8) - 7)


def normalised(numbers: torch.Tensor, n_types: int) -> torch.Tensor:
    """Normalise [b i ...] for each type and dimension over samples and places."""
    by_type = numbers.unflatten(1, (n_types, -1))
    away = by_type - by_type.mean((0, 2), keepdim=True)
    return (away / (away.square().mean((0, 2), keepdim=True) + 1e-5).sqrt()).flatten(1, 2)


@EVERY
def test_inputs_are_normalised_per_type_over_samples_and_places(name):
    """The layer is the one without, on normalised scores and poses; `steps` show the same."""
    n_types, _ = LAYERS[name]
    layer, plain = made(name).double(), made(name, norm=False).double()
    poses, _, scores = (part.double() for part in capsules())
    plain.load_state_dict({key: part for key, part in layer.state_dict().items() if not key.startswith("norm")})
    found = layer(Capsules.scored(poses, scores))
    wanted = plain(Capsules.scored(normalised(poses, n_types), normalised(scores, n_types)))
    torch.testing.assert_close(found.score, wanted.score)
    torch.testing.assert_close(found.poses, wanted.poses)
    *_, last = layer.steps(Capsules.scored(poses, scores))
    torch.testing.assert_close(last.scores, found.score)


@EVERY
def test_evaluation_uses_running_statistics(name):
    layer, given = made(name), capsules(64)
    for _ in range(200):
        layer.norm(given.score, given.poses)
    before = {key: part.clone() for key, part in layer.state_dict().items()}
    whole = layer.eval()(given)
    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)
    one = layer(Capsules(*(part[:1] for part in given)))
    torch.testing.assert_close(one.score, whole.score[:1])
    torch.testing.assert_close(whole.score, layer.train()(given).score, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("holds", [9.0, float("nan"), INF])
@EVERY
def test_a_masked_capsule_changes_nothing_and_stays_masked(name, holds):
    score = torch.randn(6, 8)
    score[:2, 3] = -INF
    given, found = capsules(), []
    for value in (0.0, holds):
        torch.manual_seed(1)
        layer, poses = made(name), given.poses.clone()
        poses[:2, 3] = value
        outputs = layer(Capsules.scored(poses.requires_grad_(), score))
        (outputs.poses.square().sum() + outputs.score.square().sum()).backward()
        grads = {key: part.grad for key, part in layer.named_parameters()}
        found.append([outputs, grads, poses.grad, layer.state_dict()])
        assert not poses.grad[:2, 3].any()
        assert (layer.norm(score, poses)[0] == -INF).equal(score == -INF)
    torch.testing.assert_close(found[1], found[0])


def test_a_masked_capsule_is_as_good_as_not_there():
    norm, alone, (poses, _, scores) = CapsuleNorm(2, 4), CapsuleNorm(2, 4), capsules()
    scores[:, [3, 7]] = -INF  # the last place of both types
    kept = [0, 1, 2, 4, 5, 6]
    found, wanted = norm(scores, poses), alone(scores[:, kept], poses[:, kept])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one[:, kept], other)
    torch.testing.assert_close(norm.state_dict(), alone.state_dict())


def test_a_certain_capsule_stays_certain_and_only_its_pose_counts():
    norm, (poses, _, scores) = CapsuleNorm(2, 4), capsules()
    scores[1, 2] = INF
    found_scores, found_poses = norm(scores, poses)
    assert found_scores.isinf().equal(scores.isinf()) and found_scores[1, 2] == INF
    numbers, finite = scores.masked_fill(scores.isinf(), 0).unsqueeze(-1), scores.isfinite()
    torch.testing.assert_close(found_scores[finite], PoseNorm(2, 1)(numbers, finite).squeeze(-1)[finite])
    torch.testing.assert_close(found_poses, normalised(poses, 2))


@EVERY
def test_plain_poses_are_certain_and_nothing_is_nan(name):
    layer, poses = made(name), capsules().poses.requires_grad_()
    for mode in (True, False):
        found = layer.train(mode)(poses)
        (found.poses.square().sum() + found.score.square().sum()).backward()
        assert found.poses.isfinite().all() and found.score.isfinite().all() and poses.grad.isfinite().all()
        assert all(part.grad.isfinite().all() for part in layer.parameters())
    assert layer.norm.scores.running_var.tolist() == [1.0] * LAYERS[name][0]  # of which nothing is known


def test_vectors_are_normalised_as_matrices_are():
    given = capsules()
    wanted = CapsuleNorm(2, 4)(given.score, given.poses)
    torch.testing.assert_close(CapsuleNorm(2, 4)(given.score, given.poses.flatten(-2))[1], wanted[1].flatten(-2))


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.float16, torch.float64)])
def test_dtypes_stay_what_they_were(dtypes):
    given = capsules()
    for mode in (True, False):
        found = CapsuleNorm(2, 4).train(mode)(given.score.to(dtypes[0]), given.poses.to(dtypes[1]))
        assert tuple(part.dtype for part in found) == dtypes


@EVERY
def test_gradient_is_the_slope(name):
    layer, (poses, _, scores) = made(name).double(), capsules(3)
    scores = scores.clone()
    scores[0, 0], scores[1, 1] = -INF, INF
    finite = scores.isfinite()
    parts = {key: part.detach().requires_grad_() for key, part in layer.named_parameters()}

    def routed(finite_scores, poses, *weights):
        given = Capsules.scored(poses, scores.double().masked_scatter(finite, finite_scores))
        found = torch.func.functional_call(layer, dict(zip(parts, weights, strict=True)), (given,))
        return found.poses, found.score

    inputs = [part.detach().double().requires_grad_() for part in (scores[finite], poses)]
    assert gradcheck(routed, (*inputs, *parts.values()), fast_mode=True)


@pytest.mark.parametrize("mode", [True, False])
@EVERY
def test_calibration_fits_the_statistics_first_and_leaves_activities_alive(name, mode):
    layer, given = made(name).train(mode), capsules(32)
    returned = layer.calibrate(given)
    assert {part.training for part in layer.modules()} == {mode}
    assert layer.norm.poses.momentum == layer.norm.scores.momentum == 0.1
    found = layer.eval()(given)
    torch.testing.assert_close(found, returned)
    assert 0.2 <= found.activity.median() <= 0.7 and 0.5 < found.poses.square().mean().sqrt() < 2
    fitted = CapsuleNorm(LAYERS[name][0], 4)
    fitted.fit(given.score, given.poses)
    torch.testing.assert_close(layer.norm.scores.running_mean, fitted.scores.running_mean)
    torch.testing.assert_close(layer.norm.poses.running_var, fitted.poses.running_var)
    # of 32 samples: variances of a batch and of all samples differ by 3 %
    torch.testing.assert_close(layer.train()(given).activity, found.activity, rtol=0, atol=0.05)


@pytest.mark.parametrize("value", [0.0, 3.3, float("nan")])
@EVERY
def test_a_refused_calibration_changes_nothing(name, value):
    layer = made(name)
    before = {name: part.clone() for name, part in layer.state_dict().items()}
    with pytest.raises(ValueError, match=r"Capsules\.calibrate: the inputs are all zero, not finite, or constant"):
        layer.calibrate(torch.full((32, 8, 2, 2), value))
    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)
    assert layer.norm.training


def test_one_sample_without_places_is_refused_in_training_only():
    layer, poses = made("inputs"), torch.randn(1, 8, 2, 2)
    with pytest.raises(ValueError, match="more than one pose of each type to train or calibrate, got one"):
        layer(poses)
    assert layer.eval()(poses).score.isfinite().all()
    assert made("types")(poses).score.isfinite().all()  # four places are four poses


def test_asking_for_the_backend_changes_no_statistics():
    layer = made("types")
    before = {name: part.clone() for name, part in layer.state_dict().items()}
    assert layer.backend_here(n_images=64) == made("types", norm=False).backend_here(n_images=64)
    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)


@EVERY
def test_a_layer_starts_the_same_with_the_norm_and_without(name):
    states = []
    for norm in (True, False):
        torch.manual_seed(1)
        layer = made(name, norm)
        states.append((layer.state_dict(), torch.rand(())))  # and draws as many random numbers
    own = {key for key in states[0][0] if key.startswith("norm")}
    assert len(own) == 10 and {key: states[0][0][key] for key in states[1][0]}.keys() | own == states[0][0].keys()
    torch.testing.assert_close({key: states[0][0][key] for key in states[1][0]}, dict(states[1][0]))
    assert states[0][1] == states[1][1]


def test_a_routing_by_options_has_the_norm_and_a_stack_is_calibrated_in_evaluation_mode():
    routing = MatrixEM(rows=2, batch_norm=True)
    stack = nn.Sequential(CapsuleLayer(8, 6, 4, 4, routing, n_types=2), CapsuleLayer(6, 5, 4, 4, routing))
    assert [layer.routed.norm.scores.n_types for layer in stack] == [2, 6]
    given = capsules(32)
    torchcaps.calibrate(stack, given)
    assert stack.training and all(part.training for part in stack.modules())
    for mode in (True, False):
        assert 0.2 <= stack.train(mode)(given).activity.median() <= 0.7


def test_sharing_statistics_leaves_it_as_it_is():
    layer = made("local")
    norms = layer.norm.scores, layer.norm.poses
    assert (share_statistics(layer).norm.scores, layer.norm.poses) == norms  # which sum over processes themselves


@pytest.mark.slow
def test_it_compiles_whole_and_exports_with_a_free_batch(fresh_dynamo):
    layer, (poses, _, scores) = made("local"), capsules()

    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, scores, poses):
            return self.layer(Capsules.scored(poses, scores)).score

    bare, before = Bare(), layer.norm.poses.running_mean.clone()
    wanted = bare(scores, poses)
    compiled = torch.compile(bare, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(scores, poses), wanted, rtol=1e-4, atol=1e-4)
    assert not torch.equal(layer.norm.poses.running_mean, before)
    free = torch.export.Dim.AUTO
    example = capsules(3)
    shapes = {"scores": {0: free}, "poses": {0: free}}
    program = torch.export.export(bare.eval(), (example.score, example.poses), dynamic_shapes=shapes)
    torch.testing.assert_close(program.module()(scores, poses), bare(scores, poses), rtol=1e-4, atol=1e-4)
