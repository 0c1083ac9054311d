"""Lists at 80 columns: one line per row, filters, JSON for scripts, and our numbers where no result file is."""

import json
import re
import tomllib
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import ClassVar

import pytest
from commands import refuses, run

import torchcaps
from torchcaps.cli.columns import apart, cut, lines_of
from torchcaps.cli.listing import recipes_of_paper
from torchcaps.data import DATASETS
from torchcaps.layers import ROUTINGS
from torchcaps.papers import PAPERS, RECIPES
from torchcaps.pretrained import entries, file_of
from torchcaps.results import means
from torchcaps.results.statistics import UNCHECKED
from torchcaps.results.store import read_result, write_result

HOME = Path(__file__).parents[2]
ROW = "sabour2017/mnist-r3-recon"


@pytest.fixture
def command(capsys, monkeypatch, tmp_path, no_files_at_hand):
    """In an empty folder, far from any result file, at 80 columns."""
    monkeypatch.chdir(tmp_path)

    def said(*words: str) -> str:
        code, out, err = run(capsys, monkeypatch, *words, width=80)
        assert code == 0, err
        return out

    said.answer = lambda *words: run(capsys, monkeypatch, *words, width=80)
    return said


LISTS = {
    "ls": len(PAPERS),
    "table": len(PAPERS),
    "ls --all": len(RECIPES),
    "ls --routings": len(ROUTINGS),
    "ls mnist --run": sum("mnist" in name for name in means.shipped()),
    "data ls": len({spec.source for spec in DATASETS.values()}),
    "data ls --all": len(DATASETS),
    "pretrained": len(entries()),
    **{f"table {paper}": sum(name.startswith(f"{paper}/") and bool(r.claim) for name, r in RECIPES.items()) for paper in PAPERS},
}  # fmt: skip


@pytest.mark.parametrize("words", LISTS)
def test_every_list_has_one_line_per_row_within_80_columns(command, words):
    lines = command(*words.split()).splitlines()
    assert all(len(line) <= 80 for line in lines), max(lines, key=len)
    names = {name.partition("/")[2] for name in RECIPES} | {*PAPERS} | {*DATASETS} | {*entries()} | {*ROUTINGS}
    names |= {spec.source for spec in DATASETS.values()}
    assert sum(line.partition("  ")[0] in names and "  " in line for line in lines) == LISTS[words]


def test_a_group_is_called_a_table_only_by_its_number(command):
    heads = [line for line in command("table", "depth").splitlines() if line.endswith(", test.error_percent")]
    assert heads == [f"{name}, test.error_percent" for name in ("MNIST", "50 classes", "64x64")]
    assert "table 1, test.error_percent" in command("table", "sabour2017")


def test_a_text_is_cut_between_words():
    assert cut("one two three", 13) == "one two three"
    assert cut("one two three", 12) == "one two…"
    assert cut("one, two three", 6) == "one…"
    assert cut("unbreakable", 6) == "unbre…"
    assert cut("CapsNet, 3 iterations", 20) == "CapsNet, 3…"
    assert cut("Routing by expectation-maximization", 34) == "Routing by expectation…"
    assert lines_of(("a", "b"), [("whole-name", "some words that go on")], 40)[1] == "whole-name  some words that go on"
    assert lines_of(("a", "b"), [("whole-name", "some words that go on")], 32) == [
        "a           b",
        "whole-name  some words that go…",
    ]
    assert lines_of(("a", "b"), [("whole-name", "some words that go on")], 20) == ["a", "whole-name"]


def test_a_cut_text_shows_what_tells_it_from_the_others():
    alike = ["CapsNet, 3 iterations", "CapsNet, 3 iterations, decoder", "CapsNet, 3 iterations, decoder, wide"]
    assert apart(alike, 20) == ["CapsNet…3 iterations", "CapsNet…decoder", "CapsNet…wide"]
    assert apart(alike, 21)[0] == alike[0] and apart(alike, 60) == alike
    # the same last part after another difference
    assert apart(["Net, one, red, a", "Net, one, red", "Net, two, red, a", "Net, two, red"], 12)[1::2] == [
        "…one, red",
        "…two, red",
    ]
    assert apart(["alone, and long", "another text"], 8) == ["alone…", "another…"]


