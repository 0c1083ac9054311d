"""Figures of Sabour 2017 that `reproduce` draws: from results and checkpoints that are there, and from nothing else."""

from dataclasses import replace
from importlib import import_module

import pytest
import torch

from torchcaps.papers import RECIPES
from torchcaps.papers.sabour2017.figures import figures
from torchcaps.results.store import make_result, result_path, write_result
from torchcaps.train import Options, train
from torchcaps.train.recipe import Run

pytest.importorskip("matplotlib")
CPU = torch.device("cpu")
SMALL = {"channels": 8, "n_types": 2, "hidden": (8, 8)}


@pytest.fixture(autouse=True)
def small_rows(monkeypatch):
    """Today's rows, made small."""
    ours = {name: recipe.make() for name, recipe in RECIPES.items() if name.startswith("sabour2017/")}
    today = {name.removeprefix("sabour2017/"): small(run) for name, run in ours.items() if isinstance(run, Run)}
    module = import_module("torchcaps.papers.sabour2017.figures")  # the package has a function of that name
    monkeypatch.setattr(module, "_today", lambda: today)


def small(run):
    run = run.quick(steps=4)
    return replace(run, model_args=run.model_args | SMALL) if run.model == "capsnet" else run


def put(name, tmp_path, seed=0, stale=False, **options):
    """A run of the row, where `reproduce` would have left it."""
    run = small(RECIPES[f"sabour2017/{name}"].make())
    run = replace(run, stages=(replace(run.stages[0], learning_rate=0.1),)) if stale else run
    out = tmp_path / "runs/sabour2017" / name / str(seed)
    trained = train(run, name=name, seed=seed, options=Options(out=out, progress=False, log_every=1, **options))
    write_result(result_path(tmp_path / "results", f"sabour2017/{name}", seed), make_result(name, seed, run, trained))


def drawn(tmp_path):
    return figures(tmp_path / "results", tmp_path / "runs", None, CPU)


def test_nothing_is_drawn_of_nothing(tmp_path):
    assert drawn(tmp_path) == {}


@pytest.mark.slow
def test_figures_of_models_need_their_checkpoints(tmp_path):
    put("mnist-r3-recon-64", tmp_path)
    assert set(drawn(tmp_path)) <= {"figure-3", "figure-4"} and "figure-3" in drawn(tmp_path)
    put("multimnist-4-r3", tmp_path)
    assert "figure-5" in drawn(tmp_path)


@pytest.mark.slow
def test_figures_of_training_need_their_results(tmp_path):
    for name in ("mnist-r3-recon", "mnist-r5-recon", "cifar10"):
        put(name, tmp_path)
    put("mnist-r3-recon", tmp_path, seed=1)
    made = drawn(tmp_path)
    assert {"figure-A1", "error-by-iterations"} == set(made)
    assert "MNIST: 2 of 3, 1 of 5" in made["error-by-iterations"][1]
    put("cifar10-r1", tmp_path)
    made = drawn(tmp_path)
    assert "After the paper's figure A.2" in made["figure-A2"][1]
    assert "CIFAR-10: 1 of 1, 1 of 3." in made["error-by-iterations"][1]


def test_nothing_is_drawn_of_another_run_or_of_half_a_run(tmp_path):
    put("mnist-r3-recon-64", tmp_path, stale=True)
    put("mnist-r5-recon", tmp_path, stale=True)
    assert drawn(tmp_path) == {}
    put("multimnist-4-r3", tmp_path, max_steps=1)
    assert drawn(tmp_path) == {}
