"""The demonstration from end to end, made seconds long."""

import sys
from dataclasses import replace

import pytest
from rich.console import Console

from torchcaps.cli import demo as demo_module
from torchcaps.figures.report import SECTIONS
from torchcaps.train import Interrupted
from torchcaps.train.step import TrainingStep


@pytest.fixture
def seconds_long(monkeypatch):
    short = {
        name: replace(demo_module.RECIPES[name], make=lambda make=demo_module.RECIPES[name].make: make().quick(steps=8))
        for name in demo_module.SPLITS
    }
    monkeypatch.setattr(demo_module, "RECIPES", short)
    monkeypatch.setattr("torchcaps.figures.canvas.DPI", 40)


def test_it_prints_both_accuracies_and_writes_the_whole_report(seconds_long, tmp_path):
    console = Console(record=True, width=200)
    report = demo_module.demo(tmp_path / "out", 0, console)
    said = console.export_text()
    assert said.count("test accuracy, ") == 2
    assert f"report: {report.resolve()}" in said
    page = report.read_text()
    for name in ("learning_curve", "confusion_matrix", "reconstructions", "dimension_sweeps", "couplings"):
        assert f"<h2>{SECTIONS[name].heading}</h2>" in page
    assert page.count("data:image/png;base64,") >= 5


def test_it_notices_a_missing_matplotlib_before_it_trains(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(demo_module, "train", lambda *args, **kwargs: pytest.fail("it trained"))
    with pytest.raises(ValueError, match="figures need matplotlib"):
        demo_module.demo(tmp_path, 0, Console(quiet=True))


def test_stopped_it_goes_on_with_the_same_command(seconds_long, tmp_path, monkeypatch):
    """Stopped in the second network: the first is not trained again, the second goes on from its checkpoint."""
    original, steps = demo_module.train, []

    def stopped_at_three(run, *, name, seed, options):
        options.max_steps = 3 if name == "digits/writers" else None
        trained = original(run, name=name, seed=seed, options=options)
        if trained.stopped_early:
            raise Interrupted("stopped at step 3 and saved", 2)
        return trained

    def counted(self, once=TrainingStep.once):
        steps.append(1)
        once(self)

    # drawing takes seconds, and is no matter here
    monkeypatch.setattr(demo_module, "all_figures", lambda *args, **kwargs: {})
    monkeypatch.setattr(demo_module, "train", stopped_at_three)
    with pytest.raises(Interrupted, match="the same command goes on from there"):
        demo_module.demo(tmp_path, 0, Console(quiet=True))
    monkeypatch.setattr(demo_module, "train", original)
    monkeypatch.setattr(TrainingStep, "once", counted)
    demo_module.demo(tmp_path, 0, Console(quiet=True))
    assert len(steps) == 5  # of 8, and of the second network alone
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]  # the next one trains anew
