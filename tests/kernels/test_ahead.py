"""Every kernel compiles for the H200, also where there is none."""

import os
import subprocess
import sys
from pathlib import Path

from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from torchcaps.ops import convolve_kernels_triton, dynamic_backward_triton, dynamic_forward_triton

SHARED = {"columns", "addresses", "agree", "spread", "sum_partials"}  # and load_*: what kernels call

HERE = Path(__file__).parent


def kernels(module) -> set[str]:
    """Those that are launched."""
    kinds = JITFunction, InterpretedFunction
    found = {name for name, value in vars(module).items() if isinstance(value, kinds)}
    return {name for name in found if name not in SHARED and not name.startswith("load_")}


def test_every_kernel_compiles_for_the_h200():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), environment.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, HERE / "compile_all.py"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wanted = kernels(dynamic_forward_triton) | kernels(dynamic_backward_triton) | kernels(convolve_kernels_triton)
    assert len(wanted) >= 11
    assert set(done.stdout.split()) == wanted
