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

SHARED = {"from_the_middle"}  # what a kernel calls, beside triton_tiles.py

HERE = Path(__file__).parent


def kernels(module) -> set[str]:
    """Names of the kernels that this module defines and launches."""
    found = {
        name: value for name, value in vars(module).items() if isinstance(value, JITFunction | InterpretedFunction)
    }
    return {name for name, value in found.items() if value.fn.__module__ == module.__name__} - SHARED


def compiled(*words: str) -> set[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, HERE / "compile_all.py", *words], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


WANTED = kernels(triton_forward) | kernels(triton_backward) | kernels(triton_kernels)


def test_every_kernel_compiles_for_the_h200():
    assert len(WANTED) >= 11
    assert compiled() == WANTED


@pytest.mark.slow
def test_every_form_of_the_kernels_compiles_and_fits_on_chip():
    assert compiled("more") == WANTED
