"""Warming up and capturing a step leaves no trace, here with a graph that replays by calling the step again."""

from dataclasses import replace

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from torchcaps.data import load
from torchcaps.data.batches import Batches
from torchcaps.papers import RECIPES
from torchcaps.runtime.distributed import ALONE, Team
from torchcaps.train.capture import Before, capture, first_step
from torchcaps.train.checkpoint import tensors_sha256
from torchcaps.train.optimizers import OneProgramAdam
from torchcaps.train.step import WARM_UP, TrainingStep
from torchcaps.train.tasks import WithoutGradients

CPU = torch.device("cpu")
# Adam and an average; RAdam whose beta1 changes, and images that are mixed; a model whose buffers count the steps; SGD
# and no backpropagation
each_optimizer = pytest.mark.parametrize(
    "recipe", ["smoke/capsnet", "smoke/em-capsnet-mixup", "smoke/sparsecaps", "smoke/experts"]
)


def make_step(
    recipe: str = "smoke/capsnet", n_steps: int = 6, device: torch.device = CPU, team: Team = ALONE, **changed
) -> TrainingStep:
    run = RECIPES[recipe].make()
    torch.manual_seed(0)
    batches = Batches(load(run.data, "train"), 16, run.augment, device)
    batches.new_epoch(torch.Generator().manual_seed(0))
    stage = next((stage for stage in run.stages if isinstance(stage.task, WithoutGradients)), run.stages[0])
    return TrainingStep(replace(stage, **changed), run.build().to(device), batches, n_steps, device, team)


@pytest.fixture
def tiling():
    """An option of the compiler that a retry switches off; it is back afterwards."""
    import torch._inductor.config

    with torch._inductor.config.patch({"triton.coalesce_tiling_analysis": True}):
        yield


def everything(step: TrainingStep) -> str:
    return tensors_sha256(step.everything() | {"first_bad": step.first_bad})


@each_optimizer
def test_a_captured_run_is_the_eager_one(graphs, recipe):
    eager, captured = make_step(recipe), make_step(recipe)
    capture(captured)
    assert len(graphs) == WARM_UP + 1
    for _ in range(6):
        eager()
        captured()
    assert everything(captured) == everything(eager)
    assert captured.read_means() == eager.read_means()


def test_a_network_that_the_compiler_gives_up_on_trains_all_the_same(graphs, tiling, monkeypatch):
    """Some versions of a compiler fail on some networks: the step is then the one that was written."""
    step, plain = make_step(), make_step()

    def fails(*batch):
        raise BackendCompilerFailed(lambda: None, TypeError("a bug of the compiler"), None)

    step.forward = fails
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: fails)
    with pytest.warns(UserWarning, match="torch.compile failed, so training is slower .* a bug of the compiler"):
        capture(step)
    step()
    plain()
    assert everything(step) == everything(plain)


def test_a_batch_that_the_compiler_gives_up_on_leaves_the_network_compiled(graphs, tiling, monkeypatch):
    step, plain = make_step(), make_step()
    compiled = []

    def compile(function, dynamic):
        def program(*args):
            if not args:  # the batch is made inside
                raise BackendCompilerFailed(lambda: None, TypeError("a bug of the compiler"), None)
            compiled.append(function.__name__)
            return function(*args)

        return program

    monkeypatch.setattr(torch, "compile", compile)
    step.forward = torch.compile(step._forward, dynamic=False)
    capture(step)
    step()
    plain()
    assert set(compiled) == {"_losses"}
    assert everything(step) == everything(plain)


@pytest.mark.parametrize("recipe", ["smoke/em-capsnet", "smoke/sparsecaps"])
@pytest.mark.parametrize("part", ["forward", "update"])
def test_several_processes_try_again_too(tiling, monkeypatch, part, recipe):
    """They capture no graph, so the first step itself is the one that compiles; batch norm and masks have counted."""
    step, plain = make_step(recipe), make_step(recipe)

    def fails(*batch):
        raise BackendCompilerFailed(lambda: None, TypeError("a bug of the compiler"), None)

    setattr(step, part, fails)
    step.compiles, step.team = True, Team(size=2)
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: fails)
    monkeypatch.setattr(TrainingStep, "_of_all", lambda self, losses: losses)
    with pytest.warns(UserWarning, match="torch.compile failed"):
        step()
    step()
    plain()
    plain()
    assert everything(step) == everything(plain)


def test_every_try_draws_the_same_numbers(tiling, monkeypatch):
    step, drawn = make_step(), []

    def once(self):
        drawn.append(torch.rand(()).item())
        if len(drawn) < 3:
            raise BackendCompilerFailed(lambda: None, TypeError("a bug of the compiler"), None)

    monkeypatch.setattr(TrainingStep, "once", once)
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    first_step(step, Before(step))
    assert len(drawn) == 3 and len(set(drawn)) == 1


