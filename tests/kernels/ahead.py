"""Compile kernels for the H200 on a machine without a GPU: what a launch would run is compiled for sm_90 instead of
run.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

H200 = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
OPTIONS = ("num_warps", "num_stages")
LARGEST_SHARED = 232_448  # bytes of a multiprocessor's memory that a program may have


@contextmanager
def compiled_instead_of_run() -> Iterator[list[str]]:
    """Within it a launch compiles its kernel and writes nothing; yields the names of what was compiled."""
    done: list[str] = []
    seen: set[str] = set()

    def run(self: JITFunction, *args, grid, warmup, **kwargs) -> None:
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        values = dict(zip(self.arg_names, args, strict=False)) | kwargs
        signature, constants, hints = {}, {}, {}
        for index, parameter in enumerate(self.params):
            value = values[parameter.name]
            one = isinstance(value, int) and value == 1 and not parameter.do_not_specialize
            if parameter.is_constexpr or value is None or one:
                constants[(index,)] = value
                signature[parameter.name] = "constexpr"
            else:
                is_tensor = isinstance(value, torch.Tensor)
                signature[parameter.name] = (
                    TYPES[value.dtype] if is_tensor else "fp32" if isinstance(value, float) else "i32"
                )
                # as at a launch: addresses and sizes that are multiples of 16 are known to be, and above that a size is
                # 1
                if not parameter.do_not_specialize and (is_tensor or (isinstance(value, int) and value % 16 == 0)):
                    hints[(index,)] = [["tt.divisibility", 16]]
        key = f"{self.fn.__name__} {signature} {constants} {options}"
        if key not in seen:
            seen.add(key)
            kernel = triton.compile(ASTSource(self, signature, constants, hints), target=H200, options=options)
            assert kernel.metadata.shared <= LARGEST_SHARED, (
                f"{key} needs {kernel.metadata.shared:,} bytes of shared memory"
            )
            done.append(self.fn.__name__)

    launch, JITFunction.run = JITFunction.run, run
    try:
        yield done
    finally:
        JITFunction.run = launch
