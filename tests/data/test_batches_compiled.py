"""A compiled training step makes its batch, too: every kind is one program and gives the same batch."""

import pytest
import torch

from torchcaps.data import Labelled, load
from torchcaps.data.augment import Erase
from torchcaps.data.batches import Batches, batches_for
from torchcaps.papers import RECIPES
from torchcaps.train.recipe import Run

CPU = torch.device("cpu")


def augmentations() -> dict[str, object]:
    """One augmentation of every kind that a recipe has, and of the one that none has."""
    runs = [run for run in (recipe.make() for recipe in RECIPES.values()) if isinstance(run, Run)]
    return {type(part).__name__: part for part in (Erase(4), *(part for run in runs for part in run.augment))}


AUGMENTATIONS = augmentations()


def check(batches: Batches, rng: torch.Generator) -> None:
    batches.new_epoch(rng)
    batches.before(0)
    torch._dynamo.reset()
    program = torch.compile(batches.at, backend="eager", fullgraph=True)
    found, wanted = program(torch.tensor(0)), batches.at(torch.tensor(0))
    assert type(found) is type(wanted)
    for name, one, other in zip(wanted._fields, found, wanted, strict=True):
        assert one is other is None or torch.equal(one, other), name


def test_there_are_augmentations_to_compile():
    assert len(AUGMENTATIONS) >= 10 and "Shift" in AUGMENTATIONS


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_every_augmentation_is_part_of_one_program(name, rng):
    images = torch.randint(0, 256, (32, 3, 32, 32), dtype=torch.uint8, generator=rng)
    data = Labelled(images, torch.randint(0, 10, (32,), generator=rng))
    check(Batches(data, 16, (AUGMENTATIONS[name],), CPU), rng)


def test_pairs_are_made_in_one_program(rng):
    check(batches_for(load("generated-pairs", "train"), 16, (), CPU), rng)


def test_sentences_of_one_length_are_taken_in_one_program(rng):
    batches = batches_for(load("generated-sentences", "train"), 4, (), CPU)
    batches.fixed_length = batches.store.longest  # as on CUDA
    check(batches, rng)
