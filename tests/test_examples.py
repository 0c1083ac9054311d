"""Every example runs to its end and learns."""

import re
import runpy
from pathlib import Path

import pytest

HOME = Path(__file__).parent.parent
EXAMPLES = sorted((HOME / "examples").glob("*.py"))


def test_there_are_examples():
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_it_runs_and_learns(path, tmp_path, monkeypatch, capsys):
    """In this process: a new one would import everything again, which takes longer than the example."""
    if "from transformers" in path.read_text():
        pytest.importorskip("transformers", reason="pip install 'torchcaps[sentences]'")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert float(re.search(r"test accuracy ([\d.]+) %", capsys.readouterr().out)[1]) > 90
