"""Speed and memory, measured: CUDA events or the wall clock, after a warm-up, medians, next to the reference in the same run."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from torchcaps.data import Labelled, info
from torchcaps.data.batches import Batches
from torchcaps.machine import algorithms, device_name, own_randomness, peak_memory, versions
from torchcaps.ops.dynamic import dynamic_routing
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
class Shape:
    """One case for dynamic routing: batch, inputs of d_in to outputs of d_out."""

    batch: int
    n_in: int
    n_out: int
    d_in: int
    d_out: int
    n_iters: int = 3

    def __str__(self) -> str:
        return f"b{self.batch} {self.n_in}x{self.d_in} -> {self.n_out}x{self.d_out} r{self.n_iters}"

    def inputs(self, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        rng = torch.Generator().manual_seed(0)
        poses = torch.randn(self.batch, self.n_in, self.d_in, generator=rng) / self.d_in**0.5
        weight = torch.randn(self.n_in, self.n_out, self.d_in, self.d_out, generator=rng) / self.n_in**0.5
        bias = torch.full((self.n_out, self.d_out), 0.1)
        return {n: t.to(device, dtype).requires_grad_() for n, t in (("poses", poses), ("weight", weight), ("bias", bias))}


SHAPES = {
    "cuda": [Shape(128, 1152, 10, 8, 16), Shape(128, 1152, 10, 8, 16, n_iters=1), Shape(32, 4608, 10, 8, 16)],
    "cpu": [Shape(16, 1152, 10, 8, 16), Shape(32, 128, 10, 8, 16)],
}
BACKENDS = {"cuda": ("reference", "compiled"), "cpu": ("reference",)}


def bench_ops(device: torch.device, repeats: int, console: Console) -> None:
    """Dynamic routing, forward and backward, per shape, dtype and backend."""
    console.print(f"{device_name(device)}, torch {versions()['torch']}; medians of {repeats}; memory beyond inputs and gradients")
    lines = Table("op", "shape", "dtype", "backend", "ms", "images/s", "peak MiB", "against reference")
    for shape in SHAPES[device.type]:
        for dtype in (torch.float32, torch.bfloat16) if device.type == "cuda" else (torch.float32,):
            reference = None
            for backend in BACKENDS[device.type]:
                if wrong := _check(shape, dtype, backend, device):
                    lines.add_row("dynamic_routing", str(shape), str(dtype), backend, f"[red]wrong: {wrong}", "", "", "")
                    continue
                ms, peak = _time_routing(shape, dtype, backend, device, repeats)
                reference = reference or ms
                cells = [f"{ms:.3f}", f"{1000 * shape.batch / ms:,.0f}", f"{peak / 2**20:,.1f}", f"{reference / ms:.2f}x"]
                lines.add_row("dynamic_routing", str(shape), str(dtype).removeprefix("torch."), backend, *cells)
    console.print(lines)


def _check(shape: Shape, dtype: torch.dtype, backend: str, device: torch.device) -> str | None:
    """Value and gradients against float64 at a smaller batch; the reason if they are off."""
    small = Shape(2, shape.n_in, shape.n_out, shape.d_in, shape.d_out, shape.n_iters)
    try:
        compare_routing(dynamic_routing, small.inputs(device, dtype) | {"n_iters": shape.n_iters}, backend=backend, dtype=dtype)
    except AssertionError as error:
        return str(error)
    finally:
        torch._dynamo.reset()  # or the timed shape would run a program made for any batch
    return None


def _time_routing(shape: Shape, dtype: torch.dtype, backend: str, device: torch.device, repeats: int) -> tuple[float, int]:
    """Milliseconds of forward and backward (on CUDA inside a graph), and bytes beyond what went in and comes out."""
    inputs = shape.inputs(device, dtype)
    grad = torch.randn(shape.batch, shape.n_out, shape.d_out, device=device, dtype=dtype)

    def work() -> None:
        routed = dynamic_routing(**inputs, n_iters=shape.n_iters, backend=backend)
        torch.autograd.backward(routed.poses, grad, inputs=list(inputs.values()))
        for tensor in inputs.values():
            tensor.grad = None

    if device.type != "cuda":
        return time_ms(work, device, repeats), 0
    work()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    peak = torch.cuda.max_memory_allocated(device) - before - sum(t.nbytes for t in (*inputs.values(), grad))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return time_ms(graph.replay, device, repeats), peak
