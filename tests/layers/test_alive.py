"""Layers start with activities that are neither 0 nor 1, whatever their sizes and depth, and learn."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize, one_hot

from torchcaps import calibrate
from torchcaps.layers import (
    Capsules,
    ConvMatrixCapsules,
    ConvRoutedCapsules,
    EMCapsules,
    LadderCapsules,
    LazyRoutedCapsules,
    MatrixCapsules,
    PrimaryCapsules,
    RoutedCapsules,
    SelfAttentionCapsules,
)
from torchcaps.layers.ladder import first_activity
from torchcaps.layers.routings import ROUTINGS, CapsuleLayer
from torchcaps.ops import margin_loss
from torchcaps.ops.losses import LOSSES

LENGTHS = (0.3, 0.9)
LAYERS = {
    "routed": lambda: RoutedCapsules(32, 10, 8, 16),
    "routed, any number": lambda: RoutedCapsules(None, 10, 8, 16, sharing="inputs"),
    "conv": lambda: ConvRoutedCapsules((4, 4), 2, 3, 8, 8),
    "em": lambda: EMCapsules(32, 10, 2, 4, 4),
    "matrix em": lambda: MatrixCapsules(32, 10, 2, 4, 4),
    "lazy": lambda: LazyRoutedCapsules(32, 10, 8, 16),
    "lazy, any number": lambda: LazyRoutedCapsules(None, 10, 8, 16),
    "self-attention": lambda: SelfAttentionCapsules(32, 10, 8, 16),
    "ladder": lambda: LadderCapsules(32, 10, 8, 16, 8),
    "ladder, no agreement": lambda: LadderCapsules(32, 10, 8, 16, 8, agreement="none"),
}


STACKED = [name for name in ROUTINGS if name != "ladder"]
SIZES = [(2, 2, 8), (8, 10, 64), (64, 50, 64), (32, 1000, 4), (1152, 2, 8), (200, 200, 8)]  # n_in, n_out, d_out
EVERY_SIZE = [
    (n_in, n_out, d_out)
    for n_in in (2, 8, 64, 1152, 4096)
    for n_out in (2, 10, 50, 200, 1000)
    for d_out in (4, 8, 16, 64)
    if n_in * n_out * d_out < 2e6
]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def poses_of(size: float, *shape: int) -> torch.Tensor:
    return normalize(torch.randn(*shape), dim=-1) * size


def medians(layers: nn.Sequential, capsules: torch.Tensor) -> list[float]:
    found = []
    for layer in layers:
        capsules = layer(capsules)
        found.append(capsules.activity.median().item())
    return found


def class_loss(model: nn.Module, inputs: torch.Tensor, n_classes: int) -> torch.Tensor:
    present = one_hot(torch.arange(len(inputs)) % n_classes, n_classes).float()
    return margin_loss(model(inputs).activity, present).mean()


def gradient_norms(layers: nn.Sequential) -> list[float]:
    """Norms over all that gets a gradient: not over poses of a last layer whose loss is of activities alone.

    Nor over the last layer's single number per output, which shifts a score: no layer has to pass that gradient on.
    """

    def counts(layer: nn.Module, parameter: nn.Parameter) -> bool:
        return parameter.grad is not None and (layer is not layers[-1] or parameter.ndim > 1)

    return [
        sum(p.grad.square().sum() for p in layer.parameters() if counts(layer, p)).sqrt().item() for layer in layers
    ]


def are_alive(name: str, medians: list[float], n_out: int) -> bool:
    """Say whether medians are in range; activities that sum to one over the outputs are, where an even share is 1/2."""
    scale = n_out / 2 if ROUTINGS[name].loss == "likelihood" else 1.0
    return all(0.15 <= scale * median <= 0.8 for median in medians)


def start_of(name: str, n_in: int, n_out: int, d_out: int, size: float) -> float:
    """Median activity of a fresh layer, over enough inputs that chance does not matter."""
    n_batch = min(64, 512 // n_out + 4, int(1e7 / (n_in * n_out * d_out)) + 1)
    with torch.no_grad():
        layer = CapsuleLayer(n_in, n_out, 8, d_out, name)
        return layer(poses_of(size, n_batch, n_in, 8)).activity.median().item()


@pytest.mark.parametrize("size", LENGTHS)
@pytest.mark.parametrize("name", STACKED)
def test_any_number_of_inputs_and_outputs_starts_alive(name, size):
    found = {sizes: start_of(name, *sizes, size) for sizes in SIZES if name != "em" or sizes[0] < 1000}
    assert all(are_alive(name, [median], n_out) for (_, n_out, _), median in found.items()), found


@pytest.mark.slow
@pytest.mark.parametrize("size", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("name", STACKED)
def test_every_size_starts_alive(name, size):
    found = {sizes: start_of(name, *sizes, size) for sizes in EVERY_SIZE}
    assert all(are_alive(name, [median], n_out) for (_, n_out, _), median in found.items()), found


@pytest.mark.parametrize("make", [LAYERS["routed, any number"], LAYERS["lazy, any number"]], ids=["routed", "lazy"])
def test_a_layer_for_any_number_of_inputs_starts_alive_at_64(make):
    assert 0.15 <= make()(poses_of(0.6, 32, 64, 8)).activity.median() <= 0.8


@pytest.mark.parametrize("n_in", [8, 64, 1000])
def test_em_capsules_for_any_number_of_inputs_start_alive(n_in):
    layer = EMCapsules(None, 10, 2, 4, 4, sharing="inputs")
    assert 0.15 <= layer(Capsules.of(poses_of(0.6, 16, n_in, 8))).activity.median() <= 0.8


@pytest.mark.parametrize("size", LENGTHS)
@pytest.mark.parametrize(("layer", "sizes"), [(ConvRoutedCapsules, (8, 8)), (ConvMatrixCapsules, (4, 2, 2))])
def test_a_stack_on_grids_starts_alive(layer, sizes, size):
    stack = nn.Sequential(
        layer((8, 8), 4, 6, *sizes, padding=1),
        layer((8, 8), 6, 4, *sizes, kernel=4, stride=2),
        layer((3, 3), 4, 8, *sizes),
    )
    assert all(0.15 < median < 0.8 for median in medians(stack, poses_of(size, 4, 4 * 64, 8)))


@pytest.mark.parametrize("size", LENGTHS)
@pytest.mark.parametrize("sizes", [(2, 2, 1, 2), (8, 2, 1, 2), (8, 4, 2, 3)], ids=str)
def test_convolutional_capsules_whose_stride_skips_children_start_alive(sizes, size):
    n_in_types, n_out_types, kernel, stride = sizes
    layer = ConvRoutedCapsules((8, 8), n_in_types, n_out_types, 8, 8, kernel, stride)
    assert 0.15 <= layer(poses_of(size, 8, n_in_types * 64, 8)).activity.median() <= 0.8


def assert_starts_evenly(name: str, depth: int, n: int, size: float, d: int = 8) -> None:
    """Assert that all layers of a stack are alive and get gradients of like size, by the routing's own loss."""
    stack = nn.Sequential(*(CapsuleLayer(n, n, d, d, name) for _ in range(depth)))
    poses = poses_of(size, 8, n, d)
    found = medians(stack, poses)
    assert are_alive(name, found, n), found
    present = one_hot(torch.arange(len(poses)) % n, n).float()
    LOSSES[ROUTINGS[name].loss](stack(poses), present).mean().backward()
    norms = gradient_norms(stack)
    assert max(norms) < 30 * min(norms), norms


