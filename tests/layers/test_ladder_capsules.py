"""Networks of the code and ladder capsules against the same computed one class at a time."""

import math
import re

import pytest
import torch

from torchcaps.layers import Capsules, CodeNets, LadderCapsules, LadderForm
from torchcaps.ops import length, misfit, propagate, regress, squash, unsquash
from torchcaps.ops.ladder import disagreement, mean_distance, predictions
from torchcaps.ops.squash import direction


def net_by_hand(nets: CodeNets, net: int, copy: int, code: torch.Tensor) -> torch.Tensor:
    """One network alone, layer by layer."""
    size = nets.sizes[0]
    hidden = (code @ nets.code_weight[:, net * size : (net + 1) * size] + nets.code_bias[net, copy]).relu()
    for number, (weight, bias) in enumerate(zip(nets.weights, nets.biases, strict=True)):
        hidden = (hidden.relu() if number else hidden) @ weight[net] + bias[net]
    return hidden if nets.linear else hidden.relu()


def shaken(module: torch.nn.Module) -> torch.nn.Module:
    """Biases that are not zero, in float64."""
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module.double()


def some_capsules(rng, *batch: int, n: int = 9, d: int = 3) -> Capsules:
    return Capsules.of(squash(torch.randn(*batch, n, d, generator=rng, dtype=torch.float64)))


def layer_of(**how) -> LadderCapsules:
    return shaken(LadderCapsules(9, 2, 3, 4, **({"n_kept": 4, "init": "paper"} | how)))


def untrained(**how) -> LadderCapsules:
    return LadderCapsules(9, 10, 3, 4, **({"n_kept": 4, "init": "paper"} | how)).double()


@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize(("n_nets", "n_copies"), [(3, 1), (1, 4), (2, 3)])
def test_every_net_is_a_perceptron_of_its_own(n_nets, n_copies, linear, rng):
    nets = shaken(CodeNets(6, (5, 4, 7), n_nets, n_copies, n_active=2, linear=linear))
    code = torch.rand(2, 3, 6, generator=rng, dtype=torch.float64)
    found = nets(code)
    assert found.shape == (n_nets, n_copies, 2, 3, 7) and (found < 0).any() == linear
    for net in range(n_nets):
        for copy in range(n_copies):
            torch.testing.assert_close(found[net, copy], net_by_hand(nets, net, copy, code))


def test_copies_differ_by_their_embedding_alone():
    nets = CodeNets(6, (8, 4), 1, 3, n_active=2)
    code = torch.ones(2, 6)
    assert not torch.allclose(nets(code)[0, 0], nets(code)[0, 1])
    with torch.no_grad():
        nets.code_bias.zero_()
    torch.testing.assert_close(nets(code)[0, 0], nets(code)[0, 1])


def test_a_code_of_another_length_is_refused():
    with pytest.raises(ValueError, match=re.escape("a code of 6 capsules, got [2, 5]")):
        CodeNets(6, (5, 4), 1, n_active=2)(torch.ones(2, 5))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("agreement", ["down", "up", "both", "none"])
def test_the_layer_is_the_papers_equations_class_by_class(agreement, shared, rng):
    layer, capsules = layer_of(agreement=agreement, shared=shared), some_capsules(rng, 5)
    found = layer.ladder(capsules)
    kept = found.kept
    for j in range(2):

        def net(nets, kind=0, j=j):
            at = (kind, j) if shared else (kind * 2 + j, 0)
            return net_by_hand(nets, *at, kept.code)

        def matrices(kind, j=j):
            maker, number = list(layer.makers.values())[kind], 0 if shared else j
            weight = maker.weight[number].unflatten(1, (-1, 4))  # [m h e]
            made = torch.einsum("bh,mhe->bme", net(layer.hidden, kind), weight) + maker.bias[number]
            return made.view(5, 1, 4, 3, 4)

        transforms = matrices(0)
        shares = net(layer.shares).sigmoid().view(5, 1, 4)
        pose_sum = propagate(kept.poses, transforms, shares)
        if agreement == "none":
            torch.testing.assert_close(found.capsules.poses[:, j], squash(pose_sum)[:, 0])
            torch.testing.assert_close(found.capsules.activity[:, j], length(squash(pose_sum))[:, 0])
            continue
        parts = []
        if agreement != "up":
            told = regress(pose_sum, matrices(1))
            torch.testing.assert_close(found.regressed[:, j], told[:, 0])
            parts.append(misfit(told, kept.poses, kept.weights))
        if agreement != "down":
            parts.append(disagreement(predictions(kept.poses, transforms), pose_sum, shares, kept.weights))
        off = torch.stack(parts).mean(0)[:, 0]
        torch.testing.assert_close(found.misfit[:, j], off)
        torch.testing.assert_close(found.capsules.activity[:, j], (-5.12 * off).exp())
        torch.testing.assert_close(
            found.capsules.poses[:, j], (-5.12 * off).exp().unsqueeze(-1) * direction(pose_sum)[:, 0]
        )


