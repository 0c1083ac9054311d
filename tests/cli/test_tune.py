"""Settings tried on held-out data: what `torchcaps tune` trains, writes and refuses."""

from pathlib import Path

import pytest
from commands import refuses, run

from torchcaps.cli.tune import _name, _tell, _varied, _without_test, _words, console
from torchcaps.papers import RECIPES
from torchcaps.results.store import read_result
from torchcaps.results.tuning import NOTE, Line, read_tuning, tuned
from torchcaps.train.vary import vary

ROW = ("tune", "smoke/capsnet", "--device", "cpu")


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *words: run(capsys, monkeypatch, *words)


def test_every_setting_leaves_a_line_and_no_test_set_is_seen(command):
    code, out, err = command(*ROW, "--vary", "learning_rate=1e-3,3e-3", "--seeds", "0", "--hold-out", "64")
    assert code == 0, err
    path = Path("results/smoke/tuning.csv")
    assert path.read_text().startswith(NOTE) and "Not covered by `torchcaps verify`" in NOTE
    lines = read_tuning(path)
    names = ["capsnet,learning_rate=1e-3,hold_out=64", "capsnet,learning_rate=3e-3,hold_out=64"]
    assert [line.run for line in lines if line.metric == "validation.error_percent"] == names
    assert {line.metric for line in lines} == {"validation.error_percent", "validation_ema.error_percent"}
    assert all(
        line.row == "capsnet" and line.changes.endswith(" hold_out=64") and len(line.run_sha256) == 12 for line in lines
    )
    assert len({line.run_sha256 for line in lines}) == 2
    stored = read_result(Path("runs/tune/smoke") / names[0] / "0" / "result.json")
    assert stored["run"]["hold_out"] == 64 and stored["run"]["stages"][0]["learning_rate"] == 1e-3
    assert set(stored["metrics"]) == {"validation", "validation_ema"}
    assert all(line.changes in out and line.metric in out for line in lines)
    # the same again trains nothing; another seed is added to the line
    before = Path("runs/tune/smoke", names[0], "0", "result.json").stat().st_mtime_ns
    code, _, err = command(*ROW, "--vary", "learning_rate=1e-3", "--seeds", "0,1", "--hold-out", "64")
    assert code == 0, err
    assert Path("runs/tune/smoke", names[0], "0", "result.json").stat().st_mtime_ns == before
    assert set(tuned(Path("results"), "smoke", names[0], "validation.error_percent")) == {0, 1}
    assert len(read_tuning(path)) == len(lines)
    # fewer held-out images are another setting, with a line of its own
    assert command(*ROW, "--vary", "learning_rate=1e-3", "--seeds", "0", "--hold-out", "32")[0] == 0
    assert len(read_tuning(path)) == len(lines) + 2


def test_long_settings_leave_room_for_their_numbers(capsys, monkeypatch):
    monkeypatch.setattr(console, "_width", 60)
    changes = "augment=(StandardiseFirst(),Crop(32),Light(brightness=64,contrast=0.2),Mixup(0.5)) hold_out=200"
    lines = [
        Line(run="a", row="a", changes=changes, metric=metric, by_seed=seeds, commit="c", run_sha256="d")
        for metric, seeds in (
            ("validation.error_percent", {0: 1.0, 1: 2.0}),
            ("validation_ema.error_percent", {0: 3.0}),
        )
    ]
    _tell(lines)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 60
    assert "1.5 ± 0.71" in out and all(line.metric in out for line in lines)


@pytest.mark.slow
def test_workers_train_apart_and_the_lines_are_the_same(command):
    code, _, err = command(*ROW, "--vary", "n_iters=1,2", "--seeds", "0", "--hold-out", "64", "--workers", "2")
    assert code == 0, err
    first = Path("results/smoke/tuning.csv").read_text()
    Path("results/smoke/tuning.csv").unlink()
    assert command(*ROW, "--vary", "n_iters=1,2", "--seeds", "0", "--hold-out", "64")[0] == 0
    assert Path("results/smoke/tuning.csv").read_text() == first


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--vary", "learning_rate=1"), ("--hold-out N training images, or --on",)),
        (("--vary", "learning_rate=1", "--on", "mnist"), ("mnist has an official test part",)),
        (("--vary", "learnin_rate=1", "--hold-out", "64"), ("no field 'learnin_rate'; did you mean", "learning_rate")),
        (("--vary", "hold_out=0", "--hold-out", "64"), ("--vary cannot change hold_out", "give --hold-out")),
        (("--vary", "learning_rate", "--hold-out", "64"), ("--vary takes FIELD=VALUE,VALUE",)),
        (
            ("--vary", "learning_rate=abc", "--hold-out", "64"),
            ("learning_rate is 0.003 here; wanted a float, got 'abc'",),
        ),
        (("--vary", "schedule=Cosine(warm=1)", "--hold-out", "64"), ("Cosine(warm=1): ", "warm")),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_any_training(command, words, parts):
    refuses(command(*ROW, *words), *parts)
    assert not Path("runs").exists()


def test_held_out_digits_may_be_judged_warped():
    """Names and lines tell the view, so that it is another setting; the test set stays unseen."""
    recipe = RECIPES["jeong2019/like-k50"]
    base = _without_test(recipe, 5000, None, "warped")
    assert base.parts() == ("validation_warped",) and base.tests == ()
    assert _name(recipe, {"code_weight": "1e-6"}, base) == "like-k50,code_weight=1e-6,hold_out=5000,views=warped"
    assert _words(5000, None, "warped", None) == ["--hold-out", "5000", "--views", "warped"]
    with pytest.raises(ValueError, match="--vary cannot change views: no test set may be seen; give --views"):
        _varied(base, {"views": "()"})


def test_a_field_is_found_by_its_name_or_its_path():
    base = RECIPES["smoke/experts"].make()
    assert vary(base, {"stages.1.task.sparse": 2.0}).stages[1].task.sparse == 2.0
    assert vary(base, {"sparse": 2.0}) == vary(base, {"stages.1.task.sparse": 2.0})
    assert vary(base, {"n_plain": 2}).model_args["n_plain"] == 2
    with pytest.raises(ValueError, match=r"'learning_rate' may be stages.0.learning_rate, stages.1.learning_rate"):
        vary(base, {"learning_rate": 1.0})
