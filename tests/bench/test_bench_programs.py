"""The stand-in for a large problem runs the same kernels with the same flags, as its launches show."""

import ast
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor

from torchcaps.bench.cases import CASES, Case, dynamic, em
from torchcaps.bench.scale import AXES, DTYPES
from torchcaps.ops import dynamic as dynamic_module
from torchcaps.ops import em as em_module
from torchcaps.ops import matrix_em as matrix_module

KERNELS = {
    dynamic_module: (
        "triton_forward", "triton_backward", "triton_walk", "triton_walk_backward", "triton_walk_weight",
    ),
    em_module: ("triton_forward", "triton_first", "triton_backward", "triton_inputs", "triton_pairs"),
    matrix_module: ("triton_forward", "triton_backward"),
}  # fmt: skip
# COUNTS of ops/dynamic/triton_forward.py and ops/matrix_em/triton_forward.py
COUNTS = {"n_batch", "n_rows", "n_chunks", "blocks"} | {"n_groups", "n_seen", "n_out", "length", "places"}
LOOPS = {"BLOCKS", "BATCHES", "CHUNKS", "STEPS"}  # how often one goes round decides nothing but whether it goes on
REPLACED = [(case, dtype) for case in CASES["cuda"] if case.stand_in for dtype in (torch.float32, torch.bfloat16)]
SCALED = [(case, DTYPES["cuda"]) for axis in AXES["cuda"] for case in axis.cases(torch.inf) if case.stand_in]


class Kernel:
    """Takes launches down, and runs nothing."""

    def __init__(self, function: ast.FunctionDef, launches: set) -> None:
        self.name, self.parameters, self.launches = function.name, [x.arg for x in function.args.args], launches
        # Triton is told not to look at these
        self.counts = COUNTS if any("do_not_specialize" in ast.unparse(x) for x in function.decorator_list) else ()

    def __getitem__(self, grid: tuple[int, ...]):
        return self.launch

    def launch(self, *args, **flags) -> None:
        given = [(name, self.kind(name, x)) for name, x in zip(self.parameters, args, strict=False)]
        flags = [(name, x > 1 if name in LOOPS else x) for name, x in flags.items()]
        self.launches.add((self.name, *given, *sorted(flags)))

    def kind(self, name: str, x: Tensor | int | float) -> object:
        """Return what a program is compiled for; for an int, whether it is 1 and whether 16 divides it."""
        if isinstance(x, int):
            return x == 1, name not in self.counts and x % 16 == 0
        return x.dtype if isinstance(x, Tensor) else float


def stub(package: ModuleType, name: str, launches: set) -> SimpleNamespace:
    """A module of kernels as its text has them; Triton, which it imports, need not be there."""
    body = ast.parse((Path(package.__file__).parent / f"{name}.py").read_text()).body
    return SimpleNamespace(**{x.name: Kernel(x, launches) for x in body if isinstance(x, ast.FunctionDef)})


@pytest.fixture
def programs(monkeypatch):
    """The launches of a case, forward and backward, on tensors that have shapes and no numbers."""
    launches: set = set()
    language = SimpleNamespace(float32="float32", bfloat16="bfloat16")
    for name, module in (("triton", SimpleNamespace(language=language)), ("triton.language", language)):
        monkeypatch.setitem(sys.modules, name, module)
    for package, names in KERNELS.items():
        for name in names:
            kernels = stub(package, name, launches)
            monkeypatch.setitem(sys.modules, f"{package.__name__}.{name}", kernels)
            monkeypatch.setattr(package, name, kernels, raising=False)
    matrix_op = matrix_module.triton_op
    ops = [matrix_op.fit, matrix_op.fit_backward, matrix_op.densities, matrix_op.densities_backward]
    for module in (dynamic_module.triton_op, em_module.triton_op):
        ops += [module.route, module.route_backward]
    for op in ops:  # what such tensors run instead of the op: here the op itself
        monkeypatch.setattr(op, "_abstract_fn", op._init_fn)
    for module in (dynamic_module, em_module, matrix_module):
        monkeypatch.setattr(module, "choose", lambda *args, **how: "triton")
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *device: False)  # it does not know their device

    def of(case: Case, dtype: torch.dtype) -> set:
        launches.clear()
        made = case.make(lambda *shape, scale=1.0: torch.empty(shape, dtype=dtype, device="meta"))
        outputs = case.call("triton", **{name: x.requires_grad_() for name, x in made.items()})
        outputs = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
        torch.autograd.backward(outputs, [torch.ones_like(x) for x in outputs])
        return set(launches)

    return of


@pytest.mark.parametrize(("case", "dtype"), REPLACED + SCALED, ids=lambda x: x.name if isinstance(x, Case) else str(x))
def test_a_stand_in_runs_the_same_kernels_with_the_same_flags(programs, case, dtype):
    wanted, found = programs(case, dtype), programs(case.stand_in, dtype)
    assert len(wanted) >= 9
    assert found == wanted, "\n".join(map(str, sorted(map(str, found ^ wanted))))


def test_there_are_stand_ins_to_compare():
    assert len(REPLACED) == 8
    assert len(SCALED) == 9


OTHERS = {
    "its couplings are kept": (dynamic(32, 18_432, 200), dynamic(17, 480, 200)),
    "its tiles are smaller": (dynamic(32, 1152, 10), dynamic(16, 1152, 10)),
    "it is one chunk": (dynamic(32, 4608, 10), dynamic(32, 8, 10)),
    "it has other outputs": (dynamic(32, 1152, 10), dynamic(32, 1152, 11)),
    "its inputs share no transform": (dynamic(32, 640, 10, types=32), dynamic(32, 640, 10)),
    "its size is odd": (dynamic(32, 1152, 10), dynamic(32, 1151, 10)),
    "its chunks are merged at once": (em(20, 5184, 64), em(20, 48, 64)),
}


@pytest.mark.parametrize("why", OTHERS)
def test_a_stand_in_of_another_program_is_found_out(programs, why):
    case, other = OTHERS[why]
    assert programs(case, torch.bfloat16) != programs(other, torch.bfloat16)


def test_how_many_images_a_full_tile_lacks_makes_no_other_program(programs):
    assert programs(dynamic(32, 1152, 10), torch.bfloat16) == programs(dynamic(17, 1152, 10), torch.bfloat16)