def test_the_withdrawn_form_regresses_from_the_direction_and_takes_plain_distances(rng):
    form = LadderForm(hidden=(1, 2, 3), share_hidden=(1, 1, 1), from_direction=True, squared=False, start="xavier")
    layer, capsules = layer_of(form=form), some_capsules(rng, 5)
    assert layer.hidden.sizes == (12, 24, 36) and layer.shares.sizes == (4, 4, 4, 4)
    found = layer.ladder(capsules)
    transforms, regressors = (layer._formed(made, torch.Size([5])) for made in layer._made(found.kept.code))
    shares = layer.shares(found.kept.code)[:, 0].movedim(0, 1).sigmoid()
    told = regress(direction(propagate(found.kept.poses, transforms, shares)), regressors)
    torch.testing.assert_close(found.misfit, mean_distance(told, found.kept.poses, found.kept.weights))


def test_sizes_are_table_1():
    with torch.device("meta"):
        layer = LadderCapsules(1152, 10, 8, 16, 70)
    assert layer.hidden.sizes == (8 * 16 * 3, 8 * 16 * 2, 8 * 16)
    assert [maker.bias.shape for maker in layer.makers.values()] == [(10, 70 * 8, 16)] * 2
    assert layer.shares.sizes == (70 * 3, 70 * 2, 70, 70)
    assert (layer.hidden.n_nets, layer.shares.n_nets) == (20, 10)


@pytest.mark.parametrize(("agreement", "n_nets"), [("down", 4), ("both", 4), ("up", 2), ("none", 2)])
def test_nobody_regresses_without_a_ladder_and_every_parameter_learns(agreement, n_nets, rng):
    layer = layer_of(agreement=agreement)
    assert layer.hidden.n_nets == n_nets == 2 * len(layer.makers)
    (layer(some_capsules(rng, 6)).activity ** 2).sum().backward()
    assert {name for name, p in layer.named_parameters() if p.grad is None or not p.grad.any()} == set()


@pytest.mark.parametrize("code", ["kept", "constant"])
def test_only_the_code_tells_where_the_kept_rows_stood(code, rng):
    """The same four rows at even places and at odd ones; the rest is empty."""
    layer, rows = layer_of(code=code), some_capsules(rng, n=4).poses
    capsules = torch.zeros(2, 9, 3, dtype=torch.float64)
    capsules[0, 0:8:2], capsules[1, 1:8:2] = rows, rows
    found = layer.ladder(capsules)
    assert torch.equal(*found.kept.poses) and not torch.equal(
        *found.kept.code
    )  # the loss of the code sees the difference
    assert torch.allclose(*found.misfit) == (code == "constant")


@pytest.mark.parametrize("n_kept", [1, 9, None])
def test_one_or_all_may_be_kept(n_kept, rng):
    found = layer_of(n_kept=n_kept).ladder(some_capsules(rng, 2, 3))
    assert found.capsules.poses.shape == (2, 3, 2, 4)
    assert (found.kept.code.sum(-1) == (n_kept or 9)).all()
    assert found.capsules.activity.isfinite().all()


@pytest.mark.parametrize(("start", "told"), [("linear", 0.01), ("told", 0.1)])
def test_before_it_is_told_anything_it_tells_next_to_nothing(start, told):
    """Whatever the number of kept capsules."""
    for n_kept in (5, 40):
        torch.manual_seed(0)
        layer = LadderCapsules(80, 4, 8, 16, n_kept, form=LadderForm(start=start))
        poses = torch.nn.functional.normalize(torch.randn(10, 80, 8), dim=-1) * 0.7
        assert length(layer.ladder(poses).regressed).mean() < told


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("far", [0.1, 0.6])
def test_it_begins_by_telling_means_and_is_as_active_as_pull_and_push_leave_it(shared, far, rng):
    """By hand, with nothing random in the last layer: where poses vary little means are told so short that the misfit
    makes up for it.
    """
    layer = untrained(shared=shared, width=4)
    mean = 0.8 * torch.nn.functional.normalize(torch.randn(9, 3, generator=rng, dtype=torch.float64), dim=-1)
    away = far * torch.randn(9, 3, generator=rng, dtype=torch.float64)
    capsules = Capsules(torch.stack([mean + away, mean - away]), torch.arange(9.0, dtype=torch.float64).expand(2, 9))
    told_alone(layer, capsules)
    mean, variance, wanted = (
        mean[5:],
        away[5:].square().sum(-1).mean(),
        -math.log(0.245) / 5.12,
    )  # the last four are kept in both
    told = layer.ladder(Capsules(torch.cat([torch.zeros(5, 3), mean]), capsules.activity[0])).regressed
    shorter = 1 - ((wanted - variance).clamp(min=0) / mean.square().sum(-1).mean()).sqrt()
    torch.testing.assert_close(told, (shorter * mean).expand(10, 4, 3))
    assert (shorter < 0.9) == (far == 0.1) and shorter > 0.3
    if far == 0.1:  # the mean over both sides; what is told is longer on one than on the other
        assert layer.ladder(capsules).misfit.mean().item() == pytest.approx(wanted, rel=0.05)


