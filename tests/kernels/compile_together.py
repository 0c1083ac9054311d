"""Look at kernels that are compiled before they are launched, for a GPU that need not be here. Without TRITON_INTERPRET.

python compile_together.py launches     what launches want that was not compiled ahead, and how many there are
python compile_together.py traced       the kernels that threads compiled while two ops were traced
python compile_together.py seconds N    seconds to compile the routing of a CapsNet's training step by N threads
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from compile_all import everything
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from torchcaps.ops import kernel_op, triton_threads
from torchcaps.ops.dynamic import triton_op as dynamic_op
from torchcaps.ops.gpus import LARGE, forced_tiles
from torchcaps.ops.silu_sums import triton_op


class Driver:
    """What a compilation asks of a driver."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


@contextmanager
def seen_instead_of_run() -> Iterator[dict[bool, set[tuple[str, ...]]]]:
    """Within it a launch and a compilation ahead leave their kernel, as Triton tells kernels apart: {ahead: kernels}."""
    seen: dict[bool, set[tuple[str, ...]]] = {False: set(), True: set()}

    def run(self: JITFunction, *args, grid, warmup, **options) -> None:
        *_, binder = self.device_caches[0]
        _, specialization, used = binder(*args, **options, debug=False, instrumentation_mode="")
        seen[warmup].add((self.fn.__name__, str(specialization), str(used)))

    launch, JITFunction.run = JITFunction.run, run
    try:
        yield seen
    finally:
        JITFunction.run = launch


def go_ahead(body, args: tuple) -> None:
    """Do what the thread does, at once."""
    forms = [(x.shape, x.stride(), x.dtype, x.device) if isinstance(x, torch.Tensor) else x for x in args]
    before = kernel_op.compiling.set([])
    try:
        body(*map(kernel_op.empty_like, forms))
    finally:
        kernel_op.compiling.reset(before)


def launches() -> dict:
    kernel_op.compile_ahead = go_ahead
    with seen_instead_of_run() as seen:
        everything()
    return {
        "missed": sorted(seen[False] - seen[True]),
        "in vain": sorted(seen[True] - seen[False]),
        "n": len(seen[True]),
    }


def traced() -> list[str]:
    names: list[str] = []
    knobs.compilation.listener = lambda **about: names.append(about["src"].name)
    kernel_op.can_compile, torch.cuda.device = lambda: True, lambda device: nullcontext()
    with FakeTensorMode():
        maps, bias = torch.empty(4, 3, 3, 16, device="cuda"), torch.empty(16, device="cuda")
        for _ in range(2):
            out, sums = triton_op.silu_sums(maps, bias, bias)
            triton_op.silu_sums_backward(out, sums, maps, bias, bias)
    wait_for_all()
    return sorted(names)


def wait_for_all() -> None:
    for op, known in kernel_op._known.items():
        for kernels in known.values():
            kernels.wait(op.__name__)


def seconds(threads: str) -> float:
    triton_threads.MOST = int(threads)
    traced()  # the first trace and the first kernel take longer
    begin = time.perf_counter()
    with FakeTensorMode():
        poses = torch.empty(128, 1152, 8, dtype=torch.bfloat16, device="cuda")
        weight, bias = (torch.empty(*shape, 16, device="cuda") for shape in ((1152, 10, 8), (10,)))
        out, _, *kept = dynamic_op.route(poses, weight, bias, 10, 3, False, True)
        dynamic_op.route_backward(out, None, poses, weight, *kept, False, True)
    wait_for_all()
    return time.perf_counter() - begin


if __name__ == "__main__":
    driver.set_active(Driver())
    with forced_tiles(LARGE):
        found = {"launches": launches, "traced": traced, "seconds": seconds}[sys.argv[1]](*sys.argv[2:])
    sys.stdout.write(json.dumps(found))
