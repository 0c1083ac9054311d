"""MatrixCapsNet: the paper's sizes, and a fresh network that can learn."""

import pytest
import torch

from torchcaps.models import MatrixCapsNet
from torchcaps.ops import spread_loss

SMALL = {"channels": 8, "n_types": (3, 4, 5)}


@pytest.mark.parametrize(
    ("sizes", "n"), [({}, 317_194), ({"channels": 64, "n_types": (8, 16, 16)}, 68_754)], ids=["310K", "68K"]
)
def test_parameters(sizes, n):
    """Both as printed, 310K and 68K, of which the first is rounded down by 2 %."""
    with torch.device("meta"):
        model = MatrixCapsNet((2, 32, 32), 5, **sizes)
    assert sum(parameter.numel() for parameter in model.parameters()) == n
    assert (model.grid, model.first.out_grid, model.second.out_grid) == ((14, 14), (6, 6), (4, 4))


@pytest.mark.parametrize(
    ("sizes", "n"), [({}, 319_946), ({"channels": 64, "n_types": (8, 16, 16)}, 70_042)], ids=["310K", "68K"]
)
def test_parameters_with_batch_norm(sizes, n):
    """Two for each map of the convolution and for each score and pose dimension of a type; three biases go."""
    with torch.device("meta"):
        model = MatrixCapsNet((2, 32, 32), 5, batch_norm=True, **sizes)
    assert sum(parameter.numel() for parameter in model.parameters()) == n
    assert [layer.norm.scores.n_types for layer in (model.first, model.second, model.classes)] == [
        *sizes.get("n_types", (32, 32, 32))
    ]


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
@pytest.mark.parametrize("start", [{}, {"init": "alive", "density_power": None}], ids=["paper", "alive"])
def test_a_fresh_network_is_alive_and_every_parameter_gets_a_gradient(start, norm):
    torch.manual_seed(0)
    model, images = MatrixCapsNet((1, 21, 19), 4, **SMALL, **start, batch_norm=norm), torch.randn(4, 1, 21, 19)
    model.calibrate(images)
    found = model(images)
    assert found.poses.shape == (4, 4, 4, 4) and found.activity.shape == (4, 4)
    assert 0.2 < found.activity.median() < 0.7
    spread_loss(found.activity, torch.eye(4)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.norm() > 1e-5, name


@pytest.mark.parametrize("mode", [True, False])
def test_calibration_takes_the_statistics_of_its_batch(mode):
    """Images of any scale and brightness give the same layers, which are alive in training and in evaluation."""
    found = []
    for factor, shift in ((1, 0), (100, 30)):
        torch.manual_seed(0)
        model = MatrixCapsNet((1, 21, 19), 4, **SMALL, batch_norm=True).train(mode)
        images = torch.randn(16, 1, 21, 19) * factor + shift
        model.calibrate(images)
        assert {part.training for part in model.modules()} == {mode}
        found.append([layer.weight.detach() for layer in (model.first, model.second, model.classes)])
        for part in (True, False):
            assert 0.2 < model.train(part)(images).activity.median() < 0.7
    torch.testing.assert_close(*found, rtol=1e-2, atol=1e-3)


def test_batch_norm_leaves_the_default_alone():
    torch.manual_seed(0)
    model = MatrixCapsNet((1, 21, 19), 4, **SMALL)
    assert model.norm is None and not [name for name in model.state_dict() if "norm" in name]
    assert {name for name in model.state_dict() if name.endswith("bias")} == {"conv.bias", "poses.bias", "scores.bias"}


def test_images_that_are_too_small_are_refused():
    with pytest.raises(ValueError, match="images of at least 17x17, got 16x28; give larger images"):
        MatrixCapsNet((1, 16, 28), 10)
    assert MatrixCapsNet((1, 17, 17), 10, **SMALL).second.out_grid == (1, 1)


def test_autocast_rounds_the_votes_and_not_the_outputs():
    torch.manual_seed(0)
    model, images = MatrixCapsNet((1, 25, 25), 3, **SMALL), torch.randn(2, 1, 25, 25)
    model.calibrate(images)
    with torch.autocast("cpu", torch.bfloat16):
        cast = model(images)
    assert cast.score.dtype == cast.poses.dtype == torch.float32
    torch.testing.assert_close(cast.activity, model(images).activity, atol=0.1, rtol=0)


@pytest.mark.slow
def test_exports_with_any_number_of_images():
    model = MatrixCapsNet((1, 17, 17), 3, **SMALL)
    images = torch.randn(3, 1, 17, 17)
    program = torch.export.export(model, (torch.randn(2, 1, 17, 17),), dynamic_shapes=({0: torch.export.Dim("b")},))
    torch.testing.assert_close(program.module()(images).score, model(images).score)


@pytest.mark.slow
def test_compiles_as_one_graph_with_batch_norm(fresh_dynamo):
    model, images = MatrixCapsNet((1, 17, 17), 3, **SMALL, n_iters=2, batch_norm=True), torch.randn(4, 1, 17, 17)
    model.calibrate(images)
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="eager")
    torch.testing.assert_close(compiled(images).score, model(images).score, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_compiles_as_one_graph():
    model, images = MatrixCapsNet((1, 19, 19), 3, **SMALL), torch.randn(2, 1, 19, 19)
    model.calibrate(images)
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(images).score, model(images).score, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("value", [torch.nan, 0.0, 0.37])
def test_a_refused_calibration_of_batch_norm_changes_nothing(value):
    model = MatrixCapsNet((1, 21, 19), 4, channels=4, n_types=(2, 3, 2), batch_norm=True)
    before = {name: part.clone() for name, part in model.state_dict().items()}
    with pytest.raises(ValueError, match="the inputs are all zero, not finite, or constant; give a batch"):
        model.calibrate(torch.full((8, 1, 21, 19), value))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    model.norm.running_mean.fill_(torch.nan)  # as after a training step on such images
    model.calibrate(torch.randn(8, 1, 21, 19))
    assert model(torch.randn(8, 1, 21, 19)).score.isfinite().all()