def told_alone(layer: LadderCapsules, capsules: Capsules) -> torch.Tensor:
    """Return the regressed poses before the squash, with nothing random in the last layers."""
    for weight in (*(maker.weight for maker in layer.makers.values()), layer.shares.weights[-1]):
        torch.nn.init.zeros_(weight)
    layer.tell(capsules)
    return unsquash(layer.ladder(capsules).regressed)


@pytest.mark.parametrize("form", [{}, {"from_direction": True, "squared": False}])
def test_telling_from_a_direction_and_by_distances_starts_as_active(form, rng):
    mean = 0.8 * torch.nn.functional.normalize(torch.randn(9, 3, generator=rng, dtype=torch.float64), dim=-1)
    layer, capsules = untrained(form=LadderForm(**form)), Capsules.of(mean.expand(2, 9, 3))
    told_alone(layer, capsules)
    torch.testing.assert_close(layer(capsules).activity, torch.full((2, 10), 0.245, dtype=torch.float64))


def test_where_there_is_nothing_to_tell_nothing_is_told():
    layer, empty = untrained(), Capsules.of(torch.zeros(3, 9, 3, dtype=torch.float64))
    assert not told_alone(layer, empty).any() and not any(maker.bias.any() for maker in layer.makers.values())


def test_it_is_told_once_and_only_if_it_starts_so_and_regresses(rng):
    first, second = some_capsules(rng, 6), some_capsules(rng, 6)
    layer = untrained()
    layer.tell(first)
    told = [maker.bias.clone() for maker in layer.makers.values()]
    layer.tell(second)
    assert all(
        bias.any() and torch.equal(bias, maker.bias) for bias, maker in zip(told, layer.makers.values(), strict=True)
    )
    for other in (untrained(agreement="up"), untrained(form=LadderForm(start="xavier"))):
        other.tell(first)
        assert not any(maker.bias.any() for maker in other.makers.values())


def test_an_unknown_start_is_refused():
    with pytest.raises(ValueError, match=re.escape("start must be one of told, linear, xavier; got 'zero'")):
        CodeNets(6, (5, 4), 1, n_active=2, start="zero")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"n_kept": 10}, "10 of 9 capsules cannot be kept; give n_kept from 1 to 9, or None for all"),
        ({"n_kept": 0}, "0 of 9 capsules cannot be kept"),
        ({"agreement": "sideways"}, "agreement must be one of down, up, both, none; got 'sideways'"),
        ({"code": "random"}, "code must be one of kept, constant; got 'random'"),
    ],
)
def test_what_cannot_be_is_refused(how, message):
    with torch.device("meta"), pytest.raises(ValueError, match=re.escape(message)):
        LadderCapsules(9, 2, 3, 4, **({"n_kept": 4} | how))


def test_other_capsules_are_refused(rng):
    with pytest.raises(
        ValueError, match=re.escape("LadderCapsules expects [..., 9 capsules, 3 dimensions each], got [2, 8, 3]")
    ):
        layer_of()(torch.zeros(2, 8, 3, dtype=torch.float64))


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"agreement": "both"}, pytest.param({"shared": True}, marks=pytest.mark.slow)])
def test_training_compiles_whole(how, fresh_dynamo, rng):
    """A captured step has no branch on values, and no shape that depends on them."""
    layer = layer_of(**how)
    poses = some_capsules(rng, 3).poses

    def loss(x):
        return layer(x).activity.square().sum()

    loss(poses).backward()
    eager = {name: p.grad.clone() for name, p in layer.named_parameters()}
    layer.zero_grad()
    torch.compile(loss, fullgraph=True, backend="aot_eager")(poses).backward()
    for name, p in layer.named_parameters():
        torch.testing.assert_close(p.grad, eager[name], msg=name)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_it_compiles_for_the_device(fresh_dynamo, rng):
    """TorchInductor of PyTorch 2.11 failed where the kept rows were found by a search and then summed."""
    layer = LadderCapsules(1152, 10, 8, 16, 100, width=8).cuda()
    poses = squash(torch.randn(128, 1152, 8, generator=rng).cuda())
    activity = torch.compile(layer, fullgraph=True)(poses).activity
    torch.testing.assert_close(activity, layer(poses).activity, rtol=1e-3, atol=0)
    activity.square().sum().backward()


def test_the_misfit_is_the_mean_over_the_inputs_that_are_there(rng):
    layer, poses = LadderCapsules(6, 3, 8, 5, n_kept=4), squash(torch.randn(2, 6, 8, generator=rng))
    present = torch.tensor([[True, False, True, False, False, False], [True, True, True, True, True, False]])
    found = layer.ladder(Capsules.of(poses, present))
    away = (found.regressed - found.kept.poses.unsqueeze(1)).square().sum(-1)  # [b j k]
    wanted = [away[n][:, present[n][found.kept.index[n]]].mean(-1) for n in range(2)]
    torch.testing.assert_close(found.misfit, torch.stack(wanted))
    assert found.kept.code.sum(-1).tolist() == [2, 4]