def test_rows_that_would_read_alike_keep_the_words_in_which_they_differ(command):
    """Every table and list of every paper: no two different descriptions are cut to the same."""
    lines = {line.split()[0]: line for line in command("ls", "sabour2017", "--printed").splitlines() if line}
    assert lines["mnist-r3-recon"].endswith("3…reconstruction") and lines["mnist-r3"].endswith("3 iterations")
    lines = {line.split()[0]: line for line in command("table", "sabour2017").splitlines() if line}
    assert "CapsNet, placed" in lines["like-anywhere-r3-end"] and "CNN, placed" in lines["like-anywhere-cnn-end"]
    for paper in PAPERS:
        groups = {}
        for recipe in recipes_of_paper(paper).values():
            if recipe.claim:
                groups.setdefault(recipe.claim.table, set()).add(recipe.claim.row)
        for texts in map(sorted, groups.values()):
            for width in (21, 26, 37):
                shown = apart(texts, width)
                assert len(set(shown)) == len(texts), (paper, width, shown)
                assert max(map(len, shown)) <= width


def test_no_two_printed_rows_of_a_paper_read_alike(command):
    for paper in ("sabour2017", "jeong2019"):
        lines = command("ls", paper, "--printed").splitlines()[1:]
        at = lines[0].index("what it is")
        shown = [line[at:] for line in lines[1:] if line]
        assert len(shown) == len(set(shown)) >= 10
        kept = [text.rstrip("…") for text in shown]
        assert not [pair for pair in permutations(kept, 2) if pair[0].startswith(pair[1]) and "…" in pair[1]]


def test_every_routing_has_a_line_with_its_loss_and_paper(command, monkeypatch):
    lines = command("ls", "--routings").splitlines()
    assert [line.split()[0] for line in lines[1 : len(ROUTINGS) + 1]] == list(ROUTINGS)
    found = {one["name"]: one for one in json.loads(command("ls", "--routings", "--json"))}
    assert found["em"]["loss"] == "cross-entropy" and found["em"]["paper"] == "Heinsen 2019"
    assert found["max-min"]["paper"] == "Zhao 2019" and found["max-min"]["options"]["couplings"] == "max-min"
    assert len({one["what"] for one in found.values()}) == len(ROUTINGS)
    assert all(one["what"] for one in found.values()), found
    refuses(command.answer("ls", "mnist", "--routings"), "--routings lists routings", "give it alone")

    @dataclass(frozen=True)
    class Later:
        """Sum of everything (Doe 2031, section 2); nothing else."""

        loss: ClassVar[str] = "margin"
        n: int = 1

    monkeypatch.setitem(ROUTINGS, "later", Later(n=2))
    line = next(line for line in command("ls", "--routings").splitlines() if line.startswith("later"))
    assert re.split(r"  +", line) == ["later", "margin", "Doe 2031", "Sum of everything, n 2"]


def test_ls_filters_by_paper_by_words_and_by_what_was_printed(command):
    def listed(*words: str) -> set[str]:
        return {row["recipe"] for row in json.loads(command("ls", *words, "--json"))}

    of_sabour = {name for name in RECIPES if name.startswith("sabour2017/")}
    assert listed() == {*RECIPES} and listed("sabour2017") == of_sabour
    printed = {name for name in of_sabour if RECIPES[name].claim and RECIPES[name].claim.printed is not None}
    assert listed("sabour2017", "--printed") == printed < of_sabour
    assert listed("svm", "mnist") == {name for name in RECIPES if "svm" in name and "mnist" in name}
    assert listed("digits", "--run") == {"digits/stratified", "digits/writers"}
    refuses(command.answer("ls", "sabour2017/mnist-r3-recom"), "no recipe", "did you mean sabour2017/mnist-r3-recon")


