"""`torchcaps bench ladder` prints table 3 of Jeong 2019: measured, in one run, with the paper's numbers beside it."""

import io
import math
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from torchcaps import cli
from torchcaps.bench import train
from torchcaps.bench.train import make_step
from torchcaps.ops.dynamic import cpu
from torchcaps.papers import RECIPES
from torchcaps.papers.jeong2019 import bench
from torchcaps.papers.jeong2019.bench import PRINTED, Contender, bench_ladder, contenders

CPU = torch.device("cpu")


@pytest.fixture
def small(monkeypatch):
    """The table's names for networks of seconds."""
    capsnet, ladder_net = RECIPES["smoke/capsnet"].make(), RECIPES["smoke/lcapsnet"].make()
    few = [
        Contender(name="L-CapsNet, K = 70", run=ladder_net),
        Contender(name="CapsNet, r = 3", run=capsnet),
        Contender(name="CapsNet, r = 3, reference ops", run=capsnet, reference=True),
    ]
    monkeypatch.setattr(bench, "contenders", lambda: few)
    monkeypatch.setattr(train, "CHUNK", 2)


def rows(**how) -> dict[str, list[str]]:
    """The cells by method, from the parameters on."""
    text = io.StringIO()
    bench_ladder(CPU, 2, Console(file=text, width=300), **how)
    printed = [line for line in text.getvalue().splitlines() if line.startswith("│")]
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed]
    return {line[0]: line[1:] for line in lines} | {"text": text.getvalue()}


@pytest.mark.slow
def test_every_network_is_timed_with_and_without_the_optimiser(small):
    found = rows()
    name, yard, plain = "L-CapsNet, K = 70", "CapsNet, r = 3", "CapsNet, r = 3, reference ops"
    for row in (found[name], found[yard], found[plain]):
        assert float(row[1]) > 0 and float(row[3]) > 0
    assert float(found[name][2]) == pytest.approx(float(found[name][1]) / float(found[yard][1]), abs=0.02)
    assert found[yard][2] == found[yard][4] == "1.00"
    assert found[name][-2:] == ["0.2159", "0.12"] and found[yard][-2:] == ["1.732", "1.00"]
    assert found[plain][-2:] == ["-", "-"]
    assert "batch 16" in found["text"]


@pytest.mark.slow
def test_a_network_that_learns_otherwise_gets_no_time(small, monkeypatch):
    blocked = cpu.routed
    monkeypatch.setattr(cpu, "routed", lambda **args: tuple(part * math.nan for part in blocked(**args)))
    found = rows(only=["CapsNet, r = 3"])
    assert found["CapsNet, r = 3"][1:5] == ["wrong", "-", "wrong", "-"]
    assert found["CapsNet, r = 3, reference ops"][2] == "-"  # nothing is divided by what is wrong
    assert "CapsNet, r = 3: wrong: mean losses" in found["text"]


def test_the_contenders_are_the_papers_at_its_batch():
    found = contenders()
    names = [one.name for one in found]
    assert set(PRINTED) < set(names) and len(names) == len(set(names)) == 11
    for one in found:
        stage = one.run.stages[0]
        assert (stage.batch, stage.ema, one.run.augment, one.run.data) == (100, 0.0, (), "mnist")
        # one optimiser and learning rate: only the losses differ
        assert replace(stage, task=found[0].run.stages[0].task) == found[0].run.stages[0]
        with torch.device("meta"):
            model = one.run.build()
        said = one.name.removesuffix(", reference ops").rpartition(" = ")[-1]
        if said.isdigit():
            assert int(said) == (model.classes.n_kept if one.name.startswith("L-") else model.classes.n_iters)
        assert one.reference == one.name.endswith("reference ops")


def test_the_command_takes_methods_by_name(small):
    answer = CliRunner().invoke(cli.app, ["bench", "ladder", "--device", "cpu", "--steps", "2", "--only", "L-CapsNet"])
    assert answer.exit_code == 0 and "L-CapsNet" in answer.stdout
    assert "r = 3 " not in answer.stdout.replace("by CapsNet, r = 3", "")
    with pytest.raises(ValueError, match="--only 'none' fits no method; there are:\n  L-CapsNet, K = 70"):
        bench_ladder(CPU, 10, Console(file=io.StringIO()), ["none"])


def test_forward_and_backward_leave_the_weights_alone():
    run = RECIPES["smoke/lcapsnet"].make()
    step = make_step(replace(run, augment=()), CPU, 20, False)
    before = [p.clone() for p in step.model.parameters()]
    step.gradients()
    assert all(torch.equal(a, b) for a, b in zip(before, step.model.parameters(), strict=True))
    assert all(p.grad is not None for p in step.model.parameters())