@each_optimizer
def test_capturing_after_a_resume_keeps_everything_too_even_at_the_last_step(graphs, recipe):
    eager, captured = make_step(recipe), make_step(recipe)
    for _ in range(5):
        eager()
    state = {name: tensor.clone() for name, tensor in eager.state().items()}
    captured.model.load_state_dict(eager.model.state_dict())
    captured.load_state(state)
    capture(captured)
    eager()
    captured()
    assert everything(captured) == everything(eager)
    assert captured.read_means() == eager.read_means()


@pytest.fixture
def cuda_casts(monkeypatch):
    """A stand-in for CUDA's autocast: that of the CPU is entered in its place, so that a CPU shows what would be
    cast.
    """
    real = torch.autocast
    monkeypatch.setattr(
        torch, "autocast", lambda kind, dtype, enabled: real({"cuda": "cpu"}[kind], dtype, enabled=enabled)
    )


def convolved(step: TrainingStep) -> tuple[dict, set[torch.dtype]]:
    """The losses of a step, and in what the network's convolutions answered."""
    found, held = set(), []
    for layer in step.model.modules():
        if isinstance(layer, torch.nn.Conv2d):
            held.append(layer.register_forward_hook(lambda layer, args, out: found.add(out.dtype)))
    _, losses, _ = step.forward()
    for hook in held:
        hook.remove()
    return losses, found


@pytest.mark.parametrize(("precision", "seen"), [("bfloat16", torch.bfloat16), ("float32", torch.float32)])
def test_on_cuda_convolutions_have_the_precision_of_the_stage(cuda_casts, precision, seen):
    step = make_step("smoke/em-capsnet-mixup", precision=precision)
    losses, found = convolved(step)
    assert found == {torch.float32} and not step.casts  # on a CPU nothing is cast
    step.device = torch.device("cuda")
    losses, found = convolved(step)
    assert found == {seen} and step.casts == (seen == torch.bfloat16)
    assert losses["loss"].dtype == torch.float32


def test_on_a_cpu_the_precision_of_a_stage_changes_nothing():
    steps = [make_step("smoke/em-capsnet-mixup", precision=precision) for precision in ("bfloat16", "float32")]
    for step in steps:
        for _ in range(3):
            step()
    assert everything(steps[0]) == everything(steps[1])


def test_a_task_without_backpropagation_casts_nothing(cuda_casts):
    step = make_step("smoke/experts")
    step.device = torch.device("cuda")
    assert step.precision == "bfloat16" and not step.casts


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda_float32_is_nearer_to_the_cpu_than_bfloat16(monkeypatch):
    """One captured step from the same weights: without TF32 what RAdam keeps of the gradients is that of the CPU
    (bfloat16 is 3 % off).
    """
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    plain, far = make_step("smoke/em-capsnet-mixup"), {}
    plain()
    for precision in ("bfloat16", "float32"):
        fast = make_step("smoke/em-capsnet-mixup", device=torch.device("cuda"), precision=precision)
        fast()
        means = {name: tensor for name, tensor in plain.state().items() if name.endswith("/mean")}
        pairs = [(tensor, fast.state()[name].cpu()) for name, tensor in means.items()]
        far[precision] = (
            sum((a - b).square().sum() for a, b in pairs).sqrt() / sum(a.square().sum() for a, _ in pairs).sqrt()
        )
    assert far["float32"] < 1e-3 and far["bfloat16"] > 5e-3, far


def test_the_comparison_sees_a_step_more(graphs):
    eager, captured = make_step(), make_step()
    capture(captured)
    captured()
    assert everything(captured) != everything(eager)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("resumed", [False, True])
@each_optimizer
def test_the_compiled_update_is_that_of_the_optimiser_and_the_average(recipe, resumed):
    """The same gradients through the compiled update and, on a CPU, through one that is not: three steps, from the
    start or resumed.
    """
    rng = torch.Generator().manual_seed(1)
    fast, plain = make_step(recipe, device=torch.device("cuda")), make_step(recipe)
    if resumed:
        plain()
        for name, tensor in fast.model.state_dict().items():
            tensor.copy_(plain.model.state_dict()[name])
        fast.load_state(plain.state())
    for row in (0, 5, 9):  # by the last one RAdam divides by the spread
        for step in (fast, plain):
            for number, column in zip(step.now, step.plan, strict=True):
                number.copy_(column[row])
        for ours, theirs in zip(fast.parameters.values(), plain.parameters.values(), strict=True):
            theirs.grad = torch.randn(theirs.shape, generator=rng)
            ours.grad = theirs.grad.to("cuda").to(memory_format=torch.contiguous_format)
        loss = torch.tensor(torch.nan if row == 5 else 0.25)
        fast.apply({"loss": loss.cuda()})
        plain.apply({"loss": loss})
        for step in (fast, plain):
            assert [x.item() for x in step.now] == [column[int(step.counter)].item() for column in step.plan]
    assert fast.first_bad.item() == plain.first_bad.item() == 1 + resumed
    for name, tensor in plain.everything().items():
        if name.startswith(("model/", "ema/", "optimizer/", "counter", "totals/")):
            # experts have a learning rate of 100: what rounds is as large as the largest number
            size = tensor.abs().max().item()
            torch.testing.assert_close(
                fast.everything()[name].cpu(), tensor, rtol=1e-5, atol=1e-7 * max(1.0, size), equal_nan=True, msg=name
            )


