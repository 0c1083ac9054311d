"""Train a recipe in a few steps."""

from pathlib import Path

from torchcaps.papers import RECIPES
from torchcaps.train import Options, train


def smoke(out: Path, name: str = "smoke/capsnet", run=None, **options):
    run = run or RECIPES[name].make()
    return train(run, name=name, seed=0, options=Options(out=out, **({"log_every": 1, "progress": False} | options)))
