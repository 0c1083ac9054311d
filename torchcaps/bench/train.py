"""Benchmark of a recipe's whole training step against the same step with the reference ops."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import nn

from torchcaps.bench.memory import Peak
from torchcaps.bench.noise import random_sentences
from torchcaps.bench.timing import here, time_ms
from torchcaps.data import DataInfo, Labelled, info
from torchcaps.data.batches import batches_for
from torchcaps.data.sets.pairs import MARGIN, PairSource
from torchcaps.data.sets.sst import Sentences
from torchcaps.layers import EMCapsules, RoutedCapsules
from torchcaps.layers.memory_format import to_device
from torchcaps.ops.backend import without_kernels
from torchcaps.results.claims import Recipe
from torchcaps.runtime.environment import algorithms, own_randomness
from torchcaps.train.recipe import Run
from torchcaps.train.step import TrainingStep

CHUNK = 10  # steps per clock reading and per mean loss
CHECKED = 2  # chunks whose mean losses must agree
# relative difference allowed. In the first 20 steps of CapsNet on a CPU, bfloat16 instead of float32 changed the mean
# losses by 0.02 %, and routing without gradients of its weight or its inputs by 0.7 to 1.2 %
TOLERANCE = 0.003


class Trained(NamedTuple):
    """Measurement of one implementation of the training step."""

    routing: str
    precision: str
    losses: list[float]  # mean loss of each checked chunk
    ms: float
    memory: str
    peak_bytes: int
    compiling_s: float | None  # seconds to compile and capture the step; None where it is not compiled

    def words(self, batch: int) -> str:
        """Describe time, throughput, memory, time to compile and routing backend."""
        speed = f"{self.ms:.3f} ms per step, {1000 * batch / self.ms:,.0f} images/s, peak memory {self.memory}"
        ready = "" if self.compiling_s is None else f", compiled in {self.compiling_s:.1f} s"
        return f"{speed}{ready}, routing: {self.routing}"


def bench_train(recipe: Recipe, device: torch.device, steps: int) -> str:
    """Time a recipe's training step and its reference on random data of the same shape; return lines of text.

    The reference is the same step, also one CUDA graph, without Triton kernels and with reference routing. If their
    losses from the same initialisation and images differ, the lines hold the reason and no times.
    """
    run = recipe.make()
    fast = _train(run, device, steps)
    batch = run.stages[0].batch
    line = f"{recipe.name}: {fast.words(batch)} (batch {batch}, {fast.precision}, {here(device)})"
    if device.type != "cuda" and fast.routing in ("none", "reference"):
        return f"{line}\n  nothing to compare: without a GPU this step is the reference itself"
    plain = _train(run, device, steps, reference=True)
    both = f"{_listed(fast.losses)}, with the reference {_listed(plain.losses)}"
    learnt = f"mean losses of the first {CHECKED} x {CHUNK} steps {both}"
    if not agree(fast.losses, plain.losses):
        return f"{recipe.name}: wrong: {learnt}, more than {100 * TOLERANCE:g} % apart; no times until they agree"
    against = f"  with the reference ops: {plain.words(batch)}; {plain.ms / fast.ms:.2f}x the time"
    return f"{line}\n{against}\n  checked: {learnt} (allowed {100 * TOLERANCE:g} %)"


def agree(fast: Sequence[float], plain: Sequence[float]) -> bool:
    """Return whether mean losses agree within the tolerance. NaN never agrees."""
    return all(abs(one - other) <= TOLERANCE * abs(other) for one, other in zip(fast, plain, strict=True))


def _train(run: Run, device: torch.device, steps: int, reference: bool = False) -> Trained:
    with trained(run, device, steps, reference) as (_, found):
        return found


@contextmanager
def trained(
    run: Run, device: torch.device, steps: int, reference: bool = False, spare: int = 0
) -> Iterator[tuple[TrainingStep, Trained]]:
    """Yield a training step and its measurement; the block runs under the same settings and has `spare` steps left."""
    if device.type == "cuda":
        torch._dynamo.reset()  # otherwise one step would reuse the other's compiled code
    peak = Peak(device)
    repeats = max(1, steps // CHUNK)
    with algorithms(False, device), own_randomness(0, device), without_kernels() if reference else nullcontext():
        # two chunks for warm-up
        step = make_step(run, device, (CHECKED + 2 + repeats) * CHUNK + spare, reference)
        compiling_s = _prepared(step)
        losses = []
        for _ in range(CHECKED):
            repeated(step)
            losses.append(step.read_means()["loss"])
        ms = time_ms(lambda: repeated(step), device, repeats) / CHUNK
        precision = "bfloat16" if step.casts else "float32"
        yield step, Trained(step.routing, precision, losses, ms, str(peak), peak.read(), compiling_s)


def _prepared(step: TrainingStep) -> float | None:
    """Compile and capture the step; return how many seconds that took, None where nothing is compiled."""
    if not step.unprepared:
        return None
    begun = time.perf_counter()
    step.prepare()
    torch.cuda.synchronize(step.device)
    return time.perf_counter() - begun if step.compiles else None


def repeated(work: Callable[[], object]) -> None:
    """Call `work` CHUNK times, as between two clock readings."""
    for _ in range(CHUNK):
        work()


def make_step(run: Run, device: torch.device, n_steps: int, reference: bool) -> TrainingStep:
    """Build a training step with the same initialisation and images every time."""
    rng = torch.Generator().manual_seed(0)
    data = _random_data(info(run.data), rng)
    model = to_device(run.build(), device)
    if reference:
        _route_by_definition(model)
    batches = batches_for(data, run.stages[0].batch, run.augment, device)
    batches.new_epoch(rng)
    batches.before(0)
    return TrainingStep(run.stages[0], model, batches, n_steps, device)


def _route_by_definition(model: nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, EMCapsules | RoutedCapsules):
            layer.backend = "reference"


def _listed(losses: Sequence[float]) -> str:
    return " and ".join(f"{loss:.5g}" for loss in losses)


def _random_data(about: DataInfo, rng: torch.Generator) -> Labelled | PairSource | Sentences:
    """Draw random data of the data set's shape; single digits to be paired for data of pairs."""
    if about.kind == "sentences":
        return random_sentences(about, rng)
    n, around = min(about.n_train, 10_000), 2 * MARGIN if about.n_labels == 2 else 0
    c, h, w = about.shape
    images = torch.randint(0, 256, (n, c, h - around, w - around), dtype=torch.uint8, generator=rng)
    labels = torch.randint(0, about.n_classes, (n,), generator=rng)
    return PairSource(images, labels, MARGIN) if around else Labelled(images, labels)
