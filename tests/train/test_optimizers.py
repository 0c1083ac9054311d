"""RAdam with numbers from a table is RAdam, and the table is the one-cycle of learning rate and beta1."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from torchcaps.papers import RECIPES
from torchcaps.train import Options
from torchcaps.train import train as train_run
from torchcaps.train.optimizers import SGD, Adam, OneProgramAdam, RAdam, RectifiedAdam
from torchcaps.train.plain import from_plain, to_plain
from torchcaps.train.recipe import KINDS, Stage
from torchcaps.train.schedules import Cosine, OneCycle

N_STEPS = 12  # the spread is trusted from the sixth on


def train(optimizer_of, gradients: list[Tensor], before_step=lambda step: None) -> Tensor:
    """A parameter after a step with each of these gradients."""
    parameter = nn.Parameter(torch.linspace(-1, 1, gradients[0].numel(), dtype=torch.float64))
    optimizer = optimizer_of([parameter])
    for step, gradient in enumerate(gradients):
        before_step(step)
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


def train_ours(settings: RAdam, rates: list[float], shares: list[float], gradients: list[Tensor]) -> Tensor:
    now = [torch.zeros((), dtype=torch.float64) for _ in range(3)]

    def look_up(step: int) -> None:
        for number, value in zip(now, settings.numbers(step, rates[step], shares[step]), strict=True):
            number.fill_(value)

    return train(lambda parameters: settings.make(parameters, now), gradients, look_up)


@pytest.fixture
def gradients(rng) -> list[Tensor]:
    return [torch.randn(5, dtype=torch.float64, generator=rng) for _ in range(N_STEPS)]


@pytest.mark.parametrize("beta2", [0.999, 0.9])
def test_with_one_beta1_it_is_the_radam_of_pytorch(gradients, beta2):
    theirs = train(lambda parameters: torch.optim.RAdam(parameters, 0.01, (0.8, beta2)), gradients)
    ours = train_ours(RAdam(beta1=0.8, beta2=beta2), [0.01] * N_STEPS, [1.0] * N_STEPS, gradients)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    another = train_ours(RAdam(beta1=0.8, beta2=beta2), [0.01] * N_STEPS, [0.99] * N_STEPS, gradients)
    assert not torch.allclose(another, theirs, rtol=1e-6)  # a beta1 that is 1 % off would show


def programs(function) -> list:
    """Compile and call a function; return the graphs that the compiler saw."""
    torch._dynamo.reset()
    graphs = []
    torch.compile(function, backend=lambda graph, inputs: graphs.append(graph) or graph.forward)()
    return graphs


@pytest.mark.parametrize(("kind", "n_programs"), [(OneProgramAdam, 1), (torch.optim.Adam, 2)])
def test_adam_and_what_follows_are_one_program(kind, n_programs):
    weight = nn.Parameter(torch.ones(3))
    weight.grad, average = torch.ones(3), torch.zeros(3)
    optimizer = kind([weight], torch.tensor(0.1), foreach=True, capturable=True)

    @torch.no_grad()
    def update() -> None:
        optimizer.step()
        average.lerp_(weight, 0.5)

    assert len(programs(update)) == n_programs
    torch.testing.assert_close(average, torch.full((3,), 0.45))


def test_compiled_it_is_the_adam_of_pytorch(gradients):
    rate, betas = torch.tensor(0.01, dtype=torch.float64), (0.8, 0.9)
    theirs = train(lambda parameters: torch.optim.Adam(parameters, rate, betas, fused=True), gradients)
    made = []

    def ours_of(parameters: list[nn.Parameter]) -> OneProgramAdam:
        made.append(OneProgramAdam(parameters, rate, betas, foreach=True, capturable=True))
        made[0].step = torch.compile(made[0].step, backend="eager")
        return made[0]

    ours = train(ours_of, gradients)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)  # its bias corrections are float32
    (kept,) = made[0].state.values()
    assert set(kept) == {"step", "exp_avg", "exp_avg_sq"} and int(kept["step"]) == N_STEPS
    another = train(lambda parameters: torch.optim.Adam(parameters, rate, (0.8, 0.91), fused=True), gradients)
    assert not torch.allclose(another, ours, rtol=1e-4)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_adam_shrinks_matrices_and_leaves_vectors(on_gpu):
    """Gradients of zero show the shrinking alone: of up to the learning rate a step, however small `l2` is."""
    matrix, vector = (nn.Parameter(torch.ones(shape)) for shape in ((2, 2), (2,)))
    rate, settings = torch.tensor(0.01), Adam(l2=2e-7)
    if on_gpu:
        optimizer = OneProgramAdam(settings._groups([matrix, vector]), rate, foreach=True, capturable=True)
        optimizer.step = torch.compile(optimizer.step, backend="eager", fullgraph=True)
    else:
        optimizer = settings.make([matrix, vector], [rate])
    for _ in range(10):
        matrix.grad, vector.grad = torch.zeros(2, 2), torch.zeros(2)
        optimizer.step()
    assert torch.equal(vector, torch.ones(2))
    # an epsilon of 1e-8 takes a twentieth of a gradient of 2e-7
    torch.testing.assert_close(matrix.detach(), torch.full((2, 2), 1 - 0.01 * 10 / 1.05), rtol=2e-3, atol=0)


def test_without_l2_adam_has_one_group_of_weights():
    parameters = [nn.Parameter(torch.ones(shape)) for shape in ((2, 2), (2,))]
    (group,) = Adam().make(parameters, [torch.tensor(0.1)]).param_groups
    assert group["params"] == parameters and group["weight_decay"] == 0


def train_sgd(settings: SGD, rates: list[float], gradients: list[Tensor]) -> Tensor:
    now = [torch.zeros((), dtype=torch.float64) for _ in range(2)]

    def look_up(step: int) -> None:
        for number, value in zip(now, settings.numbers(step, rates[step], 1.0), strict=True):
            number.fill_(value)

    return train(lambda parameters: settings.make(parameters, now), gradients, look_up)


def test_sgd_is_that_of_pytorch_with_momentum_and_l2(gradients):
    theirs = train(lambda parameters: torch.optim.SGD(parameters, 0.01, momentum=0.8, weight_decay=0.1), gradients)
    torch.testing.assert_close(
        train_sgd(SGD(momentum=0.8, l2=0.1), [0.01] * N_STEPS, gradients), theirs, rtol=1e-12, atol=0
    )
    for other in (SGD(momentum=0.79, l2=0.1), SGD(momentum=0.8, l2=0.11)):
        assert not torch.allclose(train_sgd(other, [0.01] * N_STEPS, gradients), theirs, rtol=1e-6)


def test_the_rate_of_sgd_is_that_of_its_step():
    """Two steps of one number without momentum: each gradient times its own learning rate."""
    gradients = [torch.tensor([2.0], dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64)]
    assert train_sgd(SGD(momentum=0.0), [0.1, 0.5], gradients).item() == pytest.approx(-1 - 0.1 * 2 + 0.5)


def test_a_beta1_that_changes_is_the_one_of_its_step():
    """One number, two steps, beta1 0.9 and then 0.45: no spread yet, so the mean is scaled by its bias alone."""
    settings, gradients = (
        RAdam(beta1=0.9),
        [torch.tensor([2.0], dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64)],
    )
    first = -1 - 0.1 * (0.1 * 2.0) / (1 - 0.9)
    mean = 0.45 * (0.1 * 2.0) + 0.55 * -1.0
    wanted = first - 0.2 * mean / (1 - 0.45**2)
    assert train_ours(settings, [0.1, 0.2], [1.0, 0.5], gradients).item() == pytest.approx(wanted, rel=1e-12)


def test_once_the_spread_is_trusted_the_mean_is_divided_by_it():
    """Ten equal gradients, beta1 halved in the last step: worked out by hand."""
    settings, gradients = RAdam(beta1=0.9), [torch.tensor([3.0], dtype=torch.float64)] * 10
    shares = [1.0] * 9 + [0.5]
    before = train_ours(settings, [0.1] * 10, shares, gradients[:9])
    after = train_ours(settings, [0.1] * 10, shares, gradients)
    mean = 0.45 * 3 * (1 - 0.9**9) + 0.55 * 3
    length = 1999 - 20 * 0.999**10 / (1 - 0.999**10)
    rectified = ((length - 4) * (length - 2) * 1999 / (1995 * 1997 * length)) ** 0.5
    spread = 3 * (1 - 0.999**10) ** 0.5 + 1e-8
    step = 0.1 * rectified * (1 - 0.999**10) ** 0.5 / (1 - 0.45**10) * mean / spread
    assert (before - after).item() == pytest.approx(step, rel=1e-9)


def test_a_parameter_without_a_gradient_stays():
    parameters = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    optimizer = RectifiedAdam(parameters, [torch.tensor(0.1), torch.tensor(0.0), torch.tensor(0.1)], RAdam())
    parameters[0].grad = torch.ones(2)
    optimizer.step()
    assert not parameters[0].eq(1).any() and parameters[1].eq(1).all()
    optimizer.zero_grad()
    assert parameters[0].grad is None


def test_compiled_it_is_one_program_for_all_steps(gradients, fresh_dynamo):
    """A new beta1 is another number in a tensor, not another program."""
    programs = []

    def count(graph, inputs):
        programs.append(graph)
        return graph.forward

    settings, shares = RAdam(), [1 - step / 100 for step in range(N_STEPS)]
    plain = train_ours(settings, [0.01] * N_STEPS, shares, gradients)

    class Compiled(RAdam):
        def make(self, parameters, now):
            optimizer = super().make(parameters, now)
            optimizer.step = torch.compile(optimizer.step, backend=count, dynamic=False, fullgraph=True)
            return optimizer

    torch.testing.assert_close(train_ours(Compiled(), [0.01] * N_STEPS, shares, gradients), plain, rtol=1e-12, atol=0)
    assert len(programs) == 1


def test_the_one_cycle_goes_where_the_paper_says():
    stage = Stage(learning_rate=5e-4, optimizer=RAdam(beta1=0.9), schedule=OneCycle())
    n_steps = 1000
    at = {
        step: (stage.learning_rate * stage.schedule(step, n_steps), 0.9 * stage.schedule.momentum(step, n_steps))
        for step in range(n_steps)
    }
    assert at[0] == pytest.approx((1e-5, 0.9))
    assert at[50] == pytest.approx((2.55e-4, 0.855))  # half way up a line
    assert at[100] == pytest.approx((5e-4, 0.81))
    assert at[n_steps - 1] == pytest.approx((1e-5, 0.9))
    assert (at[549][0] + at[550][0]) / 2 == pytest.approx(2.55e-4, rel=1e-3)  # half way down a cosine
    assert max(learning_rate for learning_rate, _ in at.values()) == at[100][0]
    assert all(0 <= OneCycle(start=0)(step, n) <= 1 for n in (1, 2, 3) for step in range(n))  # however short


def test_adam_refuses_a_beta1_that_changes():
    with pytest.raises(
        ValueError, match=r"Adam keeps beta1 as it is and the schedule multiplies it by 0\.95; use RAdam"
    ):
        Adam().numbers(0, 1e-3, 0.95)


def test_a_stage_stored_before_there_was_a_choice_was_trained_by_adam():
    stage = Stage(schedule=Cosine())
    plain = to_plain(stage)
    del plain["optimizer"]
    assert from_plain(plain, KINDS) == stage
    assert from_plain(to_plain(replace(stage, optimizer=RAdam(beta1=0.5))), KINDS).optimizer == RAdam(beta1=0.5)


@pytest.mark.slow
def test_golden_losses_notice_a_beta1_that_does_not_change(tmp_path):
    run = RECIPES["smoke/em-capsnet-mixup"].make()
    run = replace(run, stages=(replace(run.stages[0], schedule=OneCycle(low=1.0)),))
    trained = train_run(run, name="x", seed=0, options=Options(out=tmp_path, progress=False, log_every=1))
    golden = json.loads((Path(__file__).parents[1] / "golden" / "smoke-em-capsnet-mixup.json").read_text())
    assert [line["loss"] for line in trained.curve] != pytest.approx(golden, rel=2e-3)
