"""A command of the command line, given in an empty folder."""

import pytest
from commands import run


@pytest.fixture
def command(capsys, monkeypatch, tmp_path, no_files_at_hand):
    monkeypatch.chdir(tmp_path)
    return lambda *words: run(capsys, monkeypatch, *words)
