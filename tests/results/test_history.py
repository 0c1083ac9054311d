"""A result is compared with the code and the recipe of its commit."""

import shutil
import subprocess
from pathlib import Path

import pytest

import torchcaps
from torchcaps.data import DataError
from torchcaps.papers import RECIPES
from torchcaps.results.history import History
from torchcaps.results.store import result_path, write_result
from torchcaps.results.verify import (
    check_commit,
    verify_all,
)

NAME = "smoke/capsnet-plain"
# has recipes, one of them with arguments to spare, and a helper that was taken for one, as torchcaps had, without the seconds that the whole of torchcaps
# takes to import
OLD = {
    "papers.py": "class R:\n    make = staticmethod(lambda: RUN)\nclass H:\n    make = staticmethod(lambda which: which)\n"
    "class V:\n    make = staticmethod(lambda *rest, also=1, **more: RUN)\n"
    "RECIPES = {'smoke/helper': H(), 'smoke/any': V(), NAME: R()}\n",
    "recipe.py": "to_plain = dict\n",
    "__init__.py": "",
}


def committed(home: Path) -> str:
    """All files of the folder, in a repository of their own."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    git = ["git", "-C", str(home), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.slow
def test_verify_asks_the_code_of_the_commit(result, tmp_path):
    shutil.copytree(
        Path(torchcaps.__file__).parent, tmp_path / "torchcaps", ignore=shutil.ignore_patterns("__pycache__")
    )
    history = History(tmp_path, tmp_path / "cache")
    assert check_commit(result | {"dirty": False, "commit": committed(tmp_path)}, history).passed


@pytest.fixture
def history(result, tmp_path) -> tuple[History, str]:
    """A repository of one commit with one recipe."""
    (tmp_path / "torchcaps").mkdir()
    for name, text in OLD.items():
        (tmp_path / "torchcaps" / name).write_text(text.replace("NAME", repr(NAME)).replace("RUN", repr(result["run"])))
    return History(tmp_path, tmp_path / "cache"), committed(tmp_path)


def test_verify_looks_at_the_recipe_as_it_was_at_the_commit(result, history):
    history, head = history
    clean = result | {"dirty": False, "commit": head}
    assert check_commit(clean, history).passed
    assert history.recipes(head).keys() == {"smoke/any", NAME}
    assert (
        "stored, then: data: mnist, generated-16"
        in check_commit(clean | {"run": result["run"] | {"data": "mnist"}}, history).text
    )
    assert "changes not committed" in check_commit(clean | {"dirty": True}, history).text
    missing = check_commit(clean | {"commit": "0" * 40}, history).text
    assert "could not look at 000000000000" in missing and "`git fetch --unshallow`" in missing
    unnamed = check_commit(clean | {"recipe": "smoke/none"}, history).text
    assert "has no recipe 'smoke/none'" in unnamed and "fetch" not in unnamed  # the commit is there, the recipe is not
    assert "names no commit, but 'unknown'" in check_commit(clean | {"commit": "unknown"}, history).text


@pytest.mark.slow
def test_a_commit_is_read_once_and_a_damaged_cache_is_made_anew(result, history, monkeypatch):
    history, head = history
    clean = result | {"dirty": False, "commit": head}
    assert check_commit(clean, history).passed
    (kept,) = history.cache.iterdir()
    again = History(Path("nowhere"), history.cache)
    assert check_commit(clean, again).passed  # without a repository: from the cache
    kept.write_bytes(kept.read_bytes().replace(b"generated-16", b"generated-17"))
    assert check_commit(clean, History(history.home, history.cache)).passed
    assert b"generated-16" in kept.read_bytes()


@pytest.mark.slow
def test_verify_all_counts_bad_files_and_those_without_data(result, history, tmp_path, monkeypatch):
    history, head = history
    folder = tmp_path / "results"
    clean = result | {"dirty": False, "commit": head, "evaluated_by": {}, "begun_by": []}
    write_result(result_path(folder, NAME, 0), clean)
    whole = verify_all(folder, RECIPES, None, history)
    assert (whole.n, whole.bad, whole.without_data) == (1, [], {})
    write_result(result_path(folder, NAME, 1), clean | {"commit": "0" * 40})
    forged = clean["metrics"] | {"test": {"error_percent": 1.5}}
    write_result(result_path(folder, NAME, 2), clean | {"metrics": forged})
    found = verify_all(folder, RECIPES, None, history)
    assert [(path.name, check.name) for path, check in found.bad] == [
        ("1.json", "commit"), ("1.json", "place"), ("2.json", "test.error_percent"), ("2.json", "place"),
    ]  # fmt: skip
    assert "3 result files, 2 bad" in found.text()
    row = result_path(folder, NAME, 0).parent
    assert verify_all(folder, RECIPES, None, history, row).bad == found.bad
    with pytest.raises(ValueError, match=r"there is no result file below .*other"):
        verify_all(folder, RECIPES, None, history, folder / "other")
    with pytest.raises(ValueError, match=r"nowhere is no part of .*; give --results"):
        verify_all(folder, RECIPES, None, history, tmp_path / "nowhere")
    result_path(folder, NAME, 3).write_text('{"recipe": 7}')
    malformed = verify_all(folder, RECIPES, None, history)
    assert [(path.name, check.name) for path, check in malformed.bad][-1:] == [("3.json", "file")]
    result_path(folder, NAME, 3).unlink()

    def missing(*args):
        raise DataError("not here")

    monkeypatch.setattr("torchcaps.results.verify.Parts.__call__", missing)
    found = verify_all(folder, RECIPES, None, history)
    assert {path.name for path, check in found.bad if check.name != "place"} == {"1.json"}
    assert found.without_data == {"generated-16": 3}
    assert "3 on generated-16" in found.text()
