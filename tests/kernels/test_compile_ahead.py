"""Kernels are compiled by threads as soon as an op is traced or called, and those are the kernels that it launches."""

import json
import os
import subprocess
import sys
import threading
from collections import defaultdict
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from problems import ON_GPU

from torchcaps.ops import kernel_op
from torchcaps.ops.silu_sums.triton_op import silu_sums, silu_sums_backward

HERE = Path(__file__).parent


def told_by(part: str, cache: Path) -> dict | list:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), environment.get("PYTHONPATH", "")])
    environment["TRITON_CACHE_DIR"] = str(cache)
    done = subprocess.run(
        [sys.executable, HERE / "compile_together.py", part], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_launch_of_every_op_is_of_a_kernel_that_was_compiled_ahead(tmp_path):
    found = told_by("launches", tmp_path)
    assert found["n"] > 400
    assert found["missed"] == found["in vain"] == []


def test_threads_compile_each_kernel_once_while_an_op_is_traced(tmp_path):
    assert told_by("traced", tmp_path) == ["activate", "activate_backward", "add_partial"]


def test_kernels_that_cannot_be_compiled_ahead_are_no_error_and_are_named():
    failed = Future()
    failed.set_exception(RuntimeError("no disk"))
    with pytest.warns(UserWarning, match="kernels of torchcaps::silu_sums could not be compiled together.*no disk"):
        kernel_op.Kernels(failed).wait("torchcaps::silu_sums")


@pytest.mark.parametrize(
    ("change", "starts"),
    [({}, 1), ({"device": "cpu"}, 0), ({"can": False}, 0), ({"size": "free"}, 0), ({"forms": 0}, 0)],
)
def test_kernels_are_looked_at_once_where_there_are_a_gpu_and_sizes(change, starts, monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    class Thread:
        submitted = 0

        def submit(self, *job) -> Future:
            self.submitted += 1
            return Future()

    thread, env = Thread(), ShapeEnv()
    monkeypatch.setattr(kernel_op, "_known", defaultdict(dict))
    monkeypatch.setattr(kernel_op, "can_compile", lambda: change.get("can", True))
    monkeypatch.setattr(kernel_op, "MOST_FORMS", change.get("forms", 1))
    monkeypatch.setattr(kernel_op, "_scout", lambda: thread)
    with FakeTensorMode(shape_env=env):
        n = env.create_unbacked_symint() if "size" in change else 4
        maps = torch.empty(n, 16, device=change.get("device", "cuda"))
    kernels = [kernel_op.compile_ahead(silu_sums, (maps, 3, None)) for _ in range(2)]
    assert thread.submitted == starts
    assert kernels[0] is kernels[1] and (kernels[0] is not None) == bool(starts)


@pytest.mark.skipif(not ON_GPU, reason="needs an NVIDIA GPU")
def test_a_call_finds_its_kernels_compiled(tmp_path, monkeypatch):
    from triton import knobs

    compiled: list[tuple[str, bool]] = []

    def note(**about):
        compiled.append((about["src"].name, threading.current_thread() is threading.main_thread()))

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(knobs.compilation, "listener", note)
    maps, bias = torch.randn(5, 3, 3, 48, device="cuda"), torch.zeros(48, device="cuda")  # of no other test
    out, sums = silu_sums(maps, bias, bias)
    silu_sums_backward(out, sums, maps, bias, bias)
    assert sorted(compiled) == [("activate", False), ("activate_backward", False), ("add_partial", False)]
