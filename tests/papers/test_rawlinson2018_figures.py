"""Figures of latent capsules: what they are made of, and which results and checkpoints they need."""

from dataclasses import replace
from importlib import import_module
from shutil import rmtree

import pytest
import torch

from torchcaps.data import Labelled
from torchcaps.figures.canvas import png
from torchcaps.models import SparseCaps
from torchcaps.papers import RECIPES
from torchcaps.papers.rawlinson2018.drawing import (
    apart,
    by_depth,
    latent_sweeps,
    rank_frequencies,
    ranked_support,
    single_capsules,
    sweeps_of,
)
from torchcaps.papers.rawlinson2018.figures import figures
from torchcaps.results.store import make_result, result_path, write_result
from torchcaps.train import Options, train

pytest.importorskip("matplotlib")
CPU = torch.device("cpu")
NETWORKS = {name for name, recipe in RECIPES.items() if name.startswith("rawlinson2018/") and recipe.make().trains}
SMALL = {
    "channels": 4,
    "kernel": 3,
    "n_types": 2,
    "d_primary": 4,
    "primary_kernel": 3,
    "hidden": (8, 8),
    "n_latent": 5,
    "d_latent": 6,
}


@pytest.fixture
def model():
    return SparseCaps((1, 12, 12), **SMALL).eval()


@pytest.fixture
def data(rng):
    return Labelled(torch.randint(0, 256, (8, 1, 12, 12), generator=rng).to(torch.uint8), torch.arange(8) % 3)


def test_one_alone_and_all_but_one(model, data):
    alone, without = apart(model, data.images[0])
    poses = model(data.images[:1] / 255).poses
    assert alone.shape == without.shape == (6, 1, 12, 12)
    torch.testing.assert_close(alone[0], model.reconstruct(poses)[0])
    third = torch.zeros(1, 5, 1)
    third[0, 2] = 1
    torch.testing.assert_close(alone[3], model.reconstruct(poses * third)[0])
    torch.testing.assert_close(without[3], model.reconstruct(poses * (1 - third))[0])


def test_a_sweep_moves_the_capsule_that_wins_boost_included(model, data):
    pictures, winner = sweeps_of(model, data.images[0])
    latent = model.latent(data.images[:1] / 255)
    assert winner == int(latent.mask[0].argmax())
    assert pictures.shape == (6, 11, 1, 12, 12)
    poses = latent.masked().poses.clone()
    torch.testing.assert_close(pictures[0, 5], model.reconstruct(poses)[0])  # the middle is unchanged
    poses[0, winner, 4] += 1.0
    torch.testing.assert_close(pictures[4, 10], model.reconstruct(poses)[0])
    model.mask.boost[(winner + 1) % 5] = 100.0
    assert sweeps_of(model, data.images[0])[1] == (winner + 1) % 5


def test_figures_of_a_model_are_drawn(model, data):
    for figure, words in (single_capsules(model, data, "Here"), latent_sweeps(model, data, "There")):
        assert len(png(figure)) > 2000 and words.startswith(("Here", "There"))


def test_lines_are_the_stored_numbers():
    told = {"n_images": 9, "relative_support": {"0": 1.0, "2": 0.25, "1": 0.5, "10": 0.1}}
    figure, _ = ranked_support({"sparse": told})
    assert figure.axes[0].lines[0].get_ydata().tolist() == [1.0, 0.5, 0.25, 0.1]  # by number, not as text


def test_panels_show_every_capsule_and_the_aim_of_the_boosts():
    frequency = {"0": {"0": 0.7, "1": 0.3}, "1": {"0": 0.1, "1": 0.9}, "2": {"0": 0.2, "1": 0.8}}
    told = {"n_images": 9, "rank_frequency": frequency}
    figure, words = rank_frequencies({"28x28": told, "40x40": told}, (0.04, 0.1))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["28x28", "40x40"]
    capsules = figure.axes[0].lines[:3]  # the others, then the fewest wins, then the most
    assert [line.get_ydata().tolist() for line in capsules] == [[0.2, 0.8], [0.1, 0.9], [0.7, 0.3]]
    assert "28x28: 0.100 to 0.700" in words
    assert all(len(axes.collections) == 1 for axes in figure.axes)
    figure, _ = rank_frequencies({"28x28": told}, None)  # no range, nothing to colour
    assert not figure.axes[0].collections


def test_depth_has_a_column_for_each_network_and_a_line_for_each_layer():
    layer = {"relative_support": {"0": 1.0, "1": 0.5}, "relative_activity": {"0": 1.0, "1": 0.25}}
    figure, words = by_depth({name: {"layers": dict.fromkeys("123", layer)} for name in ("sparse", "dense")})
    assert len(figure.axes) == 4 and {len(axes.lines) for axes in figure.axes} == {3}
    assert figure.axes[2].lines[0].get_ydata().tolist() == [1.0, 0.25]
    assert "sparse 0.250, dense 0.250" in words


@pytest.mark.slow
def test_the_paper_draws_what_is_there_and_nothing_of_another_run(tmp_path, monkeypatch):
    def small(name):
        run = RECIPES[f"rawlinson2018/{name}"].make()
        args = SMALL if run.model != "supcaps" else {key: value for key, value in SMALL.items() if "latent" not in key}
        return replace(replace(run, model_args=run.model_args | args).quick(2), data="generated-16", tests=())

    def put(name, stale=False):
        run = small(name)
        run = replace(run, stages=(replace(run.stages[0], learning_rate=0.1),)) if stale else run
        options = Options(out=tmp_path / "runs/rawlinson2018" / name / "0", progress=False)
        trained = train(run, name=name, seed=0, options=options)
        write_result(result_path(tmp_path / "results", f"rawlinson2018/{name}", 0), make_result(name, 0, run, trained))

    small_ones = ["mnist-sparse", "mnist-steered", "mnist-dense", "mnist-supervised", "like-sparse", "like-steered"]
    today = {name.removeprefix("rawlinson2018/"): recipe.make() for name, recipe in RECIPES.items() if name in NETWORKS}
    today |= {name: small(name) for name in (*small_ones, "stack-sparse")}
    monkeypatch.setattr(import_module("torchcaps.papers.rawlinson2018.figures"), "_today", lambda: today)

    def drawn():
        return figures(tmp_path / "results", tmp_path / "runs", None, CPU)

    assert drawn() == {}
    put("mnist-dense", stale=True)
    assert drawn() == {}
    put("mnist-sparse"), put("stack-sparse")
    assert set(drawn()) == {"figure-2-sparse", "figure-5", "figure-3", "figure-4", "depth"}
    rmtree(tmp_path / "runs/rawlinson2018/mnist-dense")
    put("mnist-dense"), put("mnist-supervised")
    made = drawn()
    assert set(made) == {"figure-2", "figure-2-sparse", "figure-5", "figure-5-dense", "figure-3", "figure-4", "depth"}
    assert len(made["figure-3"][0].axes[0].lines) == 3
    assert len(made["figure-4"][0].axes) == 1
    put("mnist-steered"), put("like-sparse")
    made = drawn()
    assert "figure-4-our-boosts" in made and len(made["figure-3"][0].axes[0].lines) == 4
    assert len(made["figure-4"][0].axes) == 2
