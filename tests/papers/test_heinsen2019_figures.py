"""Figures of Heinsen 2019, and `explain`: drawn from results and checkpoints of today's rows, as far as they are
there.
"""

import json
import sys
from dataclasses import replace

import pytest
import torch

from torchcaps import cli
from torchcaps.data import DataError, Labelled
from torchcaps.data.sets import smallnorb
from torchcaps.data.sets.smallnorb import part_of
from torchcaps.papers import RECIPES
from torchcaps.papers.heinsen2019 import figures
from torchcaps.papers.heinsen2019.curves import Watched, band, errors_by_view, validation_curves
from torchcaps.results.store import make_result, pack, result_path, write_result
from torchcaps.train import Options, train
from torchcaps.train.recipe import Watch

pytest.importorskip("matplotlib")
CPU = torch.device("cpu")
drawing = sys.modules[figures.__module__]  # the package's `figures` is the function
SMALL = {"channels": 4, "strides": (2, 2), "n_types": 2, "n_parts": 3, "d_pose": 2}


def small(run):
    """Two epochs of generated images."""
    watch = Watch(n_images=64) if run.stages[0].watch else None
    run = replace(run, data="generated-16", augment=(), model_args=run.model_args | SMALL).quick(steps=4)
    return replace(run, data="generated-16", stages=(replace(run.stages[0], batch=256, watch=watch),))


@pytest.fixture(autouse=True)
def small_rows(monkeypatch):
    """Today's rows, made small."""
    today = {name: small(RECIPES[f"heinsen2019/{name}"].make()) for name in ("smallnorb", "smallnorb-r1")}
    monkeypatch.setattr(drawing, "rows_today", lambda: today)


def no_table(*args):
    raise DataError("no viewpoints here")


def put(name, tmp_path, seed=0, **options):
    """A run of the row, where `reproduce` would have left it."""
    run = small(RECIPES[f"heinsen2019/{name}"].make())
    out = tmp_path / "runs/heinsen2019" / name / str(seed)
    trained = train(run, name=name, seed=seed, options=Options(out=out, progress=False, log_every=1, **options))
    write_result(result_path(tmp_path / "results", f"heinsen2019/{name}", seed), make_result(name, seed, run, trained))
    return out / "checkpoint.safetensors"


def drawn(tmp_path):
    return figures(tmp_path / "results", tmp_path / "runs", None, CPU)


def test_figures_are_drawn_of_what_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(smallnorb, "factors", no_table)
    assert drawn(tmp_path) == {}
    put("smallnorb", tmp_path)
    assert set(drawn(tmp_path)) == {"figure-8"}
    put("smallnorb-r1", tmp_path)
    made = drawn(tmp_path)
    assert (
        set(made) == {"figure-8", "error-by-iterations"}
        and "smallNORB: 1 of 1, 1 of 3" in made["error-by-iterations"][1]
    )


