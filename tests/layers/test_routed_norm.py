"""Batch normalisation of the poses before routing by agreement."""

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import batch_norm, normalize

from torchcaps.layers import CapsuleLayer, Capsules, Dynamic, RoutedCapsules
from torchcaps.layers.initialisation import ASSUMED, INITS, LENGTH
from torchcaps.ops import dynamic_routing

RULES = {"softmax": 3, "leaky": 3, "max-min": 3, "uniform": 1, "random": 1}
SHARED = {
    "none": {},
    "places": {"sharing": "places", "n_types": 2},
    "inputs": {"sharing": "inputs"},
    "all": {"sharing": "all"},
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_by_hand():
    """One input of one dimension and one output: poses 1 and 3 become -1 and 1, times the activity and 4."""
    layer = RoutedCapsules(1, 1, 1, 1, bias=False, batch_norm=True).double()
    with torch.no_grad():
        layer.weight.fill_(4 * (1 + 1e-5) ** 0.5)  # the variance is 1, and eps is added to it
    poses, activity = torch.tensor([[[1.0]], [[3.0]]]).double(), torch.tensor([[0.5], [0.75]]).double()
    found = layer(Capsules(poses, activity))
    torch.testing.assert_close(found.poses.flatten(), torch.tensor([-4 / 5, 9 / 10]).double())  # squash of -2 and 3


def test_plain_poses_are_all_active():
    layer, poses = RoutedCapsules(6, 3, 4, 5, batch_norm=True), torch.randn(7, 6, 4)
    torch.testing.assert_close(layer(poses), layer(Capsules(poses, torch.ones(7, 6))))


@pytest.mark.parametrize("couplings", RULES)
@pytest.mark.parametrize("sharing", SHARED)
def test_the_layer_routes_the_normalised_poses(couplings, sharing):
    layer = RoutedCapsules(6, 3, 4, 5, RULES[couplings], couplings=couplings, batch_norm=True, **SHARED[sharing])
    layer, poses = layer.double(), torch.randn(7, 6, 4).double() * 3 + 2
    n_types = {"none": 6, "places": 2}.get(sharing, 1)
    numbers = poses.unflatten(1, (n_types, -1)).transpose(1, 2).reshape(-1, n_types * 4)  # [(b p) (n d)]
    normal = batch_norm(numbers, None, None, training=True)
    normal = normal.reshape(7, -1, n_types, 4).transpose(1, 2).reshape(7, 6, 4)
    rule = {"prior": layer.prior, "couplings": couplings}
    wanted = dynamic_routing(normal, layer.weight, layer.bias, RULES[couplings], **rule).poses
    torch.testing.assert_close(layer(poses).poses, wanted)
    torch.testing.assert_close(layer.with_couplings(poses).capsules.poses, wanted)
    torch.testing.assert_close(layer.with_support(poses, 2).capsules.poses, wanted)
    torch.testing.assert_close(list(layer.steps(poses))[-1].poses, wanted)


@pytest.mark.parametrize("scored", [True, False])
def test_an_absent_input_counts_for_nothing(scored):
    """One that a score masks, whatever it holds, or a pose of zeros, whose length is not wholly zero."""
    layer, alone = (RoutedCapsules(None, 3, 4, 5, sharing="inputs", batch_norm=True) for _ in range(2))
    alone.load_state_dict(layer.state_dict())
    poses, kept = torch.randn(8, 6, 4), [0, 1, 3, 4, 5]
    score = torch.zeros(8, 6)
    score[:, 2] = -torch.inf
    poses[:, 2] = torch.nan if scored else 0
    given, rest = (
        Capsules.scored(poses[:, some], score[:, some]) if scored else Capsules.of(poses[:, some])
        for some in (range(6), kept)
    )
    torch.testing.assert_close(layer(given), alone(rest))
    torch.testing.assert_close(layer.norm.state_dict(), alone.norm.state_dict())


def test_an_almost_absent_input_votes_for_almost_nothing():
    layer, poses, score = RoutedCapsules(6, 3, 4, 5, batch_norm=True).eval(), torch.randn(8, 6, 4), torch.zeros(8, 6)
    outputs = []
    for value in (-8.0, -torch.inf):
        score[:, 2] = value
        outputs.append(layer(Capsules.scored(poses, score)).poses)
    torch.testing.assert_close(*outputs, rtol=0.01, atol=1e-3)


@pytest.mark.parametrize("couplings", RULES)
def test_gradient_is_the_slope(couplings):
    layer = RoutedCapsules(4, 3, 2, 3, RULES[couplings], couplings=couplings, batch_norm=True).double()
    names = [name for name, _ in layer.named_parameters()]
    values = [torch.rand_like(parameter).requires_grad_() for parameter in layer.parameters()]

    def routed(poses, *parameters):
        return functional_call(layer, dict(zip(names, parameters, strict=True)), (poses,)).poses

    assert torch.autograd.gradcheck(routed, [torch.randn(3, 4, 2).double().requires_grad_(), *values])


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("couplings", RULES)
def test_calibration_takes_the_statistics_of_its_batch(couplings, mode):
    """Poses that hardly vary about a large mean."""
    routing = Dynamic(n_iters=RULES[couplings], couplings=couplings, batch_norm=True)
    layer, poses = CapsuleLayer(12, 5, 8, 16, routing, n_types=3).train(mode), torch.randn(64, 12, 8) + 30
    returned = layer.calibrate(poses)
    assert 0.2 <= returned.activity.median() <= 0.7
    assert layer.routed.norm.training == mode
    torch.testing.assert_close(layer(poses).poses, returned.poses, rtol=0.01, atol=0.01)
    torch.testing.assert_close(layer.eval()(poses).poses, returned.poses, rtol=1e-3, atol=1e-4)


def test_one_sample_is_too_few_to_train_or_calibrate():
    """The normalised poses of a type sum to zero over its places, and so do their votes where couplings are uniform."""
    layer = RoutedCapsules(6, 3, 4, 5, 1, sharing="inputs", couplings="uniform", batch_norm=True)
    for poses in (torch.randn(1, 6, 4), torch.randn(6, 4)):
        for refuse in (layer, layer.calibrate):
            with pytest.raises(ValueError, match=r"RoutedCapsules: .* wants several samples .*, got 1; give a larger"):
                refuse(poses)
    layer.calibrate(torch.randn(2, 6, 4))
    assert layer.eval()(torch.randn(6, 4)).poses.shape == (3, 5)


def test_capsules_that_types_do_not_divide_are_refused():
    layer = RoutedCapsules(None, 3, 4, 5, sharing="places", n_types=2, batch_norm=True)
    with pytest.raises(ValueError, match=r"2 types .* wants as many of each, got 7 capsules; give a multiple of 2"):
        layer(torch.randn(2, 7, 4))


@pytest.mark.parametrize("value", [0.0, float("nan"), 3.3])
def test_a_refused_calibration_changes_nothing(value):
    layer = RoutedCapsules(12, 5, 8, 16, batch_norm=True)
    before = {name: part.clone() for name, part in layer.state_dict().items()}
    with pytest.raises(
        ValueError, match=r"RoutedCapsules\.calibrate: the inputs are all zero.* not finite.*; give a batch"
    ):
        layer.calibrate(torch.full((32, 12, 8), value))
    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("n_in", [12, None])
def test_the_first_votes_are_as_long_with_the_norm_as_without(n_in, init):
    plain = RoutedCapsules(n_in, 5, 8, 16, sharing="inputs", init=init)
    torch.manual_seed(0)
    layer = RoutedCapsules(n_in, 5, 8, 16, sharing="inputs", init=init, batch_norm=True)
    given = Capsules.of(normalize(torch.randn(64, n_in or ASSUMED, 8), dim=-1) * LENGTH)
    torch.testing.assert_close(layer(given).activity.mean(), plain(given).activity.mean(), rtol=0.02, atol=0.01)


def test_it_compiles_whole_and_exports_with_a_free_batch(fresh_dynamo):
    layer, poses = RoutedCapsules(6, 3, 4, 5, batch_norm=True), torch.randn(5, 6, 4)
    wanted = layer(poses)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(poses), wanted)
    free = torch.export.Dim.AUTO
    program = torch.export.export(layer.eval(), (torch.randn(2, 6, 4),), dynamic_shapes=({0: free},))
    torch.testing.assert_close(program.module()(poses), layer(poses))
