"""Commands that choose by held-out images look at no test set, whatever the row looks at."""

from dataclasses import replace

import pytest

from torchcaps.cli.training import train_recipe
from torchcaps.cli.tune import _without_test
from torchcaps.data import load
from torchcaps.papers import RECIPES
from torchcaps.results.claims import Recipe
from torchcaps.train import Options
from torchcaps.train.recipe import Run, Watch


@pytest.fixture
def row() -> Recipe:
    """A row that watches its test set and is tested on another one as well."""
    run = RECIPES["smoke/capsnet"].make()
    stages = tuple(replace(stage, steps=1, watch=Watch(part="test", n_images=8)) for stage in run.stages)
    return Recipe("smoke/row", lambda: replace(run, tests=("generated-16",), stages=stages), None)


def looks_at_no_test_set(run: Run) -> bool:
    return run.parts() == ("validation",) and not run.tests and not any(stage.watch for stage in run.stages)


def test_tune_sees_no_test_set(row):
    assert not looks_at_no_test_set(row.make())
    assert looks_at_no_test_set(_without_test(row, 64, None))


def test_train_with_hold_out_sees_no_test_set(row, tmp_path, monkeypatch):
    read = []

    def noted(data, split, *args, **named):
        read.append(split)
        return load(data, split, *args, **named)

    monkeypatch.setattr("torchcaps.train.splits.load", noted)
    train_recipe(row, 0, Options(out=tmp_path, progress=False), hold_out=64)
    assert set(read) == {"train"}
