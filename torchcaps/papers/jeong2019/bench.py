"""Table 3: time of a training step on 100 images, ladder capsule networks and CapsNets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from torchcaps.bench import train
from torchcaps.bench.timing import here, print_table, time_ms
from torchcaps.bench.train import TOLERANCE, Trained, agree, repeated, trained
from torchcaps.papers import RECIPES
from torchcaps.train.recipe import Run
from torchcaps.train.step import TrainingStep

BATCH = 100
LADDER, CAPSNET = "jeong2019/mnist-k70", "sabour2017/mnist-r3-recon"
YARDSTICK = "CapsNet, r = 3"  # denominator of the ratios
REFERENCE = ", reference ops"
# seconds per training step, on unnamed hardware
PRINTED = {
    "L-CapsNet, K = 50": 0.2034, "L-CapsNet, K = 70": 0.2159, "L-CapsNet, K = 100": 0.2953,
    "CapsNet, r = 3": 1.732, "CapsNet, r = 4": 2.123, "CapsNet, r = 5": 2.656,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One network. `reference`: reference ops instead of kernels."""

    name: str
    run: Run
    reference: bool = False


class Found(NamedTuple):
    """Sizes and times of one contender."""

    contender: Contender
    n_parameters: int
    both_ms: float  # forward and backward
    whole: Trained  # including the optimiser


def contenders() -> list[Contender]:
    """List the networks of the paper's table, CapsNets with kernels and reference ops, and two more sizes."""
    made = [Contender(name=f"L-CapsNet, K = {k}", run=_alike(LADDER, n_kept=k)) for k in (50, 70, 100)]
    made.append(Contender(name="L-CapsNet, K = 70, shared nets", run=_alike(LADDER, preset="shared")))
    routed = [Contender(name=f"CapsNet, r = {r}", run=_alike(CAPSNET, n_iters=r)) for r in (3, 4, 5)]
    made += routed + [replace(one, name=one.name + REFERENCE, reference=True) for one in routed]
    made.append(Contender(name="CapsNet, r = 3, no decoder", run=_alike(CAPSNET, reconstruction=False)))
    return made


def bench_ladder(
    device: torch.device,
    steps: int,
    console: Console,
    only: Sequence[str] = (),
    say: Callable[[str], object] = lambda text: None,
) -> None:
    """Print the table with the paper's ratios. Kernels whose losses differ from the reference get no time."""
    found = []
    for contender in _select(contenders(), only):
        found.append(_measure(contender, device, steps))
        say(f"{contender.name}: {found[-1].both_ms:.3f} ms forward and backward, {found[-1].whole.ms:.3f} ms in all")
    batch, repeats = found[0].contender.run.stages[0].batch, max(1, steps // train.CHUNK)
    how = f"medians of {repeats} means of {train.CHUNK} steps, batch {batch}, noise for images, no augmentation"
    decoders = "a CapsNet has its decoder unless said otherwise, a ladder has none"
    console.print(f"{here(device)}; {how}; {decoders}", highlight=False, soft_wrap=True)
    wrong = _wrong(found)
    print_table(console, _table(found, wrong))
    for line in wrong.values():
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _alike(row: str, **model_args) -> Run:
    """Build a run with the paper's batch size, the same optimiser, and no step that only some networks have."""
    run = RECIPES[row].make()
    stage = replace(RECIPES[CAPSNET].make().stages[0], task=run.stages[0].task, batch=BATCH, ema=0.0)
    return replace(run, model_args=run.model_args | model_args, augment=(), stages=(stage,))


def _select(all_of_them: list[Contender], only: Sequence[str]) -> list[Contender]:
    # not split at commas, which names contain
    chosen = [one for one in all_of_them if not only or any(part in one.name for part in only)]
    if not chosen:
        names = "\n  ".join(one.name for one in all_of_them)
        raise ValueError(f"--only {'; '.join(only)!r} fits no method; there are:\n  {names}")
    return chosen


def _measure(contender: Contender, device: torch.device, steps: int) -> Found:
    with trained(contender.run, device, steps, contender.reference) as (step, whole):
        both = _forward_and_backward(step, device)
        both_ms = time_ms(lambda: repeated(both), device, max(1, steps // train.CHUNK)) / train.CHUNK
    return Found(contender, sum(p.numel() for p in step.model.parameters()), both_ms, whole)


def _forward_and_backward(step: TrainingStep, device: torch.device) -> Callable[[], object]:
    """Build a step without its optimiser; on CUDA as a graph, like the full step."""
    if device.type != "cuda":
        return step.gradients
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        step.gradients()
    torch.cuda.current_stream(device).wait_stream(side)
    step.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.gradients()
    return graph.replay


def _wrong(found: Sequence[Found]) -> dict[str, str]:
    """Explain, by name, which networks train differently with kernels and with the reference."""
    plain = {one.contender.name.removesuffix(REFERENCE): one for one in found if one.contender.reference}
    fast = {one.contender.name: one for one in found if not one.contender.reference}
    losses = {name: (one.whole.losses, plain[name].whole.losses) for name, one in fast.items() if name in plain}
    return {
        name: f"{name}: wrong: mean losses {ours}, with the reference {reference}, "
        f"more than {100 * TOLERANCE:g} % apart; no times until they agree"
        for name, (ours, reference) in losses.items()
        if not agree(ours, reference)
    }


def _table(found: Sequence[Found], wrong: dict[str, str]) -> Table:
    lines = Table(
        "method", "parameters", "forward and backward, ms", f"by {YARDSTICK}", "whole step, ms", f"by {YARDSTICK}",
        "peak memory", "printed, s", "printed ratio",
    )  # fmt: skip
    by_name = {one.contender.name: one for one in found if one.contender.name not in wrong}
    yard = by_name.get(YARDSTICK)
    for one in found:
        name = one.contender.name
        printed = PRINTED.get(name)
        last = ["-", "-"] if printed is None else [f"{printed:g}", f"{printed / PRINTED[YARDSTICK]:.2f}"]
        times = ["wrong", "-", "wrong", "-"]
        if name not in wrong:
            both = "-" if yard is None else f"{one.both_ms / yard.both_ms:.2f}"
            whole = "-" if yard is None else f"{one.whole.ms / yard.whole.ms:.2f}"
            times = [f"{one.both_ms:.3f}", both, f"{one.whole.ms:.3f}", whole]
        lines.add_row(name, f"{one.n_parameters:,}", *times, one.whole.memory, *last)
    return lines
