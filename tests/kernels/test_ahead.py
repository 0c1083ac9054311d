"""Every kernel compiles for the H200, also where there is none."""

import os
import subprocess
import sys
from pathlib import Path

from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from torchcaps.ops import convolve_kernels_triton, dynamic_kernels_triton

HERE = Path(__file__).parent


def kernels(module) -> set[str]:
    """Those that are launched; a leading underscore marks what they call."""
    kinds = JITFunction, InterpretedFunction
    return {name for name, value in vars(module).items() if isinstance(value, kinds) and not name.startswith("_")}


def test_every_kernel_compiles_for_the_h200():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), environment.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, HERE / "compile_all.py"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wanted = kernels(dynamic_kernels_triton) | kernels(convolve_kernels_triton)
    assert len(wanted) >= 11
    assert set(done.stdout.split()) == wanted
