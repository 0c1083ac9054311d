"""Weights that the update rounds: a step on a CPU that stands for a GPU's, with and without them."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from tests.train.test_step import make_step
from torchcaps import Decoder, PrimaryCapsules
from torchcaps.runtime.distributed import Team
from torchcaps.train import optimizers
from torchcaps.train import step as steps
from torchcaps.train.rounded import in_place, rounded_weights
from torchcaps.train.tasks.classify import Classify

autocast = torch.autocast


@pytest.fixture
def as_on_gpu(monkeypatch):
    """Autocast rounds on this CPU, and Adam is the one that a GPU has."""
    monkeypatch.setattr(steps.TrainingStep, "casts", True)
    monkeypatch.setattr(torch, "autocast", lambda kind, dtype=None, enabled=True: autocast("cpu", dtype, enabled))

    def make(self, parameters, now):
        return optimizers.OneProgramAdam(self._groups(list(parameters)), now[0], foreach=False)

    monkeypatch.setattr(optimizers.Adam, "make", make)


@pytest.fixture
def pair(as_on_gpu, monkeypatch):
    """Two equal steps: one rounds in its update, the other leaves rounding to autocast."""

    def make(**changed):
        with monkeypatch.context() as left_out:
            left_out.setattr(steps, "rounded_weights", lambda *given: [])
            plain = make_step(**changed)
        step = make_step(**changed)
        assert len(step.rounded) == 4 and not plain.rounded
        return step, plain

    return make


def same(step, plain) -> bool:
    ours, theirs = step.everything(), plain.everything()
    return ours.keys() == theirs.keys() and all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.parametrize("settings", [optimizers.Adam(), optimizers.Adam(l2=1e-3)], ids=["one group", "two groups"])
def test_a_run_is_the_same_bit_by_bit(pair, settings):
    step, plain = pair(ema=0.9, optimizer=settings)
    begun = {name: tensor.clone() for name, tensor in step.model.state_dict().items()}
    for _ in range(5):
        step()
        plain()
    assert same(step, plain) and step.read_means() == plain.read_means()
    for weight in step.rounded:
        assert torch.equal(weight.low, weight.parameter.to(torch.bfloat16))
        assert weight.low.grad is not None and weight.parameter.grad is None
    assert all(not torch.equal(tensor, begun[name]) for name, tensor in step.model.state_dict().items())


def test_a_captured_run_is_the_same_with_weights_changed_before(pair, graphs, monkeypatch):
    """The warm-up changes copies and leaves gradients; then everything is put back."""
    left: list[torch.Tensor | None] = []
    both = step, plain = pair(ema=0.9)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: left.extend(weight.low.grad for weight in step.rounded) or 1)
    monkeypatch.setattr(steps.TrainingStep, "unprepared", property(lambda self: self.graph is None))
    for each in both:
        with torch.no_grad():
            for parameter in each.parameters.values():
                parameter.mul_(0.5)
        each.prepare()
    assert left[:4] == [None] * 4  # a graph keeps the addresses of its own gradients
    for weight in step.rounded:
        assert torch.equal(weight.low, weight.parameter.to(torch.bfloat16))
    for _ in range(3):
        step()
        plain()
    assert same(step, plain) and step.read_means() == plain.read_means()


@pytest.mark.parametrize("of_rounded", [False, True])
def test_a_run_is_resumed_with_and_without_them(pair, of_rounded):
    first, plain = pair()
    for _ in range(2):
        first()
        plain()
    resumed, other = pair()
    step, saved = (resumed, plain) if of_rounded else (other, first)
    step.model.load_state_dict(saved.model.state_dict())
    step.load_state(saved.state())
    step()
    saved()
    assert same(step, saved)


def test_outside_the_step_layers_have_their_own_weights(pair):
    step, _ = pair()
    step()
    assert all(parameter.dtype == torch.float32 for parameter in step.model.parameters())
    (weight,) = (weight for weight in step.rounded if weight.places == [(step.model.primary, "weight")])
    with in_place(step.rounded):
        assert step.model.primary.weight is weight.low
    assert step.model.primary.weight is weight.parameter
    assert [*step.model.state_dict()] == [*make_step().model.state_dict()]


def test_a_weight_changed_by_others_is_rounded_again(as_on_gpu):
    step = make_step()
    with torch.no_grad():
        step.rounded[0].parameter.add_(1.0)
    step.load_state(step.state())
    assert torch.equal(step.rounded[0].low, step.rounded[0].parameter.to(torch.bfloat16))


def test_a_hook_on_a_weight_sees_its_gradient(as_on_gpu, monkeypatch):
    seen = {}

    def hooked(model, trained):
        early, late = model.primary.weight, model.decoder.net[0].weight
        early.register_hook(lambda gradient: seen.update(early=gradient))
        late.register_post_accumulate_grad_hook(lambda weight: seen.update(late=weight.grad))
        return rounded_weights(model, trained)

    monkeypatch.setattr(steps, "rounded_weights", hooked)
    step = make_step()
    assert len(step.rounded) == 2
    step()
    assert {name: bool(gradient.any()) for name, gradient in seen.items()} == {"early": True, "late": True}


@dataclass(frozen=True, kw_only=True)
class Clipped(Classify):
    def backward(self, model, batch, losses):
        super().backward(model, batch, losses)
        nn.utils.clip_grad_norm_(model.parameters(), 1e-6)


def test_there_are_none_where_somebody_else_reads_the_gradients(as_on_gpu):
    """A task of its own way backward, another optimiser, or other processes."""
    assert len(make_step().rounded) == 4
    assert not make_step(task=Clipped()).rounded
    assert not make_step(optimizer=optimizers.RAdam()).rounded
    assert not make_step(team=Team(size=2)).rounded


def test_a_frozen_weight_is_none_of_them():
    layer = PrimaryCapsules(2, 2, 2)
    layer.weight.requires_grad_(False)
    assert not rounded_weights(layer, layer.parameters())


def test_they_are_what_layers_list_and_is_trained_in_float32():
    model = nn.ModuleList([PrimaryCapsules(2, 2, 2), Decoder(2, 3, (1, 4, 4), hidden=(5,)), nn.Linear(2, 2)])
    found = rounded_weights(model, model.parameters())
    assert [weight.parameter for weight in found] == [model[0].weight, model[1].net[0].weight, model[1].net[2].weight]
    assert not rounded_weights(model, model[2].parameters())
    assert not rounded_weights(model.double(), model.parameters())
    assert not make_step().rounded  # a CPU does not round


def test_a_weight_of_two_layers_has_one_copy():
    model = nn.ModuleList([PrimaryCapsules(2, 2, 2), PrimaryCapsules(2, 2, 2)])
    model[1].weight = model[0].weight
    (weight,) = rounded_weights(model, model.parameters())
    with in_place([weight]):
        assert model[0].weight is model[1].weight is weight.low


def test_the_update_is_one_program_that_also_rounds(pair, fresh_dynamo):
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    both = step, plain = pair(ema=0.9)
    for each in both:
        (group,) = each.optimizer.param_groups
        group |= {"foreach": True, "capturable": True}  # as on a GPU: on a CPU it works in a compiled program alone
        each.update = torch.compile(each._update, dynamic=False, backend=keep, fullgraph=True)
    for _ in range(3):
        step()
        plain()
    assert len(graphs) == 2 and same(step, plain)
    for weight in step.rounded:
        assert torch.equal(weight.low, weight.parameter.to(torch.bfloat16))
    # averages in the order of the update, else TorchInductor makes another kernel of them
    last = [weight.parameter for weight in step.rounded]
    assert all(mine is theirs for mine, theirs in zip(step.averages[0][1][-len(last) :], last, strict=True))


def test_the_forward_program_reads_them(as_on_gpu, fresh_dynamo):
    compiled, plain = make_step(), make_step()
    compiled.forward = torch.compile(compiled._forward, dynamic=False, backend="aot_eager")
    for _ in range(2):
        compiled()
        plain()
    assert same(compiled, plain)
