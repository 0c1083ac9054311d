"""Compiled programs are kept between runs, and not beyond a change of the ops."""

import os
import stat
import subprocess
import sys
import time

import pytest

from torchcaps.runtime import compiled
from torchcaps.runtime.compiled import VARIABLE, keep_compiled


@pytest.fixture
def unset(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")  # so that it is put back at the end
    monkeypatch.delenv(VARIABLE)


def test_pytorch_is_told_of_a_folder_in_the_cache(tmp_path, unset):
    folder = keep_compiled(tmp_path / "cache", pytest.fail)
    assert os.environ[VARIABLE] == str(folder)
    assert folder.parent == tmp_path / "cache" / "compiled" and stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    assert cache_dir() == str(folder)


def test_what_the_user_set_stays(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "/elsewhere")
    assert str(keep_compiled(tmp_path, pytest.fail)) == os.environ[VARIABLE] == "/elsewhere"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_can_write_to_is_left_alone(tmp_path, unset, mode):
    """PyTorch runs what it finds there."""
    said = []
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled").chmod(mode)
    assert keep_compiled(tmp_path, said.append) is None and VARIABLE not in os.environ
    assert len(said) == 1 and "others can write to it" in said[0]
    assert not list((tmp_path / "compiled").iterdir())


def test_a_folder_of_another_user_is_left_alone(tmp_path, unset, monkeypatch):
    said = []
    (tmp_path / "compiled").mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: (tmp_path / "compiled").stat().st_uid + 1)
    assert keep_compiled(tmp_path, said.append) is None and VARIABLE not in os.environ
    assert len(said) == 1 and "another user's" in said[0]


def test_a_link_is_left_alone(tmp_path, unset):
    said = []
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "compiled").symlink_to(tmp_path / "elsewhere")
    assert keep_compiled(tmp_path, said.append) is None and "it is a link" in said[0]


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path, unset):
    said = []
    (tmp_path / "file").touch()
    assert keep_compiled(tmp_path / "file", said.append) is None and "cannot be written" in said[0]


def test_programs_of_other_code_go_after_thirty_days(tmp_path, unset):
    home = tmp_path / "compiled"
    home.mkdir(mode=0o700)
    for name, days in (("old", 31), ("new", 29)):
        (home / name / "inner").mkdir(parents=True)
        os.utime(home / name, (time.time() - days * 86_400,) * 2)
    folder = keep_compiled(tmp_path, pytest.fail)
    assert {*home.iterdir()} == {home / "new", folder}


def test_programs_in_use_stay(tmp_path, unset, monkeypatch):
    folder = keep_compiled(tmp_path, pytest.fail)
    monkeypatch.delenv(VARIABLE)
    os.utime(folder, (time.time() - 31 * 86_400,) * 2)
    assert keep_compiled(tmp_path, pytest.fail) == folder and folder.is_dir()
    assert time.time() - folder.stat().st_mtime < 86_400


def test_a_change_of_the_ops_is_another_folder(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    before = compiled._code_hash(tmp_path)
    assert compiled._code_hash(tmp_path) == before
    (tmp_path / "a.py").write_text("x = 2\n")
    assert compiled._code_hash(tmp_path) != before


PROGRAM = """
import sys, time
from pathlib import Path
import torch
from torchcaps.runtime.compiled import keep_autocast, keep_compiled
keep_compiled(Path(sys.argv[1]), print)
keep_autocast()
from torchcaps.ops import dynamic_routing, local_grid, local_routing
from torch._dynamo.utils import counters
grid = local_grid(2, 2, 1)

def rounded(p, w, dtype):
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        return dynamic_routing(p, w, backend="reference")

WAYS = {
    "dynamic": lambda p, w: dynamic_routing(p, w, backend="reference"),
    "autocast": lambda p, w: rounded(p, w, torch.bfloat16),
    "autocast, another type": lambda p, w: rounded(p, w, torch.float16),
    "autocast, switched off": lambda p, w: rounded(p, w, None),
    "gradients by hand": lambda p, w: local_routing(p, w[:1, None], torch.zeros(2, 5), grid),
}
way = WAYS[sys.argv[2]]
step = torch.compile(lambda p, w: way(p, w).poses.square().sum(), dynamic=False)
step(torch.ones(2, 4, 3, requires_grad=True), torch.ones(4, 2, 3, 5, requires_grad=True)).backward()
print(counters["aot_autograd"]["autograd_cache_hit"], counters["aot_autograd"]["autograd_cache_bypass"])
"""


def found_in(cache, way):
    """Compile in a process of its own; return how many programs it found, and how many it could not keep."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-c", PROGRAM, str(cache), way]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["dynamic", "autocast", "gradients by hand"])
def test_a_second_process_compiles_nothing(way, tmp_path):
    assert [found_in(tmp_path, way) for _ in range(2)] == [["0", "0"], ["1", "0"]]


@pytest.mark.slow
def test_programs_with_other_autocast_are_other_programs(tmp_path):
    for way in ("autocast", "autocast, another type", "autocast, switched off"):
        assert found_in(tmp_path, way) == ["0", "0"]
