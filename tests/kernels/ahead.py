"""Compile kernels for GPUs that are not here: what a launch would run is compiled for a target instead of run.

A GPU refuses a program that wants more shared memory or registers than it has, and spilled registers make it slow.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

import torch
import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from torchcaps.ops.gpus import LARGE, MIDDLE, SMALL, Tiles, forced_tiles

TARGETS = {80: MIDDLE, 86: SMALL, 89: SMALL, 90: LARGE, 100: LARGE, 120: SMALL}  # compute capability · 10
TYPES = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
OPTIONS = ("num_warps", "num_stages")
MOST_REGISTERS = 65_536  # of a program, and of a multiprocessor


class Compiled(NamedTuple):
    """Resources of one compiled kernel."""

    name: str
    constants: str
    shared: int  # bytes of a program
    registers: int  # of a thread
    stack: int  # bytes of a thread: what did not fit into registers
    warps: int  # of a program, 32 threads each

    def __str__(self) -> str:
        return f"{self.name} {self.constants}: {self.shared} {self.registers} {self.stack} {self.warps}"


@contextmanager
def compiled_instead_of_run(target: int, tiles: Tiles | None = None) -> Iterator[list[Compiled]]:
    """Within it a launch compiles its kernel and writes nothing; yields what was compiled."""
    done: list[Compiled] = []
    seen: set[str] = set()

    def run(self: JITFunction, *args, grid, warmup, **kwargs) -> None:
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        source, constants = _source(self, dict(zip(self.arg_names, args, strict=False)) | kwargs)
        key = f"{self.fn.__name__} {source.signature} {source.constants} {options}"
        if key not in seen:
            seen.add(key)
            kernel = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)
            used = _resources(kernel.asm["cubin"])
            done.append(
                Compiled(
                    self.fn.__name__, f"{constants} {options}", kernel.metadata.shared, *used, kernel.metadata.num_warps
                )
            )

    launch, JITFunction.run = JITFunction.run, run
    try:
        with forced_tiles(tiles or TARGETS[target]):
            yield done
    finally:
        JITFunction.run = launch


def _source(kernel: JITFunction, values: dict) -> tuple[ASTSource, dict]:
    """Specialise a kernel as a launch with these arguments would; return its constants by name, too."""
    signature, constants, hints = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        one = isinstance(value, int) and value == 1 and not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or one:
            constants[(index,)] = value
            signature[parameter.name] = "constexpr"
            continue
        is_tensor = isinstance(value, torch.Tensor)
        signature[parameter.name] = TYPES[value.dtype] if is_tensor else "fp32" if isinstance(value, float) else "i32"
        # as at a launch: addresses and sizes that are multiples of 16 are known to be, and above that a size is 1
        if not parameter.do_not_specialize and (is_tensor or (isinstance(value, int) and value % 16 == 0)):
            hints[(index,)] = [["tt.divisibility", 16]]
    named = {x.name: values[x.name] for x in kernel.params if x.is_constexpr}
    return ASTSource(kernel, signature, constants, hints), named


def _resources(cubin: bytes) -> tuple[int, int]:
    """Read registers of a thread and bytes of its stack from a compiled kernel, with Triton's own cuobjdump."""
    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", told.stdout)
    return int(found[1]), int(found[2])
