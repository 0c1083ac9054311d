"""`torchcaps bench train` times a step beside the reference, and only one that learns alike."""

import math

import pytest
import torch

from torchcaps.bench import memory, train
from torchcaps.ops import backend
from torchcaps.ops.dynamic import cpu
from torchcaps.papers import RECIPES

CPU = torch.device("cpu")


def lines(recipe: str = "smoke/capsnet") -> list[str]:
    return train.bench_train(RECIPES[recipe], CPU, 4).splitlines()


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Chunks of four steps, one of which is timed."""
    monkeypatch.setattr(train, "CHUNK", 4)


def test_a_step_is_timed_beside_the_reference():
    fast, plain, checked = lines()
    assert fast.startswith("smoke/capsnet: ") and "routing: blocked (batch 16, " in fast
    assert plain.startswith("  with the reference ops: ") and "routing: reference; " in plain
    assert all("ms per step" in line and "images/s" in line and "MiB" in line for line in (fast, plain))
    assert checked.startswith("  checked: mean losses of the first 2 x 4 steps 0.0") and checked.endswith(
        "(allowed 0.3 %)"
    )


def test_the_time_to_compile_is_told_where_a_step_is_compiled(monkeypatch):
    assert "compiled" not in lines()[0]
    monkeypatch.setattr(train, "_prepared", lambda step: 5.94)
    assert ", compiled in 5.9 s, routing: blocked (batch 16, " in lines()[0]


@pytest.mark.gpu
def test_compiling_is_timed_apart_from_the_steps():
    with train.trained(RECIPES["smoke/capsnet"].make(), torch.device("cuda"), 4) as (step, found):
        assert step.graph is not None and found.compiling_s > found.ms / 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong", [lambda poses: poses.detach(), lambda poses: 1.05 * poses, lambda poses: poses * math.nan]
)
def test_a_step_that_learns_otherwise_gets_no_time(monkeypatch, wrong):
    """Without a gradient, a little too long, not a number."""
    blocked = cpu.routed

    def off(**args):
        poses, pose_sum = blocked(**args)
        return wrong(poses), pose_sum

    monkeypatch.setattr(cpu, "routed", off)
    (line,) = lines()
    assert line.startswith("smoke/capsnet: wrong: mean losses") and "0.3 % apart" in line
    assert "ms" not in line.split() and "images/s" not in line


def test_only_the_reference_runs_without_kernels(monkeypatch):
    seen = []
    monkeypatch.setattr(train, "time_ms", lambda work, device, repeats: seen.append(backend._kernels_are_off()) or 1.0)
    lines()
    assert seen == [False, True]
    assert not backend._kernels_are_off()


def test_what_has_one_way_only_says_so():
    fast, alone = lines("smoke/baseline")
    assert "routing: none" in fast
    assert "nothing to compare" in alone


def test_both_begin_alike_and_see_the_same_images():
    run = RECIPES["smoke/capsnet"].make()

    def begun(reference: bool):
        torch.manual_seed(0)
        return train.make_step(run, CPU, 20, reference)

    one, other = begun(False), begun(True)
    assert (one.routing, other.routing) == ("blocked", "reference")
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))
    assert torch.equal(one.batches.at(one.counter).images, other.batches.at(other.counter).images)


def test_the_peak_is_of_what_came_after():
    """256 MiB count once, where the system can forget them."""
    if not memory._forget_peak():
        pytest.skip("this system does not forget a peak")

    def mib(n_numbers: int) -> int:
        peak = memory.Peak(CPU)
        assert torch.ones(n_numbers).sum() == n_numbers
        return int(str(peak).removesuffix(" MiB").replace(",", ""))

    assert mib(1 << 26) - mib(1 << 10) > 200


@pytest.mark.parametrize(("drops", "gives_back"), [([64] * 5, True), ([64, 0], False), ([0], False)])
def test_an_allocator_gives_back_every_time_or_not_at_all(monkeypatch, drops, gives_back):
    """One that keeps what was freed lets go of it at some later time, which may be just now."""
    sizes = iter([size << 20 for drop in drops for size in (500, 500 - drop)])
    monkeypatch.setattr(memory, "_of_process", lambda name: next(sizes))
    assert memory._gives_back.__wrapped__() == gives_back


def test_memory_in_all_leaves_out_what_others_left():
    """Before, 1,000 bytes are in use, 60 of them given; at the peak, 60 of results and 5 more are there."""
    assert memory.needed(before=1000, peak=1065, given=60, made=60) == (5, 125)
