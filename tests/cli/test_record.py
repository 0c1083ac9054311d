"""`torchcaps bench record`: what it trains, tells, keeps and refuses."""

from pathlib import Path

import pytest
from commands import refuses, run

from torchcaps.cli import record
from torchcaps.papers import RECIPES
from torchcaps.papers.records.rows import BARS
from torchcaps.results.claims import Claim, Recipe
from torchcaps.results.store import read_result
from torchcaps.results.verify import verify
from torchcaps.train import Options, train

pytest.importorskip("scipy", reason="pip install 'torchcaps[experiments]'")
TINY = ("bench", "record", "tiny", "--device", "cpu", "--seeds")


@pytest.fixture
def command(capsys, monkeypatch, tmp_path, no_files_at_hand):
    """Run commands in an empty folder, with a row of records of seconds and a bar that it meets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHCAPS_COMMIT", "0" * 40)
    claim = Claim(table="generated", row="tiny", metric="test.error_percent")
    monkeypatch.setitem(RECIPES, "records/tiny", Recipe("records/tiny", RECIPES["smoke/capsnet"].make, claim))
    monkeypatch.setitem(BARS, "generated", 500.0)
    return lambda *words: run(capsys, monkeypatch, *words)


def test_a_record_is_measured_kept_and_resumed(command, monkeypatch):
    # a killed record: the first seed is done and the third, the second stopped at step 7
    assert command(*TINY, "0,2,5")[0] == 0
    first, second = (Path(f"results/records/tiny/{seed}.json") for seed in (0, 1))
    before = first.read_bytes()
    out = Path("runs/records/tiny/1")
    train(RECIPES["records/tiny"].make(), name="records/tiny", seed=1, options=Options(out=out, max_steps=7))
    code, said, err = command(*TINY, "0,1,2")
    assert code == 0, err
    assert first.read_bytes() == before
    result = read_result(second)
    assert (result["recipe"], result["seed"], result["steps"]) == ("records/tiny", 1, 20)
    assert {"training", "evaluation", "saving"} == {*result["phases"]}  # a CPU compiles nothing
    assert all(
        check.passed is not False for check in verify(result, RECIPES, None, False, "cpu") if check.name != "commit"
    )
    each, other, _, last = said.splitlines()[-4:]
    assert each.startswith("records/tiny seed 0: error ") and "; training " in each and ", evaluation " in other
    # the seed 5 is not of this record
    assert "% over 3 seeds, bar 500 %: p = " in last and last.endswith(", a record (it takes p < 0.05)")
    # nothing is left to train
    monkeypatch.setattr(record, "train_recipe", None)
    assert command(*TINY, "0,1,2")[1].splitlines()[-1] == last


def test_a_run_that_misses_the_bar_is_told_as_such(command, monkeypatch):
    monkeypatch.setitem(BARS, "generated", 0.01)
    code, said, err = command(*TINY, "0,1,2")
    assert code == 0, err
    assert "bar 0.01 %: p = " in said and "no record: misses the bar (" in said and "a record (" not in said


def test_what_cannot_be_measured_is_refused_before_any_training(command, monkeypatch):
    refuses(command("bench", "record", "mnits"), "no recipe 'records/mnits'; did you mean records/mnist")
    refuses(command("bench", "record", "sabour2017/mnist-r3"), "no recipe 'records/sabour2017/mnist-r3'")
    refuses(command(*TINY, "3"), "a record takes at least 3 seeds, got --seeds 3; give more, as --seeds 0,1,2")
    refuses(command(*TINY, "3,3"), "a record takes at least 3 seeds")
    refuses(command(*TINY, "many"), "--seeds takes whole numbers")
    monkeypatch.setattr(record, "find_spec", lambda name: None)
    refuses(command(*TINY, "0,1,2"), "the t-test needs scipy", "pip install 'torchcaps[experiments]'")
    assert not Path("runs").exists()
