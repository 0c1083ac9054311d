"""Every kernel compiles for the H200, also where there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from torchcaps.ops.convolution import triton_kernels
from torchcaps.ops.dynamic import triton_backward, triton_forward

SHARED = {"columns", "addresses", "agree", "spread", "sum_partials", "from_the_middle"}  # and load_*: what kernels call

HERE = Path(__file__).parent


def kernels(module) -> set[str]:
    """Those that are launched."""
    kinds = JITFunction, InterpretedFunction
    found = {name for name, value in vars(module).items() if isinstance(value, kinds)}
    return {name for name in found if name not in SHARED and not name.startswith("load_")}


def compiled(*words: str) -> set[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), environment.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, HERE / "compile_all.py", *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


WANTED = kernels(triton_forward) | kernels(triton_backward) | kernels(triton_kernels)


def test_every_kernel_compiles_for_the_h200():
    assert len(WANTED) >= 11
    assert compiled() == WANTED


@pytest.mark.slow
def test_every_form_of_the_kernels_compiles_and_fits_on_chip():
    assert compiled("more") == WANTED
