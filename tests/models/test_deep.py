"""Networks of any depth start alive, learn, and say when a layer has died."""

import warnings
from dataclasses import replace

import pytest
import torch

from torchcaps.analysis.alive import dead_layers
from torchcaps.layers import ROUTINGS, calibrate
from torchcaps.models import CapsNet, DeepCapsNet
from torchcaps.papers import RECIPES
from torchcaps.train import Options, train
from torchcaps.train.recipe import Run, Stage
from torchcaps.train.tasks.by_routing import task_for
from torchcaps.train.tasks.classify import Classify, ClassifyFrozen

SMALL = {"channels": 8, "kernel": 5, "n_types": 4, "primary_kernel": 5, "n_hidden": 8}


def small_run(**stage) -> Run:
    stage = Stage(task=Classify(), steps=20, batch=16, learning_rate=3e-3) if not stage else Stage(**stage)
    return Run(data="generated-16", model="deep-capsnet", model_args=SMALL | {"depth": 4}, stages=(stage,))


@pytest.mark.parametrize("depth", [1, 5])
@pytest.mark.parametrize("size", [0.01, 1.0, 50.0])
def test_calibration_wakes_every_layer_whatever_the_scale_of_the_images(depth, size):
    torch.manual_seed(0)
    model, images = DeepCapsNet((1, 16, 16), 10, depth=depth, **SMALL), torch.rand(8, 1, 16, 16) * size
    model.calibrate(images)
    capsules = model.primary_capsules(images)
    for layer in (None, *model.levels):
        capsules = capsules if layer is None else layer(capsules)
        assert 0.15 <= capsules.activity.median() <= 0.75
    model(images).activity.sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())


def test_the_loop_calibrates_a_fresh_network_and_no_papers_preset(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(DeepCapsNet, "calibrate", lambda self, images: calls.append(images.shape))
    options = Options(out=tmp_path / "deep", progress=False, max_steps=1)
    train(small_run(), name="deep", seed=0, options=options)
    train(small_run(), name="deep", seed=0, options=replace(options, max_steps=2))  # resumed: not again
    assert calls == [(16, 1, 16, 16)]
    monkeypatch.setattr(CapsNet, "calibrate", lambda self, images: calls.append(self.routing))
    small = {name: size for name, size in SMALL.items() if name != "n_hidden"}
    for routing in (None, "dynamic"):
        run = replace(small_run(), model="capsnet", model_args=small | {"routing": routing})
        train(run, name="flat", seed=0, options=Options(out=tmp_path / str(routing), progress=False, max_steps=1))
    assert calls[1:] == [ROUTINGS["dynamic"]]


def test_frozen_parameters_stay_as_they_started(tmp_path):
    task = ClassifyFrozen(frozen=("levels.",))
    run = small_run(task=task, steps=3, batch=16, learning_rate=3e-3)
    trained = [
        train(run, name="frozen", seed=0, options=Options(out=tmp_path, progress=False, max_steps=n)).model.state_dict()
        for n in (1, 3)
    ]
    same = {name for name in trained[0] if torch.equal(trained[0][name], trained[1][name])}
    assert same == {name for name in trained[0] if name.startswith("levels.")}
    with pytest.raises(ValueError, match="they are 0 of"):
        ClassifyFrozen(frozen=("nothing",)).parameters(run.build())


def test_a_dead_layer_is_named():
    torch.manual_seed(0)
    model = DeepCapsNet((1, 16, 16), 10, depth=3, **SMALL)
    assert dead_layers(model, torch.rand(4, 1, 16, 16)) == []
    with torch.no_grad():
        for parameter in model.levels[1].parameters():
            parameter.mul_(1e-6)
    assert dead_layers(model, torch.rand(4, 1, 16, 16)) == ["levels.1.routed"]


def test_the_loop_warns_once_of_a_layer_that_died(tmp_path, monkeypatch):
    def kill(model, images):
        with torch.no_grad():
            for parameter in model.levels[1].parameters():
                parameter.zero_()

    monkeypatch.setattr(DeepCapsNet, "calibrate", kill)
    run = small_run(task=Classify(), epochs=2, batch=256, learning_rate=1e-9)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        train(run, name="killed", seed=0, options=Options(out=tmp_path, progress=False))
    said = [str(one.message) for one in seen if "all activities below" in str(one.message)]
    assert [text.split(":")[0] for text in said].count("layer levels.1.routed") == 1


@pytest.mark.parametrize(
    "routing",
    [pytest.param(name, marks=[] if name == "dynamic" else pytest.mark.slow) for name in ROUTINGS if name != "ladder"],
)
def test_three_layers_of_every_routing_learn(routing, tmp_path):
    em = routing in ("em", "matrix-em")  # slower at first: few votes fit a capsule each
    stage = Stage(task=task_for(routing), steps=60, batch=32, learning_rate=2e-2 if em else 5e-3)
    args = SMALL | {"depth": 3, "routing": routing}
    run = Run(data="generated-16", model="deep-capsnet", model_args=args, stages=(stage,))
    trained = train(run, name="learns", seed=0, options=Options(out=tmp_path, progress=False, log_every=20))
    assert trained.evaluations["test"].metrics["error_percent"] < (70 if routing == "em" else 50)  # guessing: 90


def test_ladders_are_not_stacked():
    with pytest.raises(ValueError, match="ladders do not learn on top of each other, got depth=2; give depth=1"):
        DeepCapsNet((1, 16, 16), 10, depth=2, routing="ladder", **SMALL)


def test_a_network_inside_another_is_calibrated_and_what_is_frozen_stays_so():
    torch.manual_seed(0)
    norm, model = torch.nn.BatchNorm2d(1).eval(), DeepCapsNet((1, 16, 16), 10, depth=2, **SMALL)
    whole = torch.nn.Sequential(norm, model).train()
    norm.eval()
    calibrate(whole, torch.rand(8, 1, 16, 16))
    assert model.training and not norm.training
    assert 0.15 <= model(torch.rand(8, 1, 16, 16)).activity.median() <= 0.75


def test_rows_by_depth_differ_in_depth_alone():
    runs = {name: RECIPES[f"depth/mnist-{name}"].make() for name in (1, 2, 3, 4, 5)}
    assert [run.model_args["depth"] for run in runs.values()] == [1, 2, 3, 4, 5]
    assert len({repr(replace(run, model_args={})) for run in runs.values()}) == 1
