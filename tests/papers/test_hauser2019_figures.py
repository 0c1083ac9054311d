"""Sheets of samples, the network and its growth, of a model that is trained for a moment."""

import re
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from torchcaps.analysis.sample_quality import inverted, sampled_pictures
from torchcaps.data import load
from torchcaps.figures.canvas import montage
from torchcaps.papers import RECIPES
from torchcaps.papers.hauser2019.samples import architecture, growth_curve, sample_sheets
from torchcaps.results.store import make_result, read_result, result_path, write_result
from torchcaps.train import Options, train

pytest.importorskip("matplotlib")
drawing = import_module("torchcaps.papers.hauser2019.figures")  # the package shows its function `figures`
CPU = torch.device("cpu")


def test_a_sheet_has_a_column_for_every_capsule_and_counts_negatives():
    model = RECIPES["smoke/experts"].make().build().eval()
    data = load("generated-16", "train")
    figure, words = sample_sheets(model, data, CPU, row="to the letter")
    assert words.startswith("to the letter. ") and re.search(r"one of 4 capsules.* of 16 images", words)
    one, other = (sampled_pictures(model, 4, seed, CPU) for seed in (0, 1))
    assert len(figure.axes) == len(one) == 3
    shown = torch.as_tensor(figure.axes[0].images[0].get_array())
    torch.testing.assert_close(shown, montage(one["complete"])[0])  # one seed, nothing chosen
    assert not torch.allclose(shown, montage(other["complete"])[0])
    mean_image = data.images.float().mean(0) / 255
    for text, domain in zip(figure.texts, ("complete", "negated", "restricted"), strict=False):
        assert f": {100 * inverted(one[domain], mean_image).double().mean():.0f} % of these 16" in text.get_text()


def test_the_network_is_drawn_with_its_own_numbers_and_every_scale_is_labelled():
    model = RECIPES["smoke/experts"].make().build().eval()
    image = load("generated-16", "test").images[0] / 255
    figure, words = architecture(model, image, CPU, row="ours")
    assert words.startswith("ours. ") and "32 lowest capsules" in words
    poses = model(image.unsqueeze(0)).poses[0].detach()
    (panel,) = [axes for axes in figure.axes if axes.get_ylabel() == "expert"]
    torch.testing.assert_close(torch.as_tensor(panel.images[0].get_array()), poses)
    bars = figure.axes[6:]
    assert len(bars) == 3 and all(bar.get_xlabel() for bar in bars)


def test_no_title_of_the_network_runs_into_the_next():
    model = RECIPES["hauser2019/mnist-letter"].make().build().eval()
    figure, _ = architecture(model, torch.zeros(1, 28, 28), CPU, row="ours")
    figure.draw_without_rendering()
    boxes = sorted((text.get_window_extent().x0, text.get_window_extent().x1) for text in figure.texts)
    assert len(boxes) == 6 and all(one[1] < other[0] for one, other in pairwise(boxes))
    assert boxes[-1][1] < figure.bbox.x1


def test_growth_tells_when_the_chain_wakes():
    """Ten steps of an earlier stage came before, eight of them kept; the dream passes 0.01 at the fifth probe."""
    line = {"stage": 1, "probed_missed": 1.0, "probed_on": 1e-3}
    journal = [{"step": 8, "stage": 0, "loss": 3.0}]
    journal += [{"step": 15 + 5 * n, "probed_dreamt_on": 10.0 ** (2 * n - 9.5), **line} for n in range(6)]
    assert "about 25 steps in" in growth_curve(journal, 5)[1]
    assert "never wakes" in growth_curve(journal[:3], 5)[1]
    with pytest.raises(ValueError, match="needs the journal of a run whose experts were probed"):
        growth_curve(journal[:1], 5)


def test_the_growth_that_was_run_is_counted_from_the_first_step_of_the_experts():
    """Ten epochs of 468 steps came before; one in a hundred is on after 65 more (docs/papers/hauser2019.md)."""
    curve = read_result(Path(__file__).parents[2] / "results/hauser2019/mnist-growth/0.json")["curve"]
    woke = next(line["step"] for line in curve if line.get("probed_dreamt_on", 0) > 0.01)
    stage = RECIPES["hauser2019/mnist-growth"].make().stages[1]
    assert woke == 4680 + 65 and "about 65 steps in" in growth_curve(curve, stage.probe_every)[1]


def test_figures_of_the_paper_need_their_runs(tmp_path, monkeypatch):
    def small(name):
        run = RECIPES[f"hauser2019/{name}"].make().quick(steps=2)
        stages = tuple(
            replace(stage, task=replace(stage.task, samples=0)) if hasattr(stage.task, "samples") else stage
            for stage in run.stages
        )
        return replace(run, model_args=run.model_args | {"channels": 8, "experts": ((3, 4),)}, stages=stages)

    names = [*drawing.SHEETS, "mnist-growth"]
    monkeypatch.setattr(drawing, "_today", lambda: {name: small(name) for name in names})
    assert drawing.figures(tmp_path / "results", tmp_path / "runs", None, CPU) == {}
    for name in ("mnist", "mnist-growth"):
        out = tmp_path / "runs/hauser2019" / name / "0"
        trained = train(small(name), name=name, seed=0, options=Options(out=out, progress=False, log_every=1))
        write_result(
            result_path(tmp_path / "results", f"hauser2019/{name}", 0), make_result(name, 0, small(name), trained)
        )
    assert set(drawing.figures(tmp_path / "results", tmp_path / "runs", None, CPU)) == {
        "figure-1",
        "figure-2ab",
        "growth",
    }
