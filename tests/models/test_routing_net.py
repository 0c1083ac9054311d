"""One stem, every routing: RoutingNet is built for any image, starts alive, gives gradients to all, and learns."""

import pytest
import torch

from torchcaps.layers import EM, ROUTINGS, Dynamic, SelfRouting
from torchcaps.models import EMCapsNet, PooledNet, RoutingNet
from torchcaps.ops.losses import LOSSES
from torchcaps.train import Options, train
from torchcaps.train.recipe import Run, Stage
from torchcaps.train.tasks.by_routing import task_for

SMALL = {"channels": 8, "n_types": 4, "n_parts": 8, "d_pose": 8}
COMPARED = [name for name in ROUTINGS if name != "ladder"]


def n_parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", COMPARED)
def test_every_routing_starts_alive_and_gives_gradients_to_the_stem(name):
    torch.manual_seed(0)
    model, images = RoutingNet((1, 16, 16), 3, routing=name, **SMALL), torch.rand(16, 1, 16, 16)
    model.calibrate(images)
    assert model.training
    capsules = model.primary_capsules(images)
    for layer in model.levels:
        capsules = layer(capsules)
        assert 0.1 <= capsules.activity.median() <= 0.85
    LOSSES[model.routing.loss](capsules, torch.eye(3)[torch.arange(16) % 3]).mean().backward()
    # the poses of class capsules decide nothing where a routing has the activities from elsewhere
    early = [parameter for part, parameter in model.named_parameters() if not part.startswith("levels.1")]
    assert all(parameter.grad.isfinite().all() for parameter in early)
    assert model.maps[0][1].weight.grad.abs().max() > 0 and model.poses[1].weight.grad.abs().max() > 0


def test_parameters_are_those_of_the_table():
    counts = {"dynamic": 378_216, "self-attention": 378_296, "self-routing": 388_376, "inverted": 377_722}
    counts |= {"em": 228_440, "matrix-em": 216_418, "lazy": 212_488}
    with torch.device("meta"):
        assert {name: n_parameters(RoutingNet(routing=name)) for name in counts} == counts
        assert n_parameters(RoutingNet(routing=EM(rows=1))) == 389_720  # transforms of 16x16, as the vectors have
        assert n_parameters(RoutingNet(routing=SelfRouting(bias=True, batch_norm=True))) == 390_584
        assert n_parameters(PooledNet()) == 205_709


def test_the_stem_is_that_of_the_em_network_and_fits_any_image():
    with torch.device("meta"):
        own, theirs = RoutingNet((2, 96, 96), 5), EMCapsNet((2, 96, 96), 5)
        shapes = [{name: tensor.shape for name, tensor in model.maps.state_dict().items()} for model in (own, theirs)]
        assert shapes[0] == shapes[1] and own.grid == theirs.grid == (9, 9)
        grids = {size: RoutingNet((1, size, size), 3).grid[0] for size in (40, 32, 28, 16, 8, 5)}
    assert grids == {40: 5, 32: 5, 28: 4, 16: 4, 8: 6, 5: 3}
    with pytest.raises(ValueError, match=r"RoutingNet: 1 convolutions .* want images of at least 3x3, got 2x2"):
        RoutingNet((1, 2, 2), 3)
    with pytest.raises(ValueError, match=r"RoutingNet: ladders share no transforms .*; give another routing"):
        RoutingNet((1, 16, 16), 3, routing="ladder")


def test_calibration_fits_the_batch_norm_of_training_not_of_evaluation():
    """Fresh running statistics are those of no data: images of any scale give the same layers."""
    found = []
    for scale in (1.0, 100.0):
        torch.manual_seed(0)
        model, images = RoutingNet((1, 16, 16), 3, routing="em", **SMALL), torch.rand(16, 1, 16, 16) * scale
        model.calibrate(images)
        found.append(model.levels[0].routed.weight.detach())
    torch.testing.assert_close(*found, rtol=1e-2, atol=1e-3)


def test_a_refused_calibration_changes_nothing():
    model = RoutingNet((1, 16, 16), 3, routing=Dynamic(batch_norm=True), **SMALL).eval()
    before = {name: part.clone() for name, part in model.state_dict().items()}
    with pytest.raises(ValueError, match="wants several samples"):
        model.calibrate(torch.rand(1, 1, 16, 16))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert not any(part.training for part in model.modules())


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARED)
def test_every_routing_learns(name, tmp_path):
    stage = Stage(task=task_for(name), steps=120, batch=32, learning_rate=3e-3)
    args = {"channels": 16, "n_types": 4, "n_parts": 8, "routing": name}
    run = Run(data="generated-16", model="routing-net", model_args=args, stages=(stage,))
    trained = train(run, name="own/learns", seed=0, options=Options(out=tmp_path, progress=False))
    assert trained.evaluations["test"].metrics["error_percent"] < 70  # guessing: 90
