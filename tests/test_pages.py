"""The code of README and the docs does what they say: every python block runs, every command exists with its
options.
"""

import re
import shlex
import socket
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from torchcaps import cli
from torchcaps.papers import PAPERS, RECIPES
from torchcaps.papers.pages import pages

HOME = Path(__file__).parent.parent
PAGES = pages(HOME)
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
# by how a page imports it: the package, and the extra that brings it
EXTRAS = {
    r"(from|import) sklearn\b": ("sklearn", "experiments"),
    r"from torchcaps\.data import load$": ("sklearn", "experiments"),
    r"(from|import) transformers\b": ("transformers", "sentences"),
    r"from torchcaps\.pretrained import .*\bhub\b": ("huggingface_hub", "hub"),
}
SHELLS = ("sh", "bash", "console")
STARTERS = ("torchrun", "srun", "python")


class Block(NamedTuple):
    language: str
    code: str
    line: int  # of the page, where the code begins
    follows: bool  # nothing but an empty line is between it and the block before


def blocks_of(text: str) -> list[Block]:
    found, end = [], 0
    for match in BLOCK.finditer(text):
        follows = bool(found) and not text[end : match.start()].strip()
        found.append(Block(match["language"], match["code"], text.count("\n", 0, match.start("code")), follows))
        end = match.end()
    return found


def run(page: Path, names: dict, capsys) -> str:
    """Run the python blocks of a page in order, in one namespace; a text block right behind one is what it prints."""
    said, last = [], ""
    for block in blocks_of(page.read_text()):
        if block.language == "python":
            capsys.readouterr()
            # empty lines in front, so that a traceback names the line of the page
            exec(compile("\n" * block.line + block.code, str(page), "exec"), names)
            last = capsys.readouterr().out
            said.append(last)
        elif block.language == "text" and block.follows:
            assert last.splitlines() == block.code.splitlines(), (
                f"{page.name}, line {block.line}: the block above prints something else"
            )
    return "".join(said)


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """Run a page in an empty folder, without a network."""

    def refuse(*args):
        raise OSError("a page asks the network, which readers may not have")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def given(page: Path, folder: Path) -> dict:
    """Names that a page asks its reader to fill in."""
    if page.name != "heinsen2019-extensions.md":
        return {}
    from transformers_tiny import model, tokenizer

    for made in (model("encoder"), tokenizer("encoder")):
        made.save_pretrained(folder / "source")
    return {"SOURCE": folder / "source", "DATA": folder / "data"}


def learns(said: str) -> None:
    score, shapes = said.splitlines()
    assert float(score) > 0.8
    assert shapes == "(2, 10) (2, 160)"


def tells_its_recipe(said: str) -> None:
    assert "digits/warped 0" in said


def trains_and_tunes(said: str) -> None:
    accuracies = [float(line.split()[-1]) for line in said.splitlines() if re.search(r" \d\.\d+$", line)]
    assert len(accuracies) == 2 and min(accuracies) > 0.9  # a tenth and a half by chance


MORE = {"own-data.md": learns, "pretrained.md": tells_its_recipe, "training-loop.md": trains_and_tunes}
WITH_CODE = [page for page in PAGES if any(block.language == "python" for block in blocks_of(page.read_text()))]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_every_python_block_runs(page, alone, capsys, same_tables):
    text = page.read_text()
    for words, (module, extra) in EXTRAS.items():
        if re.search(f"^{words}", text, re.MULTILINE):
            pytest.importorskip(module, reason=f"pip install 'torchcaps[{extra}]'")
    said = run(page, {"__name__": "__main__"} | given(page, alone), capsys)
    MORE.get(page.name, lambda said: None)(said)


def test_no_python_is_written_where_it_would_not_be_run():
    """In an indented block, or with another name for the language."""
    assert len(WITH_CODE) >= 3
    for page in PAGES:
        odd = re.findall(r"^(?: +```\w+|```(?:py|python3|pycon|Python)|~~~.*)$", page.read_text(), re.MULTILINE)
        assert not odd, f"{page.name}: {odd}"


