"""Every example runs to its end and learns."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parent.parent
EXAMPLES = sorted((HOME / "examples").glob("*.py"))


def test_there_are_examples():
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_it_runs_and_learns(path, tmp_path):
    if "from transformers" in path.read_text():
        pytest.importorskip("transformers", reason="pip install 'torchcaps[sentences]'")
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(HOME)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"test accuracy ([\d.]+) %", done.stdout)[1]) > 90
