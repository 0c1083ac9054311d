"""Which implementation runs, and whether the fast ones are right."""

import asyncio
import threading
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from torchcaps.ops import COUPLINGS, backend, dynamic_routing, dynamic_routing_backend, without_kernels
from torchcaps.ops import dynamic as dynamic_module
from torchcaps.ops.backend import Implementation, cannot_compile, cannot_run_kernels, choose, is_exporting
from torchcaps.ops.testing import compare_routing

ON_CPU, ON_CUDA = (SimpleNamespace(device=torch.device(kind)) for kind in ("cpu", "cuda"))
ANYTHING = Implementation(load=lambda: None)
ODD_POSES_ONLY = Implementation(
    load=lambda: None, refuses=lambda d: f"needs an odd pose, got {d}; pad it" if d % 2 == 0 else None
)
IMPLEMENTATIONS = {"reference": ANYTHING, "compiled": ANYTHING, "triton": ODD_POSES_ONLY}


def routing(batch=(3,), i=5, j=3, d=4, e=6, weight="ijde", device="cpu", seed=0):
    rng = torch.Generator().manual_seed(seed)
    sizes = {"i": i, "j": j, "d": d, "e": e}
    shapes = {"poses": (*batch, i, d), "weight": [sizes[x] for x in weight], "bias": (j, e), "prior": (i, j)}
    return {name: torch.randn(*shape, generator=rng).to(device) for name, shape in shapes.items()}


def test_auto_on_the_cpu_is_blocked_where_it_can_be():
    args = routing()
    assert dynamic_routing_backend(args["poses"], args["weight"]) == "blocked"
    assert torch.equal(dynamic_routing(**args).poses, dynamic_routing(**args, backend="blocked").poses)
    assert dynamic_routing_backend(args["poses"].bfloat16(), args["weight"]) == "reference"
    with torch.autocast("cpu", torch.bfloat16):
        assert dynamic_routing_backend(args["poses"], args["weight"]) == "reference"
    assert choose("op", IMPLEMENTATIONS, "auto", ON_CPU, {"d": 3}) == "reference"


def test_auto_on_cuda_is_the_first_that_does_not_refuse():
    assert choose("op", IMPLEMENTATIONS, "auto", ON_CUDA, {"d": 3}) == "triton"
    assert choose("op", IMPLEMENTATIONS, "auto", ON_CUDA, {"d": 4}) == "compiled"
    assert choose("op", {"reference": ANYTHING}, "auto", ON_CUDA, {"d": 4}) == "reference"


def test_auto_inside_compile_is_a_kernel_or_the_reference(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert choose("op", IMPLEMENTATIONS, "auto", ON_CUDA, {"d": 3}) == "triton"
    assert choose("op", IMPLEMENTATIONS, "auto", ON_CUDA, {"d": 4}) == "reference"
    assert choose("op", IMPLEMENTATIONS, "auto", ON_CPU, {"d": 3}) == "reference"
    assert choose("op", IMPLEMENTATIONS, "compiled", ON_CUDA, {"d": 3}) == "reference"
    assert choose("op", IMPLEMENTATIONS, "triton", ON_CUDA, {"d": 3}) == "triton"


def test_a_named_backend_runs_or_refuses_with_the_reason():
    assert choose("op", IMPLEMENTATIONS, "triton", ON_CUDA, {"d": 3}) == "triton"
    with pytest.raises(
        ValueError, match=r"^op: backend 'triton' needs an odd pose, got 4; pad it, or use backend='reference'$"
    ):
        choose("op", IMPLEMENTATIONS, "triton", ON_CUDA, {"d": 4})


def test_a_backend_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"^op: there is no 'triton' backend yet; use one of auto, reference$"):
        choose("op", {"reference": ANYTHING}, "triton", ON_CPU, {})


@pytest.mark.parametrize("backend", ["cuda", "Reference", ""])
def test_an_unknown_backend_lists_the_known(backend):
    with pytest.raises(
        ValueError,
        match=f"dynamic_routing: backend must be auto, reference, blocked, compiled, triton; got '{backend}'",
    ):
        dynamic_routing(**routing(), backend=backend)


def test_triton_is_not_replaced_in_silence_on_the_cpu():
    with pytest.raises(ValueError, match=r"dynamic_routing: .*'triton'.*use"):
        dynamic_routing(**routing(), backend="triton")


@pytest.mark.slow
@pytest.mark.skipif(cannot_compile(torch.empty(0)) is not None, reason="needs a C++ compiler")
def test_compiled_is_right_on_the_cpu(fresh_dynamo):
    """The one case with the real compiler. Without vector instructions it need not try out which the machine has: 30 s
    less.
    """
    from torch._inductor import config

    with config.patch({"cpp.vec_isa_ok": False}):
        margins = compare_routing(partial(dynamic_routing, n_iters=1), routing(), backend="compiled")
    assert set(margins) == {"poses", "pose_sum", "grad poses", "grad weight", "grad bias", "grad prior"}


