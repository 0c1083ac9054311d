"""`torchcaps reproduce`: which rows it runs, what it keeps, and the tables that it prints."""

from pathlib import Path

import pytest
from commands import refuses

from torchcaps import cli


def test_reproduce_keeps_what_is_done_and_prints_the_table(command, monkeypatch):
    code, out, err = command("reproduce", "smoke/capsnet-plain", "--seeds", "0,1", "--device", "cpu")
    assert code == 0, err
    assert sorted(path.name for path in Path("results/smoke/capsnet-plain").iterdir()) == ["0.json", "1.json"]
    code, out, _ = command("reproduce", "smoke/capsnet-plain", "--seeds", "0,1", "--device", "cpu")
    assert out.count("done, results/smoke/capsnet-plain") == 2


def test_every_paper_named_gets_its_table(command, monkeypatch):
    monkeypatch.setattr(cli.reproduction, "kept", lambda recipe, seed, results: True)
    code, out, err = command("reproduce", "smoke/capsnet-plain", "digits/writers", "smoke/baseline", "--seeds", "0")
    assert code == 0, err
    assert out.count(": done, ") == 3
    assert [out.count(f"wrote figures/{paper}/table.md") for paper in ("smoke", "digits")] == [1, 1]


def test_reproduce_takes_several_names(command):
    names = ["smoke/capsnet-plain", "digits/writers", "smoke/baseline", "smoke/capsnet-plain"]
    code, _, err = command("reproduce", *names, "--seeds", "0", "--quick", "--device", "cpu")
    assert code == 0, err
    assert sorted(path.parent.parent.name for path in Path("runs").glob("*/*/0/result.json")) == [
        "baseline-quick", "capsnet-plain-quick", "writers-quick",
    ]  # fmt: skip


@pytest.mark.parametrize("names", [["smoke", "digits"], ["smoke/capsnet"]])
def test_rows_are_of_one_paper(command, names):
    refuses(command("reproduce", *names, "--row", "plain"), "--row takes rows of one paper", "write smoke/ROW")


def test_a_misspelt_paper_is_told_before_its_rows(command):
    refuses(command("reproduce", "sabour2018", "--row", "mnist-r3"), "no recipe 'sabour2018'")


def test_reproduce_quick_runs_a_real_row_without_its_data_and_writes_no_result(command):
    code, _, err = command("reproduce", "digits", "--row", "writers", "--seeds", "0", "--quick", "--device", "cpu")
    assert code == 0, err
    assert not Path("results").exists()
