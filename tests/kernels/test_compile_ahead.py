"""Kernels are compiled by threads as soon as an op is traced or called, and those are the kernels that it launches."""

import json
import os
import subprocess
import sys
import threading
from collections import defaultdict
from concurrent.futures import Future
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from problems import ON_GPU

from torchcaps.ops import kernel_op, triton_threads
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


@pytest.mark.parametrize(
    ("mode", "locks", "wanted"), [("own", True, True), ("all", True, False), ("own", False, False)]
)
def test_a_triton_whose_threads_share_a_mode_or_whose_hashes_have_no_lock_is_left_alone(
    mode, locks, wanted, monkeypatch
):
    import triton
    from triton.runtime import _async_compile

    monkeypatch.setattr(_async_compile, "active_mode", ContextVar("mode") if mode == "own" else None)
    monkeypatch.setattr(triton, "jit", lambda function: SimpleNamespace(**({"_hash_lock": 1} if locks else {})))
    assert triton_threads.available() == wanted


class Promised:
    """A kernel that is being compiled."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.asked = error, False

    def result(self) -> None:
        self.asked = True
        if self.error:
            raise self.error


def launched(*kernels: Promised, error: Exception | None = None) -> kernel_op.Kernels:
    future = Future()
    future.set_exception(error) if error else future.set_result(list(kernels))
    return kernel_op.Kernels(future)


def test_a_kernel_that_cannot_be_compiled_ahead_is_no_error_is_told_once_and_keeps_none_from_it():
    bad, good = Promised(RuntimeError("no disk")), Promised()
    kernels = launched(bad, good)
    with pytest.warns(UserWarning, match="1 kernels of torchcaps::silu_sums were not compiled ahead.*no disk"):
        kernels.wait("torchcaps::silu_sums")
    assert bad.asked and good.asked
    kernels.wait("torchcaps::silu_sums")


def test_launches_that_cannot_be_gone_through_are_no_error():
    with pytest.warns(UserWarning, match="of torchcaps::silu_sums were not compiled ahead.*no meta kernel"):
        launched(error=NotImplementedError("no meta kernel")).wait("torchcaps::silu_sums")


@pytest.mark.parametrize(
    ("change", "starts"),
    [({}, 1), ({"device": "cpu"}, 0), ({"can": False}, 0), ({"forms": 0}, 0), ({"threads": 0}, 0)],
)
def test_kernels_are_looked_at_once_where_there_are_a_gpu_and_threads(change, starts, monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Thread:
        submitted = 0

        def submit(self, *job) -> Future:
            if "threads" in change:
                raise RuntimeError("cannot schedule new futures after interpreter shutdown")
            self.submitted += 1
            return Future()

    thread = Thread()
    monkeypatch.setattr(kernel_op, "_known", defaultdict(dict))
    monkeypatch.setattr(kernel_op, "can_compile", lambda: change.get("can", True))
    monkeypatch.setattr(kernel_op, "MOST_FORMS", change.get("forms", 1))
    monkeypatch.setattr(kernel_op, "_scout", lambda device: thread)
    with FakeTensorMode():
        maps = torch.empty(4, 16, device=change.get("device", "cuda"))
    kernels = [kernel_op.compile_ahead(silu_sums, (maps, 3, None)) for _ in range(2)]
    assert thread.submitted == starts
    assert kernels[0] is kernels[1] and (kernels[0] is not None) == bool(starts)


@pytest.mark.parametrize("free", [False, True])
def test_programs_of_free_sizes_compile_nothing_ahead(free, monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    looked, env = [], ShapeEnv()
    monkeypatch.setattr(kernel_op, "compile_ahead", lambda *args: looked.append(args))
    with FakeTensorMode(shape_env=env):
        n = env.create_unbacked_symint() if free else 4
        silu_sums(torch.empty(n, 16, device="cuda"), *(torch.empty(16, device="cuda") for _ in range(2)))
    assert len(looked) == (not free)


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
    # add_partial may be known from other shapes
    assert {("activate", False), ("activate_backward", False)} <= {*compiled}
    assert not any(in_main for _, in_main in compiled)
