"""Figures 1, 2 and 4 of Jeong 2019: means by hand, drawings show what was found, no figure without its checkpoints."""

from dataclasses import replace
from importlib import import_module

import pytest
import torch

from torchcaps.models import CapsNet, LCapsNet
from torchcaps.papers.jeong2019.drawing import (
    Coupled,
    Ranked,
    activity_curves,
    coupled_bars,
    most_active,
    most_coupled,
    pruning_and_ladder,
)
from torchcaps.train import Options, train

pytest.importorskip("matplotlib")
CPU = torch.device("cpu")
paper = import_module("torchcaps.papers.jeong2019.figures")  # the package shows its function under the same name
SMALL = {"channels": 8, "kernel": 3, "n_types": 2, "d_primary": 4, "primary_kernel": 3, "d_class": 6}


def pictures(rng, n: int = 60) -> torch.Tensor:
    return torch.randint(0, 256, (n, 1, 12, 12), dtype=torch.uint8, generator=rng)


def test_lengths_and_couplings_are_means_of_the_longest_capsules(rng):
    model, images = CapsNet((1, 12, 12), 3, reconstruction=False, **SMALL), pictures(rng)
    found = most_coupled(model, images, label=2, most=7)
    with torch.no_grad():
        seen = images.float() / 255
        lengths = model.primary_capsules(seen).activity.mean(0)
        *_, last = model.steps(seen)
    order = lengths.argsort(descending=True)[:7]
    torch.testing.assert_close(found.lengths, lengths[order])
    torch.testing.assert_close(found.couplings, last.couplings.mean(0)[order, 2])


def test_activities_are_sorted_before_or_after_the_mean(rng):
    model, images = LCapsNet((1, 12, 12), 3, n_kept=5, **SMALL), pictures(rng)
    found = most_active(model, images, most=9)
    with torch.no_grad():
        activity = model.primary_capsules(images.float() / 255).activity
    torch.testing.assert_close(found.by_image, activity.sort(-1, descending=True).values.mean(0)[:9])
    torch.testing.assert_close(found.by_capsule, activity.mean(0).sort(descending=True).values[:9])
    assert (found.by_image >= found.by_capsule - 1e-6)[0]


def test_no_picture_no_mean():
    with pytest.raises(ValueError, match="needs one at least"):
        most_active(LCapsNet((1, 12, 12), 3, n_kept=5, **SMALL), torch.empty(0, 1, 12, 12, dtype=torch.uint8))


def test_bars_are_what_was_found():
    figure, caption = coupled_bars(Coupled(torch.tensor([0.9, 0.5, 0.1]), torch.tensor([0.3, 0.2, 0.1])), 0, 5444)
    upper, lower = figure.axes
    assert [bar.get_height() for bar in upper.patches] == pytest.approx([0.9, 0.5, 0.1])
    assert [bar.get_height() for bar in lower.patches] == pytest.approx([0.3, 0.2, 0.1])
    assert "5,444" in caption and "1.00" in caption  # images, and the correlation


def test_curves_say_where_the_kept_end():
    values = torch.tensor([0.9, 0.7, 0.3, 0.1])
    figure, caption = activity_curves({2: Ranked(values, values.flip(0)), 4: Ranked(values, values)}, 0, 10)
    left, right = figure.axes
    assert list(left.lines[0].get_ydata()) == pytest.approx(values.tolist())
    assert list(right.lines[0].get_ydata()) == pytest.approx(values.flip(0).tolist())
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["K = 2", "K = 4"]
    assert "0.80 and 0.20 with K = 2" in caption


@pytest.mark.parametrize("agreement", ["down", "none"])
def test_a_real_picture_is_pruned_and_told_again(agreement, rng):
    model, image = LCapsNet((1, 12, 12), 3, n_kept=5, agreement=agreement, **SMALL), pictures(rng, 1)[0]
    figure, caption = pruning_and_ladder(model, image, 1)
    _, laddered = model.ladder(image.unsqueeze(0).float() / 255)
    first = int(laddered.capsules.activity[0].argmax())
    assert f"5 of {model.classes.n_in}" in caption and f"{laddered.misfit[0, first]:.3f}" in caption
    shown = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    regressed = [] if agreement == "none" else [laddered.regressed[0, first]]
    for wanted in (laddered.kept.poses[0], *regressed):
        assert any(part.shape == wanted.shape and torch.allclose(torch.tensor(part), wanted.detach()) for part in shown)
    bars = [axes for axes in figure.axes if len(axes.patches) == 3 and not axes.images]
    assert [bar.get_width() for bar in bars[0].patches] == pytest.approx(laddered.capsules.activity[0].tolist())
    drawn = [axes for axes in figure.axes if (axes.images or axes.patches) and axes.get_title() and axes.axison]
    assert all(axes.get_ylabel() or axes.get_xlabel() for axes in drawn[1:]), "all but the image have labelled axes"


@pytest.fixture
def small_rows(monkeypatch):
    """Today's rows, made small."""

    def small(run):
        run = run.quick(steps=2)
        kept = {"n_kept": 5} if run.model == "lcapsnet" else {}
        kernels = {} if run.model_args.get("kernel") else {"kernel": 9, "primary_kernel": 9}
        return replace(run, model_args=run.model_args | SMALL | kept | kernels)

    today = {name: small(run) for name, run in paper._today().items()}
    monkeypatch.setattr(paper, "_today", lambda: today)
    return today


@pytest.mark.slow
def test_figures_need_their_checkpoints(small_rows, tmp_path):
    def drawn():
        return set(paper.figures(tmp_path, tmp_path / "runs", None, CPU))

    def put(name, run):
        train(run, name=name, seed=0, options=Options(out=tmp_path / "runs" / name / "0", progress=False))

    assert drawn() == set()
    put("digits/ladder", small_rows["digits/ladder"])
    assert drawn() == {"figure-2-digits"}
    put("jeong2019/mnist-k50", small_rows["jeong2019/mnist-k50"])
    assert drawn() == {"figure-2-digits", "figure-4"}
    put("jeong2019/mnist-k70", replace(small_rows["jeong2019/mnist-k70"], keep_scores=True))  # another run
    assert drawn() == {"figure-2-digits", "figure-4"}
    put("sabour2017/mnist-r3-recon-64", small_rows["sabour2017/mnist-r3-recon-64"])
    assert drawn() == {"figure-1", "figure-2-digits", "figure-4"}