@pytest.mark.parametrize(("n", "size"), [(10, 0.3), (10, 0.9), (32, 0.3), (64, 0.9)])
@pytest.mark.parametrize("name", STACKED)
def test_six_layers_start_alive_and_all_get_gradients_of_like_size(name, n, size):
    assert_starts_evenly(name, 6, n, size)


@pytest.mark.slow
@pytest.mark.parametrize("size", LENGTHS)
@pytest.mark.parametrize(("n", "d"), [(10, 16), (32, 8), (32, 16), (200, 4), (200, 8), (200, 16)])
@pytest.mark.parametrize("name", STACKED)
def test_stacks_of_every_depth_and_width_get_gradients_of_like_size(name, n, d, size):
    for depth in (1, 2, 4, 6) if n < 200 else (6,):
        assert_starts_evenly(name, depth, n, size, d)


@pytest.mark.parametrize("size", [0.01, 30.0])
@pytest.mark.parametrize("name", LAYERS)
def test_calibration_brings_inputs_of_any_length_into_range(name, size):
    layer, poses = LAYERS[name](), poses_of(size, 8, 32, 8)
    inputs = Capsules(poses, torch.full((8, 32), 0.6)) if "em" in name else poses
    returned = layer.calibrate(inputs).activity
    assert torch.equal(layer(inputs).activity, returned)
    assert 0.2 <= returned.median() <= 0.7


def test_inverted_routing_of_few_outputs_calibrates_into_range():
    """All outputs share one map from a pose to its score, so that by chance most scores may be high."""
    found = [CapsuleLayer(8, 2, 8, 8, "inverted").calibrate(poses_of(0.01, 8, 8, 8)).activity for _ in range(20)]
    assert all(0.2 <= activity.median() <= 0.7 for activity in found), [activity.median() for activity in found]


