"""Compiled programs are kept between runs, and not beyond a change of the ops."""

import os
import subprocess
import sys

import pytest

from torchcaps.runtime import compiled
from torchcaps.runtime.compiled import VARIABLE, keep_compiled


@pytest.fixture
def unset(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")  # so that it is put back at the end
    monkeypatch.delenv(VARIABLE)


def test_pytorch_is_told_of_a_folder_in_the_cache(tmp_path, unset):
    folder = keep_compiled(tmp_path)
    assert os.environ[VARIABLE] == str(folder)
    assert folder.parent == tmp_path / "compiled"
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    assert cache_dir() == str(folder)


def test_what_the_user_set_stays(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "/elsewhere")
    assert str(keep_compiled(tmp_path)) == os.environ[VARIABLE] == "/elsewhere"


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
from torchcaps.runtime.compiled import keep_compiled
keep_compiled(Path(sys.argv[1]))
from torchcaps.ops import dynamic_routing
from torch._dynamo.utils import counters
step = torch.compile(lambda p, w: dynamic_routing(p, w, backend="reference").poses.square().sum(), dynamic=False)
step(torch.ones(2, 4, 3, requires_grad=True), torch.ones(4, 2, 3, 5, requires_grad=True)).backward()
print(counters["aot_autograd"]["autograd_cache_hit"], counters["aot_autograd"]["autograd_cache_bypass"])
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    runs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
        )
        for _ in range(2)
    ]
    assert [run.stdout.split() for run in runs] == [["0", "0"], ["1", "0"]]
