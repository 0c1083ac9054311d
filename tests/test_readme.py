"""What README and the docs say is true: examples run, paths exist, tables are those of the result files."""

import os
import re
from pathlib import Path

import pytest
from test_imports import LINE as ORDER

from torchcaps import cli
from torchcaps.papers import RECIPES
from torchcaps.readme import filled, pages
from torchcaps.recipe import from_plain
from torchcaps.results import read_result
from torchcaps.verify import check_metrics, check_recipe

HOME = Path(__file__).parent.parent
README = (HOME / "README.md").read_text()


def test_the_examples_run():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 1
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_the_example_for_scikit_learn_runs_and_learns(capsys):
    pytest.importorskip("sklearn", reason="pip install 'torchcaps[experiments]'")
    (block,) = re.findall(r"```python\n(.*?)```", (HOME / "docs" / "own-data.md").read_text(), re.DOTALL)
    exec(compile(block, "own-data.md", "exec"), {})
    score, shapes = capsys.readouterr().out.splitlines()
    assert float(score) > 0.8
    assert shapes == "(2, 10) (2, 160)"


def test_the_examples_of_trained_models_run(capsys, monkeypatch, tmp_path):
    pytest.importorskip("huggingface_hub", reason="pip install 'torchcaps[hub]'")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (HOME / "docs" / "pretrained.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "pretrained.md", "exec"), {})
    assert "digits/warped 0" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "folder").iterdir()} == {"model.safetensors", "config.json", "README.md"}


@pytest.mark.parametrize("page", [*pages(HOME), HOME / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_path_exists(page):
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()) if "://" not in link]
    for link in links:
        assert (page.parent / link).exists(), f"{page.name} names {link}"


@pytest.mark.parametrize("page", pages(HOME), ids=lambda page: page.name)
def test_every_table_is_computed_from_the_result_files(page):
    assert filled(page.read_text(), HOME / "results") == page.read_text(), "run `make table`"


def test_a_table_of_named_rows_has_those_in_that_order():
    marked = "<!-- table sabour2017 only like-r3-stopped mnist-cnn -->\n<!-- end -->"
    lines = filled(marked, HOME / "results").splitlines()
    assert ["like-r3-stopped" in lines[3], "mnist-cnn" in lines[4], len(lines)] == [True, True, 6]
    with pytest.raises(ValueError, match="no recipe 'sabour2017/mnist-cn'; did you mean sabour2017/mnist-cnn"):
        filled(marked.replace("mnist-cnn", "mnist-cn"), HOME / "results")


def test_a_typed_result_would_be_noticed():
    typed = re.sub(r"\d\.\d+ ± \d\.\d+ \(n=3\)", "0.001 ± 0.001 (n=3)", README)
    assert typed != README
    assert filled(typed, HOME / "results") != typed


def test_every_command_that_is_named_exists():
    names = {command.name or command.callback.__name__ for command in cli.app.registered_commands}
    names |= {group.name for group in cli.app.registered_groups}
    said = set(re.findall(r"`torchcaps ([\w-]+)", README))
    assert len(said) >= 10
    assert said <= names


def test_every_make_target_that_is_named_exists():
    text = README + (HOME / "CONTRIBUTING.md").read_text()
    targets = set(re.findall(r"^([\w-]+):", (HOME / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([\w-]+)", text, re.MULTILINE)) <= targets
    assert "make test" in (HOME / ".ci" / "run").read_text()


CLAIMED = [path for path in sorted((HOME / "results").rglob("*.json")) if RECIPES[read_result(path)["recipe"]].claim]


@pytest.mark.parametrize("path", CLAIMED, ids=lambda path: str(path.relative_to(HOME / "results")))
def test_every_number_in_a_table_is_of_todays_recipe_and_of_committed_code(path):
    result = read_result(path)
    assert check_recipe(result, RECIPES).passed
    assert not result["dirty"]
    assert re.fullmatch(r"[0-9a-f]{40}", result["commit"])


@pytest.mark.parametrize("path", [path for path in CLAIMED if path.parts[-3] == "digits"], ids=lambda path: "-".join(path.parts[-2:]))
def test_every_metric_on_the_digits_recomputes(path):
    result = read_result(path)
    checks = check_metrics(result, from_plain(result["run"]), None)
    assert checks
    assert all(check.passed for check in checks), checks


@pytest.mark.data
@pytest.mark.skipif("TORCHCAPS_DATA" not in os.environ, reason="TORCHCAPS_DATA names no folder")
def test_every_metric_on_mnist_recomputes():
    paths = [path for path in CLAIMED if path.parts[-3] == "sabour2017"]
    assert len(paths) >= 12
    for path in paths:
        result = read_result(path)
        assert all(check.passed for check in check_metrics(result, from_plain(result["run"]), None)), path


def test_the_import_order_is_told_as_it_is_enforced():
    told = re.search(r"Imports point back along `([^`]+)`", (HOME / "CONTRIBUTING.md").read_text())[1]
    assert told.split() == [word for name in ORDER for word in (name, "→")][:-1]


def test_every_result_file_belongs_to_a_recipe_and_lies_in_its_place():
    files = sorted((HOME / "results").rglob("*.json"))
    assert len(files) >= 18
    for path in files:
        result = read_result(path)
        assert result["recipe"] in RECIPES
        assert path == HOME / "results" / result["recipe"] / f"{result['seed']}.json"