@pytest.mark.parametrize("n_hidden", [32, pytest.param(128, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", STACKED)
def test_six_calibrated_layers_that_end_in_ten_get_gradients_of_like_size(name, n_hidden):
    sizes = [64, *[n_hidden] * 5, 10]
    stack = nn.Sequential(*(CapsuleLayer(n_in, n_out, 8, 8, name) for n_in, n_out in pairwise(sizes)))
    poses = poses_of(0.3, 20, 64, 8)
    calibrate(stack, poses)
    LOSSES[ROUTINGS[name].loss](stack(poses), torch.eye(10).repeat(2, 1)).mean().backward()
    norms = gradient_norms(stack)
    assert max(norms) < 30 * min(norms), norms


@pytest.mark.parametrize("size", [0.01, 30.0])
def test_primary_capsules_calibrate_to_features_of_any_size(size):
    layer, features = PrimaryCapsules(3, 4, 8, kernel=3), torch.randn(2, 3, 9, 9) * size
    assert 0.2 <= layer.calibrate(features).activity.median() <= 0.7


def test_inputs_that_say_nothing_are_refused():
    for layer in (RoutedCapsules(6, 3, 8, 5), EMCapsules(6, 3, 2, 4, 5), LazyRoutedCapsules(6, 3, 8, 5)):
        with pytest.raises(ValueError, match="calibrate: the inputs are all zero or not finite; give a batch"):
            layer.calibrate(torch.zeros(2, 6, 8))
    with pytest.raises(ValueError, match="the features are all zero or not finite; give a batch of real images"):
        PrimaryCapsules(3, 4, 8, kernel=3).calibrate(torch.zeros(2, 3, 9, 9))


def test_the_papers_initialisation_draws_what_it_always_drew():
    layer = RoutedCapsules(6, 3, 4, 5, init="paper")
    torch.manual_seed(0)
    wanted = torch.empty(6, 3, 4, 5).normal_(std=(3 / (6 * 4)) ** 0.5)
    assert torch.equal(layer.weight, wanted) and not layer.bias.any()
    torch.manual_seed(0)
    layer = EMCapsules(6, 3, 2, 4, 5, init="paper")
    torch.manual_seed(0)
    assert torch.equal(layer.weight, torch.randn(6, 3, 4, 5) / 4) and not layer.beta_use.any()
    torch.manual_seed(0)
    layer = MatrixCapsules(6, 3, 2, 4, 4, init="paper")
    torch.manual_seed(0)
    assert torch.equal(layer.weight, (torch.eye(4) + 0.2 * torch.randn(6, 3, 4, 4)) * 6**0.5)
    assert layer.density_power == 1 and layer.inverse_temperature == 3 / 6
    with pytest.raises(ValueError, match="RoutedCapsules: init must be one of alive, paper; got 'zeros'"):
        RoutedCapsules(6, 3, 4, 5, init="zeros")


def test_the_ladder_starts_where_gradients_of_all_classes_cancel():
    assert first_activity(10) == 0.245
    for n in (2, 5, 10):
        lengths = torch.full((n,), first_activity(n), requires_grad=True)
        margin_loss(lengths.expand(n, n), torch.eye(n)).sum().backward()
        assert lengths.grad.abs().max() < 0.01 * n
    assert first_activity(1000) == 0.2


def five_layers() -> nn.Sequential:
    """Two convolutions' worth of grid, then 32 and 50 capsules."""
    middle = ConvRoutedCapsules((4, 4), 4, 8, 8, 8, kernel=3)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 16, 5), nn.ReLU()),  # 12x12
        PrimaryCapsules(16, 4, 8, kernel=5, stride=2),  # 4x4
        middle,  # 2x2
        RoutedCapsules(middle.n_out, 32, 8, 8),
        RoutedCapsules(32, 50, 8, 16),
    )


def test_a_calibrated_deep_network_gets_gradients_everywhere_and_learns():
    model, images = five_layers(), torch.rand(5, 3, 16, 16)
    calibrate(model, images)
    assert all(0.2 <= median <= 0.7 for median in medians(model[1:], model[0](images)))
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        loss = class_loss(model, images, 50)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        assert all(p.grad.any() for p in model.parameters())
    assert losses[-1] < 0.5 * losses[0], losses


def test_calibrating_a_network_leaves_its_mode_and_no_hooks_and_takes_a_single_layer_too():
    model = five_layers().train()
    calibrate(model, torch.rand(2, 3, 16, 16))
    assert model.training and not any(part._forward_pre_hooks for part in model.modules())
    layer, poses = RoutedCapsules(6, 3, 8, 5), poses_of(0.01, 8, 6, 8)
    before = layer.weight.clone()
    calibrate(layer, poses)
    assert layer.weight.norm() > 10 * before.norm()