def test_what_a_page_says_is_printed_is_compared(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 2\n```\n\n```python\nprint(x)\n```\n\n```text\n2\n```\n")
    assert run(page, {}, capsys) == "2\n"
    page.write_text(page.read_text().replace("text\n2", "text\n3"))
    with pytest.raises(AssertionError, match=r"page\.md, line 9"):
        run(page, {}, capsys)


def commands(text: str) -> list[tuple[list[str], bool]]:
    """Words behind `torchcaps`, and whether they stand in a block, where neither an argument nor an option's value may
    be left out.
    """
    found = []
    for block in blocks_of(text):
        if block.language in SHELLS:
            for line in block.code.replace("\\\n", " ").splitlines():
                words = shlex.split(line.removeprefix("$ "), comments=True)
                for part in " ".join("\0" if word in ("&&", "|", ";") else shlex.quote(word) for word in words).split(
                    "\0"
                ):
                    found.append((shlex.split(part), True))
    found += [
        (shlex.split(span), False) for span in re.findall(r"`((?:torchcaps|torchrun) [^`]+)`", BLOCK.sub("", text))
    ]
    # started by another program, as torchrun: behind its -m
    found = [
        (words[words.index("-m") + 1 :] if "-m" in words and words[0] in STARTERS else words, whole)
        for words, whole in found
    ]
    return [(words[1:], whole) for words, whole in found if words[:1] == ["torchcaps"]]


@cache
def whole_command():
    return typer.main.get_command(cli.app)


def understood(words: list[str], whole: bool) -> None:
    """By the command line's own parser, which runs nothing."""
    command = whole_command()
    context = command.make_context("torchcaps", [], resilient_parsing=True)
    while hasattr(command, "get_command"):
        if not words:
            return  # a group alone prints its help
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, f"there is no command torchcaps {name}"
        command = found
    try:
        given = command.make_context(command.name, list(words)).params
    except Exception as error:
        # by its name: typer brings a click of its own, older versions take the other
        if whole or type(error).__name__ not in ("MissingParameter", "BadOptionUsage"):
            raise
        return
    _there_is(command.name, given)


def _there_is(command: str, given: dict) -> None:
    """The recipes or papers that it names; capitals stand for any."""
    argument, known = {
        "train": ("recipe", {*RECIPES}),
        "show": ("recipe", {*RECIPES}),
        "reproduce": ("names", {*PAPERS, *RECIPES}),
        "table": ("paper", {*PAPERS}),
    }.get(command, ("", set()))
    said = given.get(argument) or ()
    for name in [said] if isinstance(said, str) else said:
        if name.isupper():
            continue
        assert name in known, f"there is no {name}"
        missing = [row for row in given.get("row") or () if f"{name}/{row}" not in RECIPES]
        assert not missing, f"there is no row {missing}"


@pytest.mark.parametrize(
    "page",
    [*PAGES, *(HOME / f"{name}.md" for name in ("CONTRIBUTING", "RELEASING", "CHANGELOG"))],
    ids=lambda page: page.name,
)
def test_every_command_exists_with_its_options(page):
    said = commands(page.read_text())
    assert len(said) >= 10 or page.name != "README.md"
    for words, whole in said:
        try:
            understood(words, whole)
        except Exception as error:
            raise AssertionError(f"{page.name}: torchcaps {' '.join(words)}: {error}") from error


@pytest.mark.parametrize(
    "wrong, why",
    {
        "trian digits/writers": "there is no command torchcaps trian",
        "train digits/writers --sede 0": "No such option: --sede",
        "bench opps": "there is no command torchcaps opps",
        "compare": "[Mm]issing parameter: first",
        "verify a.json b.json": "unexpected extra argument",
        "train --seed one": "valid integer",
        "train digits/nothing": "there is no digits/nothing",
        "reproduce sabour2018": "there is no sabour2018",
        "reproduce PAPER sabour2017 sabour2018": "there is no sabour2018",
        "reproduce sabour2017 --row nothing": "there is no row",
    }.items(),
)
def test_a_wrong_command_would_be_noticed(wrong, why):
    text = f"```sh\nls && torchcaps {wrong}  # so\n```\n"
    ((words, whole),) = commands(text)
    with pytest.raises(Exception, match=why):
        understood(words, whole)
    ((words, whole),) = commands(f"In a line: `torchcaps {wrong}`.")
    if wrong == "compare":  # named, not called
        return understood(words, whole)
    with pytest.raises(Exception, match=why):
        understood(words, whole)


def test_commands_that_another_program_starts_are_read_too():
    text = "```sh\nsrun torchrun --nnodes 2 \\\n    -m torchcaps train digits/plain --sede 0\n```\n and `torchrun -m torchcaps tran RECIPE`"
    assert [words for words, _ in commands(text)] == [["train", "digits/plain", "--sede", "0"], ["tran", "RECIPE"]]


def test_every_make_target_that_is_named_exists():
    text = "".join(page.read_text() for page in [*PAGES, HOME / "CONTRIBUTING.md", HOME / "RELEASING.md"])
    targets = set(re.findall(r"^([\w-]+):", (HOME / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([\w-]+)", text, re.MULTILINE)) <= targets
    assert "make test" in (HOME / ".ci" / "run").read_text()
