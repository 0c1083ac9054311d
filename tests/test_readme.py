"""What README and the docs say is true: examples run, paths exist, tables are those of the result files."""

import re
from pathlib import Path

import pytest

from torchcaps import cli
from torchcaps.papers import RECIPES
from torchcaps.readme import filled, pages
from torchcaps.results import read_result

HOME = Path(__file__).parent.parent
README = (HOME / "README.md").read_text()


def test_the_examples_run():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 1
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize("page", [*pages(HOME), HOME / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_path_exists(page):
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()) if "://" not in link]
    for link in links:
        assert (page.parent / link).exists(), f"{page.name} names {link}"


@pytest.mark.parametrize("page", pages(HOME), ids=lambda page: page.name)
def test_every_table_is_computed_from_the_result_files(page):
    assert filled(page.read_text(), HOME / "results") == page.read_text(), "run `make table`"


def test_a_typed_result_would_be_noticed():
    typed = re.sub(r"\d\.\d+ ± \d\.\d+ \(n=3\)", "0.001 ± 0.001 (n=3)", README)
    assert typed != README
    assert filled(typed, HOME / "results") != typed


def test_every_command_that_is_named_exists():
    names = {command.name or command.callback.__name__ for command in cli.app.registered_commands}
    names |= {group.name for group in cli.app.registered_groups}
    said = set(re.findall(r"`torchcaps (\w+)", README))
    assert len(said) >= 10
    assert said <= names


def test_every_make_target_that_is_named_exists():
    text = README + (HOME / "CONTRIBUTING.md").read_text()
    targets = set(re.findall(r"^([\w-]+):", (HOME / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([\w-]+)", text, re.MULTILINE)) <= targets
    assert "make test" in (HOME / ".ci" / "run").read_text()


def test_every_result_file_belongs_to_a_recipe_and_lies_in_its_place():
    files = sorted((HOME / "results").rglob("*.json"))
    assert len(files) >= 18
    for path in files:
        result = read_result(path)
        assert result["recipe"] in RECIPES
        assert path == HOME / "results" / result["recipe"] / f"{result['seed']}.json"
