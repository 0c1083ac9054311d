"""The training step of a recipe, everything included."""

import torch

from torchcaps.bench.timing import here, time_ms
from torchcaps.data import DataInfo, Labelled, info
from torchcaps.data.pair_batches import batches_for
from torchcaps.data.pairs import MARGIN, PairSource
from torchcaps.machine import algorithms, own_randomness, peak_memory
from torchcaps.recipe import Recipe
from torchcaps.step import TrainingStep

CHUNK = 10  # steps between two clock readings


def bench_train(recipe: Recipe, device: torch.device, steps: int) -> str:
    """One line about the recipe's training step, everything included, on random images of the data's shape."""
    run = recipe.make()
    stage, about = run.stages[0], info(run.data)
    rng = torch.Generator().manual_seed(0)
    data = _random_data(about, rng)
    with algorithms(False, device), own_randomness(0, device):
        model = run.build().to(device)
        model = model.to(memory_format=torch.channels_last) if device.type == "cuda" else model
        batches = batches_for(data, stage.batch, run.augment, device)
        batches.new_epoch(rng)
        step = TrainingStep(stage, model, batches, 2 * steps + 4 * CHUNK, device)
        chunk_ms = time_ms(lambda: [step() for _ in range(CHUNK)], device, repeats=max(1, steps // CHUNK))
    ms = chunk_ms / CHUNK
    return (
        f"{recipe.name}: {ms:.3f} ms per step, {1000 * stage.batch / ms:,.0f} images/s, peak memory "
        f"{peak_memory(device) / 2**20:,.0f} MiB (batch {stage.batch}, {here(device)})"
    )


def _random_data(about: DataInfo, rng: torch.Generator) -> Labelled | PairSource:
    """Noise in the shape of the data; digits to be paired, where it is pairs."""
    n, around = min(about.n_train, 10_000), 2 * MARGIN * (about.n_labels == 2)
    c, h, w = about.shape
    images = torch.randint(0, 256, (n, c, h - around, w - around), dtype=torch.uint8, generator=rng)
    labels = torch.randint(0, about.n_classes, (n,), generator=rng)
    return PairSource(images, labels, MARGIN) if around else Labelled(images, labels)
