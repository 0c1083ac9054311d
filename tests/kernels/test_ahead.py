"""Kernels compiled for every supported GPU, also where there is none: they fit its shared memory and its registers."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ahead import MOST_REGISTERS, TARGETS, Compiled
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from torchcaps.ops.conv_relu import triton_kernels as relu_kernels
from torchcaps.ops.convolution import triton_kernels
from torchcaps.ops.dynamic import triton_backward, triton_forward, triton_walk, triton_walk_backward, triton_walk_weight
from torchcaps.ops.em import triton_backward as em_backward
from torchcaps.ops.em import triton_first, triton_inputs, triton_pairs
from torchcaps.ops.em import triton_forward as em_forward
from torchcaps.ops.gpus import LARGE, MIDDLE, SMALL
from torchcaps.ops.matrix_em import triton_backward as matrix_backward
from torchcaps.ops.matrix_em import triton_forward as matrix_forward
from torchcaps.ops.partial_sums import triton_kernels as sum_kernels
from torchcaps.ops.silu_sums import triton_conv_kernels
from torchcaps.ops.silu_sums import triton_kernels as silu_kernels

HERE = Path(__file__).parent
# bytes of a thread. Tiles for 9.0 and 10.0 are kept to the bit as they were measured, and spill with poses of 64
# (10.0 by 1,152 bytes in one form, of poses of 5 and 12; 9.0 by less than 1,024)
MOST_SPILLED = {LARGE: 1152, MIDDLE: 256, SMALL: 256}
MODULES = (
    triton_forward, triton_backward, triton_walk, triton_walk_backward, triton_walk_weight, triton_kernels,
    em_forward, em_backward, triton_inputs, triton_pairs, triton_first, matrix_forward, matrix_backward,
    silu_kernels, triton_conv_kernels, relu_kernels, sum_kernels,
)  # fmt: skip


def kernels(module) -> set[str]:
    """Names of the kernels that this module defines and launches; what a kernel calls returns something."""
    found = [value for value in vars(module).values() if isinstance(value, JITFunction | InterpretedFunction)]
    own = [value.fn for value in found if value.fn.__module__ == module.__name__]
    return {function.__name__ for function in own if "return " not in inspect.getsource(function)}


def compiled(forms: str, *targets: int) -> dict[int, list[Compiled]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), environment.get("PYTHONPATH", "")])
    command = [sys.executable, HERE / "compile_all.py", forms, *map(str, targets)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {int(target): [Compiled(**kernel) for kernel in found] for target, found in json.loads(done.stdout).items()}


def too_much(found: list[Compiled], target: int) -> list[str]:
    """Name the kernels that a GPU would refuse, or that spill more than a few registers."""
    tiles = TARGETS[target]
    most = tiles.shared, MOST_REGISTERS, MOST_SPILLED[tiles]
    used = [(kernel.shared, kernel.registers * 32 * kernel.warps, kernel.stack) for kernel in found]
    return [
        str(kernel)
        for kernel, has in zip(found, used, strict=True)
        if any(x > y for x, y in zip(has, most, strict=True))
    ]


WANTED = set().union(*map(kernels, MODULES))
ONE = Compiled("forward", "", 0, 32, 0, 4)


@pytest.mark.parametrize(
    "change",
    [{"shared": 101_377}, {"registers": 129, "warps": 16}, {"stack": 257}],
    ids=lambda x: next(iter(x)),
)
def test_what_does_not_fit_is_found(change):
    assert too_much([ONE, ONE._replace(**change)], 86) == [str(ONE._replace(**change))]


def test_the_largest_kernel_one_of_votes_and_first_layers_fit_every_target():
    found = compiled("few", *TARGETS)
    stems = set().union(*map(kernels, (silu_kernels, triton_conv_kernels, relu_kernels, sum_kernels)))
    assert list(found) == list(TARGETS)
    for target, few in found.items():
        assert {kernel.name for kernel in few} == {"forward", "add_up", "log_densities"} | stems
        assert too_much(few, target) == []
        assert [str(kernel) for kernel in few if kernel.name in stems and kernel.stack] == []


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_form_of_every_kernel_fits_every_target(target):
    found = compiled("all", target)[target]
    assert {kernel.name for kernel in found} == WANTED
    assert too_much(found, target) == []
    if TARGETS[target] is LARGE:  # where the matrices of the papers' networks were measured, nothing spills
        assert [str(kernel) for kernel in found if "'R': 4" in kernel.constants and kernel.stack] == []


@pytest.mark.slow
def test_the_compiled_poses_are_those_of_the_registered_networks():
    import compile_all
    import torch

    from torchcaps.layers import ConvMatrixCapsules, EMCapsules, MatrixCapsules, RoutedCapsules
    from torchcaps.ops.em.triton_op import LARGEST_PRODUCT
    from torchcaps.ops.matrix_em.triton_op import LARGEST
    from torchcaps.papers import RECIPES

    known = {("dynamic", *weight[-2:]) for weight, *_ in compile_all.DYNAMIC} | {("dynamic", 8, 16)}
    em = compile_all.EM_SHARED + compile_all.EM_PAIRS
    known |= {("em", len(weight) == 4, rows, *weight[-2:]) for weight, rows, _ in em}
    known |= {("matrix", 4, *weight[-2:]) for weight, *_ in compile_all.MATRIX}
    missing = set()
    for recipe in RECIPES.values():
        run = recipe.make()
        if not run.trains or recipe.name.startswith("smoke/"):
            continue
        with torch.device("meta"):
            model = run.build()
        for layer in model.modules():
            if isinstance(layer, RoutedCapsules) and layer.n_iters > 1:
                missing |= {("dynamic", *layer.weight.shape[-2:])} - known
            if isinstance(layer, EMCapsules) and layer.rows * layer.d_in * layer.d_out <= LARGEST_PRODUCT:
                pairs = layer.sharing in ("none", "places")
                missing |= {("em", pairs, layer.rows, layer.d_in, layer.d_out)} - known
            if isinstance(layer, MatrixCapsules | ConvMatrixCapsules):
                rows, (d_in, d_out) = layer.rows, layer.weight.shape[-2:]
                if max(rows * d_in, rows * d_out, d_in * d_out) <= LARGEST:
                    missing |= {("matrix", rows, d_in, d_out)} - known
    assert missing == set()
