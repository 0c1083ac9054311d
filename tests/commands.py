"""One command of the command line, called in this process, and where others may meet."""

import socket
import sys
from functools import cache

from typer.main import get_command

from torchcaps import cli

once = cache(get_command)  # reads the signatures of all commands, which takes longer than most of them


def run(capsys, monkeypatch, *words: str, width: int = 300) -> tuple[int, str, str]:
    """Exit code, output and errors of one command, in this process."""
    monkeypatch.setattr(sys, "argv", ["torchcaps", *words])
    monkeypatch.setattr(cli.console, "_width", width)
    monkeypatch.setattr("typer.main.get_command", once)
    code = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code or 0
    said = capsys.readouterr()
    return code, said.out, said.err


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def refuses(answer: tuple[int, str, str], *parts: str) -> None:
    """One clear line at the end: exit code 2, the tool's name, every part, no traceback."""
    code, _, err = answer
    assert code == 2, err
    assert "torchcaps: " in err
    err = err[err.index("torchcaps: ") :]
    assert "Traceback" not in err
    for part in parts:
        assert part in err, f"{part!r} is not in {err!r}"