def test_figures_of_poses_are_of_a_finished_checkpoint_and_see_what_its_run_shows(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(smallnorb, "factors", no_table)
    monkeypatch.setattr(
        drawing, "of_viewpoints", lambda model, data, root, augment: seen.append(augment) or {"figure-4": None}
    )
    put("smallnorb", tmp_path, max_steps=2)
    assert drawn(tmp_path) == {}
    put("smallnorb", tmp_path, seed=1)
    assert set(drawn(tmp_path)) == {"figure-8"} and not seen
    put("smallnorb", tmp_path)
    assert set(drawn(tmp_path)) == {"figure-8", "figure-4"} and seen == [drawing.rows_today()["smallnorb"].augment]


def test_figures_of_viewpoints_need_the_table_of_viewpoints(monkeypatch, rng):
    """Two toys under all views: 4, 6, 7 and 9."""
    every = [(0, e, a, 0) for _ in range(2) for e in range(9) for a in range(0, 36, 2)]
    table = smallnorb.Factors(*torch.tensor(every).unbind(1))
    images = torch.randint(0, 256, (len(every), 2, 9, 9), dtype=torch.uint8, generator=rng)
    data = Labelled(images, torch.tensor([0, 4]).repeat_interleave(9 * 18))
    model = replace(RECIPES["smoke/em-capsnet"].make(), data="smallnorb-48").build()
    monkeypatch.setattr(smallnorb, "factors", lambda split, root: table)
    assert set(drawing.of_viewpoints(model, data, None, ())) == {"figure-4", "figure-6", "figure-7", "figure-9"}
    monkeypatch.setattr(smallnorb, "factors", no_table)
    assert drawing.of_viewpoints(model, data, None, ()) == {}


# Errors by view


def test_errors_by_view_come_from_stored_predictions(monkeypatch):
    """Every new view at 180 degrees is mistaken, and half of the familiar ones at 0."""
    table = smallnorb.Factors(
        *torch.tensor([(0, e, a, light) for e in range(9) for a in range(0, 36, 2) for light in range(6)]).unbind(1)
    )
    monkeypatch.setattr(smallnorb, "factors", lambda split, root: table)
    answers = {}
    for split, part, at in (("test", "novel", 18), ("x-familiar", "familiar", 0)):
        azimuths = table.azimuth[part_of(table, "azimuth", part)]
        answers[split] = (azimuths == at).long()
        answers[split][(azimuths == 0).nonzero().flatten()[::2]] = 0
    monkeypatch.setattr(
        drawing, "load", lambda name, *rest: Labelled(None, 0 * answers["test" if name == "x" else name])
    )
    result = {"data": {"name": "x"}, "seed": 0, "predictions": {split: pack(said) for split, said in answers.items()}}
    found = drawing.by_view({"azimuth-cnn": [result], "smallnorb": [result]}, None)
    (errors,) = found["azimuth"]["CNN"]
    assert set(errors) == set(range(0, 36, 2)) and errors[18] == 100 and errors[0] == pytest.approx(100 * 4 / 9)
    assert all(error == 0 for view, error in errors.items() if view not in (0, 18))
    figure, words = errors_by_view(found)
    assert figure.axes[0].lines[-1].get_ydata()[9] == 100 and "azimuth: 1 of CNN" in words
    monkeypatch.setattr(smallnorb, "factors", no_table)
    assert drawing.by_view({"azimuth-cnn": [result]}, None) == {}


# Figure 8


def journal(losses, sd=0.1):
    lines = [
        {"step": 10 * n, "epoch": n, "watched_test_loss": x, "watched_test_loss_sd": sd}
        for n, x in enumerate(losses, 1)
    ]
    return [
        {"step": 5, "loss": 9.0},
        *[line | {"watched_test_error_percent": 100 * line["watched_test_loss"]} for line in lines],
    ]


def test_a_band_is_of_the_epochs_that_all_runs_have():
    found = band([journal([0.4, 0.2, 0.1], 0.1), journal([0.2, 0.1], 0.3)], "watched_test_loss")
    assert (
        found.epochs == [1, 2]
        and found.means.tolist() == pytest.approx([0.3, 0.15])
        and found.spread.tolist() == pytest.approx([0.2] * 2)
    )


def test_the_curves_are_accuracies_of_every_network_named():
    em, cnn = ([journal([0.4, 0.02]), journal([0.4, 0.04])], [journal([0.5])])
    figure, words = validation_curves({"EM": Watched(em, "test", "7 images"), "CNN": Watched(cnn, "test", "7 images")})
    assert "EM 97.00 % after 2 epochs; CNN 50.00 % after 1 epochs" in words and "2 of EM, 1 of CNN" in words
    below = figure.axes[2]
    assert below.lines[-1].get_ydata().tolist() == pytest.approx([60.0, 97.0])


def test_a_run_that_was_not_watched_has_no_curve():
    with pytest.raises(
        ValueError,
        match=r"needs journal lines with 'epoch' and 'watched_test_loss', got \[0\] of them; give the stage a Watch",
    ):
        validation_curves({"EM": Watched([[{"step": 1, "loss": 0.5}]], "test", "7 images")})


# The command line


def run_cli(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["torchcaps", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code or 0


@pytest.mark.slow
def test_explain_draws_test_pictures_and_own_ones_and_refuses_the_rest(tmp_path, monkeypatch, capsys):
    from PIL import Image

    checkpoint = put("smallnorb", tmp_path)
    assert run_cli(monkeypatch, "explain", checkpoint, "--test", "3", "--out", tmp_path / "a", "--device", "cpu") == 0
    assert (tmp_path / "a/places.png").stat().st_size > 1000 and "D^use" in (tmp_path / "a/captions.md").read_text()
    for name, size in (("fits", (20, 30)), ("small", (6, 30))):
        Image.new("L", size, 90).save(tmp_path / f"{name}.png")
    (tmp_path / "text.png").write_text("no picture")
    own = ("explain", checkpoint, "--out", tmp_path / "b", "--device", "cpu")
    assert run_cli(monkeypatch, *own, "--image", tmp_path / "fits.png") == 0 and (tmp_path / "b/places.png").exists()
    refused = {
        (
            "--image",
            tmp_path / "small.png",
        ): "2 convolutions of 3x3 with strides 2, 2 want images of at least 7x7, got 30x6; give larger images",
        (
            "--image",
            tmp_path / "fits.png",
            "--image",
            tmp_path / "fits.png",
        ): "takes images of 1 channels, got 2 files",
        ("--image", tmp_path / "text.png"): "text.png is not an image that Pillow can read",
        ("--test", "1,x"): "--test takes whole numbers with commas",
        ("--test", "256"): "generated-16 has 256 test images, numbered from 0; got 256",
        ("--sentence", "a film"): "is a network for images: give --image or --test instead of --sentence",
    }
    for words, message in refused.items():
        assert run_cli(monkeypatch, *own, *words) == 2
        said = capsys.readouterr().err
        assert message in said and said.startswith("torchcaps: ") and "Traceback" not in said


def test_a_papers_figures_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(smallnorb, "factors", no_table)
    folders = (
        "--results",
        tmp_path / "results",
        "--runs",
        tmp_path / "runs",
        "--out",
        tmp_path / "out",
        "--device",
        "cpu",
    )
    assert (
        run_cli(monkeypatch, "figures", "heinsen2019", *folders) == 2
        and "nothing to draw of heinsen2019" in capsys.readouterr().err
    )
    put("smallnorb", tmp_path)
    assert run_cli(monkeypatch, "figures", "heinsen2019", *folders) == 0
    assert {path.name for path in (tmp_path / "out/heinsen2019").iterdir()} == {"figure-8.png", "captions.md"}


def test_a_run_that_keeps_images_aside_does_not_watch_the_test_part(tmp_path, monkeypatch, capsys):
    run = small(RECIPES["heinsen2019/smallnorb"].make())
    monkeypatch.setitem(RECIPES, "heinsen2019/smallnorb", replace(RECIPES["heinsen2019/smallnorb"], make=lambda: run))
    assert (
        run_cli(monkeypatch, "train", "heinsen2019/smallnorb", "--hold-out", 64, "--out", tmp_path, "--device", "cpu")
        == 0
    )
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines and not any("test" in name for line in lines for name in line)
