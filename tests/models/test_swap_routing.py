"""One argument swaps the routing of a CapsNet: it is built, trained, stored, exported and shown with every one."""

from dataclasses import replace

import pytest
import torch

from torchcaps.analysis.routing import diagnose
from torchcaps.data import load
from torchcaps.data.augment import Batch
from torchcaps.integrations.export import export_program
from torchcaps.layers import EM, ROUTINGS, Dynamic
from torchcaps.models import Baseline, CapsNet, SupervisedCaps
from torchcaps.ops.losses import LOSSES
from torchcaps.play.networks import network_of
from torchcaps.pretrained import load as load_model
from torchcaps.train import Options, train
from torchcaps.train.recipe import KINDS, Run, Stage, stored_run
from torchcaps.train.tasks.by_routing import task_for
from torchcaps.train.tasks.classify import Classify
from torchcaps.train.tasks.classify_pairs import ClassifyPairs
from torchcaps.train.tasks.logits import ClassifyLogits, ClassifyScores

SMALL = {"channels": 8, "kernel": 5, "n_types": 4, "primary_kernel": 5, "hidden": (16, 32)}
CPU = torch.device("cpu")


def net(routing=None, **more) -> CapsNet:
    torch.manual_seed(0)
    return CapsNet((1, 16, 16), 10, routing=routing, **SMALL | more)


def run_of(routing, **stage) -> Run:
    stage = Stage(**{"task": task_for(routing), "steps": 2, "batch": 16} | stage)
    return Run(data="generated-16", model="capsnet", model_args=SMALL | {"routing": routing}, stages=(stage,))


@pytest.mark.parametrize("name", ROUTINGS)
def test_every_routing_classifies_reconstructs_and_gives_gradients_to_all(name):
    model, images, labels = net(name), torch.rand(8, 1, 16, 16), torch.arange(8)
    model.calibrate(images)
    capsules = model(images)
    half = 0.1 if model.routing.loss == "likelihood" else 0.5  # an even share of what sums to one
    assert capsules.poses.shape == (8, 10, 16) and 0.3 <= capsules.activity.median() / half <= 1.5
    loss = LOSSES[model.routing.loss](capsules, torch.eye(10)[labels])
    (loss.mean() + model.reconstruct(capsules.poses, labels).mean()).backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())


def test_without_a_routing_it_is_the_papers_network():
    assert set(net().state_dict()) == set(CapsNet((1, 16, 16), 10, **SMALL).state_dict())
    assert "classes.weight" in net().state_dict() and "classes.routed.weight" in net("dynamic").state_dict()
    assert torch.equal(net().classes.bias, torch.full((10, 16), 0.1))  # the authors' initialisation
    assert not torch.equal(net("dynamic").classes.routed.bias, torch.full((10, 16), 0.1))
    assert torch.equal(net("em").conv.bias, torch.full((8,), 0.1))  # the rest of the preset stays


def test_iterations_are_shown_where_there_are_some():
    images = torch.rand(2, 1, 16, 16)
    for routing in (None, Dynamic(n_iters=4), EM(n_iters=2)):
        model = net(routing)
        *_, last = steps = list(model.steps(images))
        assert len(steps) == (3 if routing is None else routing.n_iters)
        torch.testing.assert_close(last.poses.flatten(2), model(images).poses.flatten(2))
    with pytest.raises(ValueError, match=r"Ladder.* has no routing iterations to show; take another"):
        net("ladder").steps(images)


@pytest.mark.parametrize(
    "given", [{"n_iters": 2}, {"couplings": "leaky"}, {"sharing": "all"}, {"backend": "reference"}]
)
def test_options_of_the_default_routing_are_refused_beside_another(given):
    (name,) = given
    other = "build a network of your own" if name == "sharing" else "give options such as routing=Dynamic"
    why = rf"CapsNet: {name}=.* is for routing=None, .*'em'.*; leave {name} out, or {other}"
    with pytest.raises(ValueError, match=why):
        net("em", **given)
    with pytest.raises(ValueError, match=r"SupervisedCaps needs routing by agreement, got routing='em'; leave it out"):
        SupervisedCaps((1, 16, 16), 10, routing="em", **SMALL)


