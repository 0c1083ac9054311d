"""Every example runs to its end, and trained as long as it says it learns."""

import re
from pathlib import Path

import pytest

HOME = Path(__file__).parent.parent
# started by tests/runtime/test_team.py and tests/test_page_commands.py
STARTERS = {"ray_train.py", "slurm.sh"}
EXAMPLES = [path for path in sorted((HOME / "examples").glob("*.py")) if path.name not in STARTERS]


def test_there_are_examples():
    assert len(EXAMPLES) == 4
    assert {path.name for path in EXAMPLES} | STARTERS == {
        path.name for path in (HOME / "examples").iterdir() if path.is_file()
    }


def accuracy(path: Path, capsys, n_rounds: int | None = None) -> float:
    """In this process: a new one would import everything again, which takes longer than the example."""
    code = path.read_text()
    if "from transformers" in code:
        pytest.importorskip("transformers", reason="pip install 'torchcaps[sentences]'")
    if n_rounds:
        code, cut = re.subn(r"^(for (?:epoch|step) in range)\(\d+\)", rf"\1({n_rounds})", code, flags=re.MULTILINE)
        assert cut == 1, "one loop trains"
    exec(compile(code, str(path), "exec"), {"__name__": "__main__"})
    return float(re.search(r"test accuracy ([\d.]+) %", capsys.readouterr().out)[1])


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] if path.name == "stack_capsules.py" else []) for path in EXAMPLES],
    ids=lambda path: path.name,
)
def test_it_runs_to_its_end(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert 0 <= accuracy(path, capsys, n_rounds=1) <= 100


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_it_learns(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert accuracy(path, capsys) > 90
