"""Several processes, tested in one: how a batch is divided, who takes part, and the examples of their page."""

import json
import re
import runpy
import sys
import types
from pathlib import Path

import pytest
import torch
from one_of_two import CASES, MixesAnyhow, go

from torchcaps.data import Labelled
from torchcaps.data.augment import Mixup, Shift
from torchcaps.data.batches import Batches, Records
from torchcaps.papers import RECIPES
from torchcaps.runtime import distributed
from torchcaps.runtime.distributed import ALONE, Lost, Team, joined, naming_the_lost
from torchcaps.runtime.environment import pick_device
from torchcaps.train import loop as loop

TESTS = Path(__file__).parents[1]


# parts of a batch


def images(n: int, rng: torch.Generator) -> Labelled:
    return Labelled(torch.randint(0, 256, (n, 1, 6, 6), dtype=torch.uint8, generator=rng), torch.arange(n) % 5)


@pytest.mark.parametrize("n", [2, 3, 6])
@pytest.mark.parametrize(
    ("augment", "records"),
    [
        ((), None), ((Shift(1),), None), ((Shift(1), Mixup()), None), ((Mixup(), Mixup(alpha=1.0)), None),
        ((Shift(1),), Records(20)), ((Shift(1), Mixup()), Records(20)),
    ],
    ids=str,
)  # fmt: skip
def test_the_parts_make_up_the_batch_of_one_process(n, augment, records, rng):
    data, cpu = images(40, rng), torch.device("cpu")
    whole, *parts = (Batches(data, 12, augment, cpu, records=records) for _ in range(n + 1))
    for rank, part in enumerate(parts):
        part.divide(rank, n)
    for epoch in range(2):
        for batches in (whole, *parts):
            batches.new_epoch(torch.Generator().manual_seed(epoch))
        for step in range(whole.n_steps):
            wanted, *own = (batches.at(torch.tensor(step)) for batches in (whole, *parts))
            assert all(len(part.images) == 12 // n for part in own)
            for name, value in wanted._asdict().items():
                found = [getattr(part, name) for part in own]
                assert found == [None] * n if value is None else torch.equal(torch.cat(found), value)


def test_no_image_is_shown_to_two_processes_in_an_epoch(rng):
    data, seen = images(40, rng), []
    for rank in range(4):
        batches = Batches(data, 8, (), torch.device("cpu"))
        batches.divide(rank, 4)
        batches.new_epoch(torch.Generator().manual_seed(0))
        seen += batches.plan[0].flatten().tolist()
    assert sorted(seen) == list(range(40))


def test_one_process_makes_its_batches_as_ever(rng):
    one, other = (
        Batches(images(20, torch.Generator().manual_seed(1)), 4, (Mixup(),), torch.device("cpu")) for _ in range(2)
    )
    other.divide(0, 1)
    for batches in (one, other):
        batches.new_epoch(torch.Generator().manual_seed(0))
    assert all(torch.equal(*pair) for pair in zip(one.plan, other.plan, strict=True))


def test_mixing_that_does_not_say_how_far_it_looks_is_refused(rng):
    one, other = (Batches(images(20, rng), 4, (MixesAnyhow(),), torch.device("cpu")) for _ in range(2))
    one.divide(0, 1)  # one process may
    with pytest.raises(
        ValueError, match=r"MixesAnyhow\(\) mixes images without saying how far it looks: give its class `reach`"
    ):
        other.divide(0, 2)


# who is there


def test_batches_that_cannot_be_shared_evenly_are_refused():
    with pytest.raises(
        ValueError, match="3 processes cannot share batches of 16 evenly; start a number of them that divides 16"
    ):
        loop._check_parts(RECIPES["smoke/capsnet"].make(), Team(0, 3))
    loop._check_parts(RECIPES["smoke/capsnet"].make(), Team(0, 4))


def test_a_team_of_one_asks_nobody():
    assert ALONE.largest(3, -4) == [3, -4]
    assert ALONE.same(7) and ALONE.leads and ALONE.says_first(True) and not ALONE.says_first(False)
    assert ALONE.about() == {}


def test_half_of_torchruns_variables_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="MASTER_ADDR, MASTER_PORT is not set; use torchrun"):
        go(CASES["capsnet"], tmp_path)


def test_one_process_under_torchrun_is_one_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    with joined(torch.device("cpu")) as team:
        assert team == ALONE


def test_only_what_a_backend_says_is_a_lost_process():
    with pytest.raises(Lost, match="is gone"), naming_the_lost():
        raise RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed by peer")
    with pytest.raises(RuntimeError, match="out of memory") as caught, naming_the_lost():
        raise RuntimeError("out of memory")
    assert not isinstance(caught.value, Lost)


def test_each_process_of_a_machine_takes_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert pick_device("auto") == pick_device("cuda") == torch.device("cuda", rank)
    with pytest.raises(ValueError, match="2 processes of this machine were all told cuda:1; use --device cuda"):
        pick_device("cuda:1")


@pytest.mark.parametrize(
    ("device", "n_gpus", "here", "wanted"),
    [
        (
            "cuda",
            2,
            2,
            "cpu:gloo,cuda:nccl",
        ),  # a GPU for each: nccl for what lies there, gloo for what lies on the host
        ("cuda", 8, 1, "cpu:gloo,cuda:nccl"),  # one process of each of several machines
        ("cuda", 1, 2, "gloo"),  # shared, which nccl refuses
        ("cpu", 2, 2, "gloo"),
        ("cpu", 0, 2, "gloo"),
    ],
)
def test_gpus_talk_by_nccl_unless_processes_share_one(monkeypatch, device, n_gpus, here, wanted):
    """As it is asked for where processes meet: there is nobody here to meet."""
    asked = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    for name, value in {
        "WORLD_SIZE": 2,
        "RANK": 0,
        "LOCAL_WORLD_SIZE": here,
        "MASTER_ADDR": "x",
        "MASTER_PORT": 1,
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(distributed, "_meeting_place", torch.distributed.HashStore)
    monkeypatch.setattr(distributed, "_common_name", lambda store, rank, size: "name")
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda backend, **rest: asked.append((backend, rest["world_size"]))
    )
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: asked.append("left"))
    with distributed.joined(torch.device(device)) as team:
        assert (team.rank, team.size) == (0, 2)
    assert asked == [(wanted, 2), "left"]


# what the docs say


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (TESTS.parent / "docs" / "several-machines.md").read_text(), re.DOTALL)


def test_the_layer_of_the_docs_runs_in_one_process(capsys):
    exec(compile(examples()[0], "several-machines.md", "exec"), {})
    assert "0.9900" in capsys.readouterr().out


def test_the_example_for_ray_trains(tmp_path, monkeypatch):
    """Ray's own part stands still here; what it would start in every process runs in this one."""

    class TorchTrainer:
        def __init__(self, loop, train_loop_config, scaling_config, run_config) -> None:
            self.run = lambda: loop(train_loop_config)

        def fit(self) -> None:
            self.run()

    plain = types.SimpleNamespace(FailureConfig=dict, RunConfig=dict, ScalingConfig=dict)
    for name, module in {"ray": types.SimpleNamespace(), "ray.train": plain}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "ray.train.torch", types.SimpleNamespace(TorchTrainer=TorchTrainer))
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["ray_train.py", "smoke/capsnet", "--out", str(tmp_path), "--device", "cpu"])
    runpy.run_path(str(TESTS.parent / "examples" / "ray_train.py"), run_name="__main__")
    assert json.loads((tmp_path / "result.json").read_text())["recipe"] == "smoke/capsnet"