@pytest.mark.parametrize("routing", [pytest.param("dynamic", marks=pytest.mark.slow), EM(rows=2, n_iters=2)])
def test_a_run_trains_resumes_is_stored_and_loaded_with_its_routing(routing, tmp_path):
    run, options = run_of(routing), Options(out=tmp_path, progress=False)
    train(run, name="own/swap", seed=0, options=replace(options, max_steps=1))
    trained = train(run, name="own/swap", seed=0, options=options)
    again = load_model(tmp_path / "checkpoint.safetensors")
    assert stored_run(again.about["run"]) == run
    images = torch.rand(2, 1, 16, 16)
    torch.testing.assert_close(again(images), trained.model.eval()(images), rtol=0, atol=0)
    tuned = load_model(tmp_path / "checkpoint.safetensors", n_classes=3)
    assert tuned(images).poses.shape == (2, 3, 16)


@pytest.mark.slow
@pytest.mark.parametrize("routing", ROUTINGS)
def test_an_exported_program_answers_as_the_model_does(routing, tmp_path):
    assert export_program(net(routing), run_of(routing), tmp_path / "net.pt2").largest < 1e-4


def test_a_stored_routing_of_endless_iterations_is_refused(tmp_path):
    from torchcaps.train.loading import _check_repeats

    with pytest.raises(ValueError, match=r"asks for n_iters=1000000; at most 1,000 are run"):
        _check_repeats({"routing": EM(n_iters=10**6)}, tmp_path)
    assert all(type(routing).__name__ in KINDS for routing in ROUTINGS.values())


@pytest.mark.slow
@pytest.mark.parametrize("routing", ROUTINGS)
def test_it_learns_with_every_routing(routing, tmp_path):
    rate = 2e-3 if routing == "ladder" else 5e-3  # at 5e-3 its class layer dies
    run = run_of(routing, steps=120, batch=32, learning_rate=rate)
    trained = train(run, name="own/learns", seed=0, options=Options(out=tmp_path, progress=False))
    assert trained.evaluations["test"].metrics["error_percent"] < 50  # guessing: 90


@pytest.mark.parametrize(
    ("model", "task", "right"),
    [
        (lambda: net("em"), Classify(), "ClassifyScores"),
        (lambda: net("em"), ClassifyLogits(), "ClassifyScores"),
        (net, ClassifyScores(), "Classify"),
        (net, ClassifyLogits(), "Classify"),
        (lambda: Baseline((1, 16, 16), 10), Classify(), "ClassifyLogits"),
        (lambda: Baseline((1, 16, 16), 10), ClassifyScores(), "ClassifyLogits"),
    ],
)
def test_a_task_that_does_not_fit_the_outputs_is_refused(model, task, right):
    batch = Batch(torch.rand(2, 1, 16, 16), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=rf"^{type(task).__name__} needs a network of .*; train it by {right}$"):
        task.losses(model(), batch)


@pytest.mark.parametrize(
    "routing", ["em", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lazy", "ladder"))]
)
def test_the_losses_of_a_task_compile_as_one_program(routing):
    """As they do on CUDA; `eager` compiles no kernels."""
    model, batch = net(routing), Batch(torch.rand(2, 1, 16, 16), torch.tensor([0, 1]))
    plain = task_for(routing).losses(model, batch)
    compiled = torch.compile(task_for(routing).losses, fullgraph=True, backend="eager")(model, batch)
    assert "reconstruction" in plain and set(compiled) == set(plain)
    torch.testing.assert_close(compiled, plain)


def test_pairs_are_classified_by_lengths_alone():
    batch = Batch(torch.rand(2, 1, 16, 16), torch.tensor([[0, 1], [2, 3]]))
    with pytest.raises(ValueError, match=r"ClassifyPairs needs .*; build it with a routing whose loss is margin"):
        ClassifyPairs().losses(net("em"), batch)


def test_diagnostics_and_the_playground_take_any_routing():
    test = load("generated-16", "test")
    for routing, measure, n_passes in ((None, "length", 5), ("dynamic", "length", 5), ("em", "share", 1)):
        model = net(routing)
        found = diagnose(model, test._replace(images=test.images[:20], labels=test.labels[:20]), CPU)
        assert bool(found) == (n_passes > 1)
        shown = network_of(model, run_of(routing), {"name": "own/swap", "seed": 0, "step": 1})
        assert (shown.about()["measure"], shown.about()["n_passes"]) == (measure, n_passes)
        lengths = shown.look(torch.rand(1, 1, 16, 16) * 255).lengths
        assert lengths.shape == (n_passes, 10) and ((lengths >= 0) & (lengths <= 1)).all()