@pytest.fixture
def quick_compile(fresh_dynamo, monkeypatch):
    """`backend="compiled"` without the C++ compiler."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    dynamic_module._compiled.cache_clear()
    yield
    dynamic_module._compiled.cache_clear()


@pytest.mark.slow
def test_compiled_serves_more_rules_and_shapes_than_the_recompile_limit(quick_compile):
    """Eight programs per function are torch.compile's default; the ninth would raise."""
    seen = 0
    with torch.no_grad():
        for weight in ("ijde", "jde", "de"):
            for couplings in ("softmax", "leaky", "uniform"):
                args = routing(weight=weight)
                fast, plain = (
                    dynamic_routing(**args, n_iters=1, couplings=couplings, backend=b)
                    for b in ("compiled", "reference")
                )
                torch.testing.assert_close(fast, plain)
                seen += 1
    assert seen > 8


def test_compiled_says_which_compiler_is_missing(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(
        ValueError,
        match=r"backend 'compiled' needs a C\+\+ compiler, .* is there; install one, or use backend='reference'",
    ):
        dynamic_routing(**routing(), backend="compiled")
    monkeypatch.setattr("torchcaps.ops.backend.find_spec", lambda name: None)
    assert "needs the package triton" in cannot_compile(ON_CUDA)


def test_compiled_inside_a_compiled_region_is_part_of_it(fresh_dynamo):
    args = routing()
    whole = torch.compile(
        lambda poses: dynamic_routing(**args | {"poses": poses}, backend="compiled"),
        fullgraph=True,
        backend="aot_eager",
    )
    torch.testing.assert_close(whole(args["poses"]), dynamic_routing(**args))


@pytest.mark.slow
@pytest.mark.parametrize("couplings", COUPLINGS)
@pytest.mark.parametrize("weight", ["ijde", "jde", "de"])
def test_compiled_is_right_for_every_rule_and_weight(fresh_dynamo, weight, couplings):
    compare_routing(
        partial(dynamic_routing, couplings=couplings), routing(weight=weight, batch=(2, 2), i=7), backend="compiled"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [{"i": 1, "j": 1, "d": 1, "e": 1}, {"i": 37, "j": 5, "d": 8, "e": 16}, {"batch": (), "i": 9}], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_is_right_for_odd_sizes_and_dtypes(fresh_dynamo, dtype, sizes):
    compare_routing(dynamic_routing, routing(**sizes), backend="compiled", dtype=dtype)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("backend", ["auto", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weight", ["ijde", "jde", "de"])
def test_fast_backends_are_right_on_cuda(fresh_dynamo, weight, dtype, backend):
    compare_routing(
        dynamic_routing,
        routing(weight=weight, batch=(5,), i=37, j=10, d=8, e=16, device="cuda"),
        backend=backend,
        dtype=dtype,
    )


@pytest.fixture
def anywhere(monkeypatch):
    """Kernels that could run on these CPU tensors, so that only `without_kernels` switches them off."""
    for name in ("INTERPRETED", "HAS_TRITON"):
        monkeypatch.setattr(backend, name, True)
    return lambda: cannot_run_kernels(torch.zeros(1)) is None


def test_without_kernels_holds_for_its_own_thread_alone(anywhere):
    """Regions of two threads that overlap: neither sees the other's, and both are over at the end."""
    entered, leave, seen = threading.Event(), threading.Event(), []

    def other():
        seen.append(anywhere())
        with without_kernels():
            entered.set()
            leave.wait(10)
            seen.append(anywhere())
        seen.append(anywhere())

    with without_kernels():
        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(10)
    assert anywhere()
    leave.set()
    thread.join()
    assert seen == [True, False, True] and anywhere()


def test_without_kernels_holds_for_its_own_task_alone(anywhere):
    async def inside(wait: int) -> bool:
        with without_kernels():
            for _ in range(wait):
                await asyncio.sleep(0)
            return anywhere()

    async def outside() -> bool:
        await asyncio.sleep(0)
        return anywhere()

    async def all_of_them() -> list[bool]:
        return await asyncio.gather(inside(3), inside(1), outside())

    assert asyncio.run(all_of_them()) == [False, False, True] and anywhere()


def test_a_compiled_program_follows_without_kernels(anywhere, fresh_dynamo):
    program = torch.compile(lambda x: x + (cannot_run_kernels(x) is None), fullgraph=True, backend="eager")
    x = torch.zeros(1)
    assert program(x).item() == 1
    with without_kernels():
        assert program(x).item() == 0
    assert program(x).item() == 1


@pytest.mark.slow
def test_compiling_is_told_from_exporting():
    """Otherwise no kernel would run inside torch.compile; PyTorch 2.11 itself says there that it exports."""

    class Asks(nn.Module):
        def forward(self, x):
            return x + is_exporting()

    asks, zero = Asks(), torch.zeros(1)
    programs = [torch.export.export(asks, (zero,), strict=strict).module() for strict in (False, True)]
    assert [program(zero).item() for program in programs] == [1, 1]
    assert asks(zero).item() == torch.compile(asks, backend="eager", fullgraph=True)(zero).item() == 0
