"""Speed and memory, measured: CUDA events or the wall clock, after a warm-up, medians, next to the reference in the same run."""

import re
import time
from collections.abc import Callable
from ctypes import CDLL
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from torchcaps.data import Labelled, info
from torchcaps.data.batches import Batches
from torchcaps.machine import algorithms, device_name, own_randomness, peak_memory, versions
from torchcaps.ops import LocalGrid, dynamic_routing, local_grid, local_routing, squash
from torchcaps.ops.couplings import softmax
from torchcaps.ops.dynamic_blocked import Rule, route
from torchcaps.recipe import Recipe
from torchcaps.step import TrainingStep
from torchcaps.testing import compare_routing

CHUNK = 10  # steps between two clock readings


def bench_train(recipe: Recipe, device: torch.device, steps: int) -> str:
    """One line about the recipe's training step, everything included, on random images of the data's shape."""
    run = recipe.make()
    stage, about = run.stages[0], info(run.data)
    rng = torch.Generator().manual_seed(0)
    n = min(about.n_train, 10_000)
    images = torch.randint(0, 256, (n, *about.shape), dtype=torch.uint8, generator=rng)
    data = Labelled(images, torch.randint(0, about.n_classes, (n,), generator=rng))
    with algorithms(False, device), own_randomness(0, device):
        model = run.build().to(device)
        model = model.to(memory_format=torch.channels_last) if device.type == "cuda" else model
        batches = Batches(data, stage.batch, run.augment, device)
        batches.new_epoch(rng)
        step = TrainingStep(stage, model, batches, 2 * steps + 4 * CHUNK, device)
        chunk_ms = time_ms(lambda: [step() for _ in range(CHUNK)], device, repeats=max(1, steps // CHUNK))
    ms = chunk_ms / CHUNK
    return (
        f"{recipe.name}: {ms:.3f} ms per step, {1000 * stage.batch / ms:,.0f} images/s, peak memory "
        f"{peak_memory(device) / 2**20:,.0f} MiB (batch {stage.batch}, {device_name(device)}, torch {versions()['torch']})"
    )


def time_ms(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median time of one call in milliseconds, after two calls to warm up."""
    for _ in range(2):
        work()
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize(device)
            start.record()
            work()
            end.record()
            torch.cuda.synchronize(device)
            times.append(start.elapsed_time(end))
        else:
            begun = time.perf_counter()
            work()
            times.append(1000 * (time.perf_counter() - begun))
    return median(times)


@dataclass(frozen=True)
class Case:
    """One op at one shape. `call(backend, **inputs)` gives the output; `make(batch)` the inputs, in float32 on the CPU."""

    op: str
    shape: str
    batch: int
    call: Callable[..., Tensor]
    make: Callable[[int], dict[str, Tensor]]
    has_backends: bool = False

    def inputs(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        return {name: tensor.to(device, dtype).requires_grad_() for name, tensor in self.make(batch).items()}


def _random(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * scale


def _plain_einsum(poses: Tensor, weight: Tensor, bias: Tensor, n_iters: int) -> Tensor:
    """What most implementations do; the reference multiplies and sums."""
    votes = torch.einsum("bid,ijde->bije", poses, weight)
    logits = votes.new_zeros(votes.shape[:-1])
    for t in range(n_iters):
        parents = squash(torch.einsum("bij,bije->bje", logits.softmax(-1), votes) + bias)
        if t < n_iters - 1:
            logits = logits + torch.einsum("bije,bje->bij", votes, parents)
    return parents


def _plain_bmm(poses: Tensor, weight: Tensor, bias: Tensor, n_iters: int) -> Tensor:
    """The blocked backend as a single block."""
    rule = Rule(weight.shape[1], n_iters, softmax, fixed=False, detach=False)
    return route(poses, weight, bias, None, rule)[0]


PLAIN = {"plain einsum": _plain_einsum, "plain bmm": _plain_bmm}


def _dynamic(batch: int, n_in: int, n_out: int, d_in: int, d_out: int, n_iters: int = 3) -> Case:
    def make(batch: int) -> dict[str, Tensor]:
        weight = _random(n_in, n_out, d_in, d_out, scale=n_in**-0.5)
        return {"poses": _random(batch, n_in, d_in, scale=d_in**-0.5), "weight": weight, "bias": torch.full((n_out, d_out), 0.1)}

    def call(backend: str, **inputs: Tensor) -> Tensor:
        if backend in PLAIN:
            return PLAIN[backend](**inputs, n_iters=n_iters)
        return dynamic_routing(**inputs, n_iters=n_iters, backend=backend).poses

    return Case("dynamic_routing", f"b{batch} {n_in}x{d_in} -> {n_out}x{d_out} r{n_iters}", batch, call, make, has_backends=True)


def _local(batch: int, size: int, n_in: int, n_out: int, d_in: int, d_out: int, kernel: int) -> Case:
    def make(batch: int) -> dict[str, Tensor]:
        weight = _random(n_in, kernel * kernel, n_out, d_in, d_out, scale=(n_in * kernel) ** -0.5)
        return {"poses": _random(batch, n_in * size * size, d_in), "weight": weight, "bias": torch.full((n_out, d_out), 0.1)}

    @cache  # moved to the device once, before anything is captured
    def grid_on(device: torch.device) -> LocalGrid:
        grid = local_grid(size, size, kernel)
        return grid._replace(seen=grid.seen.to(device), reach=grid.reach.to(device), slot=grid.slot.to(device))

    def call(backend: str, **inputs: Tensor) -> Tensor:
        return local_routing(**inputs, grid=grid_on(inputs["poses"].device)).poses

    return Case("local_routing", f"b{batch} {n_in}x{size}x{size}x{d_in} -> {n_out}x{d_out} k{kernel}", batch, call, make)


def _squash(batch: int, n: int, d: int) -> Case:
    return Case(
        "squash", f"b{batch} {n}x{d}", batch, lambda backend, vectors: squash(vectors), lambda batch: {"vectors": _random(batch, n, d)}
    )


CASES = {
    "cuda": [
        _dynamic(128, 1152, 10, 8, 16),
        _dynamic(128, 1152, 10, 8, 16, n_iters=1),
        _dynamic(32, 4608, 10, 8, 16),
        _squash(128, 1152, 8),
    ],
    "cpu": [_dynamic(128, 1152, 10, 8, 16), _dynamic(32, 128, 10, 8, 16), _local(8, 6, 8, 8, 8, 8, kernel=3), _squash(128, 1152, 8)],
}
BACKENDS = {"cuda": ("reference", "compiled"), "cpu": ("reference", "plain einsum", "plain bmm", "blocked")}


def bench_ops(device: torch.device, repeats: int, console: Console) -> None:
    """Every op, forward and backward, per shape, dtype and backend. What fails its check gets no time."""
    console.print(f"{device_name(device)}, torch {versions()['torch']}; medians of {repeats}; memory beyond inputs, outputs and gradients")
    with algorithms(False, device):
        console.print(_ops_table(device, repeats))


def _ops_table(device: torch.device, repeats: int) -> Table:
    lines = Table("op", "shape", "dtype", "backend", "ms", "images/s", "peak MiB", "against reference")
    for case in CASES[device.type]:
        for dtype in (torch.float32, torch.bfloat16) if device.type == "cuda" else (torch.float32,):
            reference = None
            for backend in BACKENDS[device.type] if case.has_backends else ("reference",):
                name = [case.op, case.shape, str(dtype).removeprefix("torch."), backend]
                if wrong := _check(case, dtype, backend, device):
                    lines.add_row(*name, f"[red]wrong: {wrong}", "", "", "")
                    continue
                ms, peak = _time(case, dtype, backend, device, repeats)
                reference = reference or ms
                memory = "-" if peak is None else f"{peak / 2**20:,.1f}"
                lines.add_row(*name, f"{ms:.3f}", f"{1000 * case.batch / ms:,.0f}", memory, f"{reference / ms:.2f}x")
    return lines


def _check(case: Case, dtype: torch.dtype, backend: str, device: torch.device) -> str | None:
    """Value and gradients against float64 at a batch of two; the reason if they are off."""
    try:
        compare_routing(case.call, case.inputs(2, device, dtype), backend=backend, dtype=dtype)
    except AssertionError as error:
        return str(error)
    finally:
        torch._dynamo.reset()  # or the timed shape would run a program made for any batch
    return None


def _time(case: Case, dtype: torch.dtype, backend: str, device: torch.device, repeats: int) -> tuple[float, int | None]:
    """Milliseconds of forward and backward (on CUDA inside a graph), and bytes beyond what goes in and comes out."""
    inputs = case.inputs(case.batch, device, dtype)
    grad = torch.ones_like(case.call(backend, **inputs).detach())

    known = sum(tensor.nbytes for tensor in (*inputs.values(), grad))  # of the gradients and the output

    def work() -> None:
        torch.autograd.backward(case.call(backend, **inputs), grad, inputs=list(inputs.values()))
        for tensor in inputs.values():
            tensor.grad = None

    if device.type != "cuda":
        peak = _peak_on_cpu(work)
        return time_ms(work, device, repeats), None if peak is None else max(peak - known, 0)
    work()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    peak = torch.cuda.max_memory_allocated(device) - before - known
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return time_ms(graph.replay, device, repeats), peak


def _peak_on_cpu(work: Callable[[], object]) -> int | None:
    """How much larger the process was while it worked; Linux tells, others do not."""
    status = Path("/proc/self/status")
    try:
        CDLL("libc.so.6").malloc_trim(0)  # or memory freed by an earlier case would be used again and not be seen
        Path("/proc/self/clear_refs").write_text("5")  # forget the largest size so far
    except (OSError, AttributeError):
        return None
    read = lambda name: 1024 * int(re.search(rf"{name}:\s+(\d+) kB", status.read_text())[1])  # noqa: E731
    before = read("VmRSS")
    work()
    return read("VmHWM") - before
