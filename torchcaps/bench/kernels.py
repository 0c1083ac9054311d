"""Where a training step spends its time: kernels on a GPU, operators on a CPU."""

from itertools import islice

import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEventAvg
from torch.profiler import ProfilerActivity, profile

from torchcaps.bench.timing import here
from torchcaps.bench.train import CHUNK, repeated, trained
from torchcaps.results.claims import Recipe

NAME = 90  # characters of a kernel's name; those of templates have hundreds


def bench_kernels(recipe: Recipe, device: torch.device, steps: int, most: int) -> str:
    """Time a recipe's training step on random data, and list the kernels that take most of it; return lines of text.

    The reference is not timed: see `bench_train`.
    """
    run = recipe.make()
    with trained(run, device, steps, spare=CHUNK) as (step, found):
        kinds = [ProfilerActivity.CUDA] if device.type == "cuda" else [ProfilerActivity.CPU]
        with profile(activities=kinds) as profiled:
            repeated(step)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
    batch = run.stages[0].batch
    head = f"{recipe.name}: {found.words(batch)} (batch {batch}, {found.precision}, {here(device)})"
    return "\n".join([head, *listed(profiled.key_averages(), device.type == "cuda", most)])


def listed(events: list[FunctionEventAvg], on_cuda: bool, most: int) -> list[str]:
    """List events of CHUNK steps, the longest first: microseconds and calls of one step, and their sum."""
    if on_cuda:
        found = [(x.self_device_time_total, x.count, x.key) for x in events if x.device_type == DeviceType.CUDA]
    else:
        found = [(x.self_cpu_time_total, x.count, x.key) for x in events]
    found = sorted((each for each in found if each[0] > 0), reverse=True)
    total, calls = sum(us for us, _, _ in found), sum(count for _, count, _ in found)
    lines = [f"{total / CHUNK:9.1f} us {calls / CHUNK:6.1f} calls  {len(found)} kinds in all"]
    for us, count, name in islice(found, most):
        lines.append(f"{us / CHUNK:9.1f} us {count / CHUNK:6.1f} calls  {name[:NAME]}")
    return lines