def test_ls_of_one_recipe_tells_device_minutes_and_our_number(command):
    facts = dict(line.split(maxsplit=1) for line in command("ls", ROW).splitlines())
    results = [read_result(path) for path in (HOME / "results" / ROW).glob("*.json")]
    mean = sum(result["metrics"]["test"]["error_percent"] for result in results) / len(results)
    assert facts["ours"].startswith(f"{mean:.3f} ± ") and facts["ours"].endswith(f"(n={len(results)})")
    assert facts["device"] == results[0]["device"]
    minutes = sum(result["seconds"] for result in results) / len(results) / 60
    assert facts["minutes"] == f"{minutes:.2g} a seed"
    assert "0.25 ± 0.005, mean of 3" in facts["printed"]


def test_ls_of_one_recipe_marks_what_cannot_be_recomputed(command):
    lines = command("ls", "sabour2017/multimnist-4-r3").splitlines()
    marked = {line.split()[0] for line in lines if line.endswith(UNCHECKED)}
    assert marked == {"segmentation_iou"} and any(line.startswith("half_credit_error_percent") for line in lines)
    assert "\n".join(lines).count(f"{UNCHECKED} Not recomputable") == 1 and max(map(len, lines)) <= 80
    assert UNCHECKED not in command("ls", "digits/writers")


@pytest.mark.parametrize("paper", ["sabour2017", "digits"])
def test_a_table_far_from_the_checkout_has_the_numbers_of_its_result_files(command, paper):
    """Averaged weights count too; `sabour2017` has an ensemble."""
    assert " ± " in command("table", paper, "--markdown")
    for more in ([], ["--ema"]):
        far = command("table", paper, "--markdown", *more)
        assert far == command("table", paper, "--markdown", *more, "--results", str(HOME / "results"))


def test_own_result_files_win_and_a_named_folder_is_the_only_source(command):
    result = read_result(HOME / f"results/{ROW}/0.json")
    result["metrics"]["test"]["error_percent"] = 9.0
    write_result(Path(f"results/{ROW}/0.json"), result)
    rows = {row["recipe"]: row for row in json.loads(command("table", "sabour2017", "--json"))}
    assert (rows[ROW]["mean"], rows[ROW]["shipped"]) == (9.0, False)
    assert rows["sabour2017/mnist-r3"]["shipped"] and rows["sabour2017/mnist-r3"]["n"] == 3
    assert command("table", "sabour2017", "--results", "nowhere").count("not run yet") == len(rows) > 20


def test_what_is_printed_as_json_can_be_read(command):
    assert json.loads(command("ls", ROW, "--json"))[0]["printed"] == 0.25
    here = {one["name"] for one in json.loads(command("data", "ls", "--here", "--json"))}
    assert "generated-16" in here and "mnist" not in here
    assert [one["name"] for one in json.loads(command("pretrained", "--json"))] == list(entries())
    files = [str(HOME / f"results/digits/writers/{seed}.json") for seed in (0, 1)]
    (pair,) = json.loads(command("compare", *files, "--json"))
    assert pair["part"] == "test" and pair["n"] == 360 and pair["difference"] != 0


@pytest.mark.parametrize("name", entries())
def test_a_card_is_printed_in_full_within_80_columns(command, name):
    said = command("pretrained", name)
    assert max(map(len, said.splitlines())) <= 80 and "|" not in said
    card = file_of(name).with_suffix(".md").read_text().removeprefix("# ").replace("```python", "").replace("```", "")
    assert said.split() == [word for word in card.split() if word.strip("|-")]


def test_data_ls_shows_sets_by_words_or_one_in_full(command):
    assert "missing: 4 files" in command("data", "ls", "mnist")
    listed = [line.split()[0] for line in command("data", "ls", "norb", "48", "toys").splitlines()[1:]]
    assert listed == ["smallnorb-48-toys"]
    refuses(command.answer("data", "ls", "nix"), "no data set has nix in its name")


def test_the_version_is_told(command):
    assert command("--version") == f"torchcaps {torchcaps.__version__}\n"


def test_the_means_are_part_of_the_package():
    inside = tomllib.loads((HOME / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["torchcaps"]
    assert str(means.PATH.relative_to(HOME / "torchcaps")) in inside and means.PATH.exists()