@each_optimizer
def test_optimiser_and_average_are_one_program(recipe, monkeypatch):
    """A call such as `state_dict` inside ends a compiled program in PyTorch 2.11; all weights are then read twice."""
    graphs = []
    step = make_step(recipe, ema=0.9)
    if isinstance(step.optimizer, torch.optim.Adam):  # the one that a GPU has
        step.optimizer = OneProgramAdam(step.parameters.values(), step.now[0], foreach=True, capturable=True)
    step.gradients()
    step.update = torch.compile(
        step._update, dynamic=False, backend=lambda graph, inputs: graphs.append(graph) or graph.forward
    )
    monkeypatch.setattr(step.model, "state_dict", lambda **how: pytest.fail("the update asked for the state"))
    step.apply({"loss": torch.zeros(())})
    assert len(graphs) == 1
    held, weights = step.averages[0]
    assert all(mine is theirs for mine, theirs in zip(weights, step.parameters.values(), strict=True))
    assert sum(len(part) for part, _ in step.averages) == len(step.ema) and len(held) == len(weights)


@each_optimizer
def test_the_scalars_that_are_written_at_once_are_not_read_by_one_another(recipe):
    """A compiled `_foreach_copy_` runs its parts at the same time and in place."""
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph.forward

    step = make_step(recipe)
    step.gradients()
    step.update = torch.compile(step._update, dynamic=False, backend=keep)
    step.apply({"loss": torch.zeros(()), "other": torch.zeros(())})
    (copied,) = [node for graph in graphs for node in graph.graph.nodes if node.target is torch._foreach_copy_]
    held, after = copied.args
    assert len(held) >= 2 + len(step.now)
    for number, source in enumerate(after):
        read, around = set(), [source]
        while around:
            node = around.pop()
            read.add(node)
            around += node.all_input_nodes
        assert not read & {*held[:number], *held[number + 1 :]}, f"{source} reads what another one writes"


@each_optimizer
def test_the_numbers_of_the_optimiser_are_those_of_the_step_to_come(graphs, recipe):
    def now(step: TrainingStep) -> list[float]:
        return [number.item() for number in step.now]

    step, resumed, captured = make_step(recipe), make_step(recipe), make_step(recipe)
    for done in range(4):
        assert now(step) == [column[done].item() for column in step.plan] and int(step.counter) == done
        step()
    resumed.load_state(step.state())
    captured.load_state(step.state())
    capture(captured)
    assert now(resumed) == now(captured) == now(step)


def test_the_first_step_with_a_bad_loss_is_kept_and_sums_are_exact():
    step = make_step()
    step.gradients()
    for loss in (0.1, float("nan"), 0.2, float("inf")):
        step.apply({"loss": torch.tensor(loss)})
    assert int(step.first_bad) == 1 and int(step.counter) == 4
    step = make_step()
    step.gradients()
    for _ in range(3):
        step.apply({"loss": torch.tensor(0.1)})
    assert step.totals["loss"].item() == 3 * torch.tensor(0.1).double().item() and int(step.first_bad) == -1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@each_optimizer
def test_on_cuda_a_captured_step_is_the_same_step_without_a_graph(recipe):
    """Nothing in it adds up by atomics, so both give the same numbers but for what a library chooses by itself."""
    device = torch.device("cuda")
    captured, eager = make_step(recipe, device=device), make_step(recipe, device=device)
    for _ in range(6):
        captured()
        eager.once()
    eager.unread = 6
    assert captured.graph is not None and eager.graph is None
    assert captured.read_means() == pytest.approx(eager.read_means(), rel=1e-3)
    for name, tensor in eager.everything().items():
        torch.testing.assert_close(captured.everything()[name], tensor, rtol=1e-2, atol=1e-4, msg=name)


def test_an_average_of_weights_leaves_out_the_boosts_and_keeps_the_statistics_of_batch_normalisation():
    sparse, norm = make_step("smoke/sparsecaps"), make_step("smoke/em-capsnet")
    assert set(sparse.ema) == set(dict(sparse.model.named_parameters()))
    assert {"mask.boost", "mask.frequency"} <= set(sparse.model.state_dict())
    assert any(name.endswith("running_mean") for name in norm.ema)
