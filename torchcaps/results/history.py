"""Recipes as they were at a commit, read by that commit's own code, once for each commit."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchcaps.data.sources.files import cache_folder
from torchcaps.results.claims import needed_by
from torchcaps.runtime.files import read_hashed, write_hashed

HOME = Path(__file__).parents[2]
# the code of the time says what its recipes were; `to_plain` has had two homes
READ = """
import json
from torchcaps.papers import RECIPES
try:
    from torchcaps.train.plain import to_plain
except ImportError:
    from torchcaps.recipe import to_plain
found = {}
for name, recipe in RECIPES.items():
    if not needed_by(recipe.make):
        found[name] = to_plain(recipe.make())  # what needs arguments is a helper that was taken for a recipe
print(json.dumps(found))
"""
# before it, so that one function says in both places what is no recipe
NEEDED_BY = "from __future__ import annotations\nfrom inspect import Parameter, signature\n"


@dataclass
class History:
    """Recipes by commit. One `git archive` and one process per commit; the answers are cached with their hash."""

    home: Path = HOME  # the repository
    cache: Path | None = None  # default: the cache of data files
    known: dict[str, dict[str, Any]] = field(default_factory=dict)

    def recipes(self, commit: str) -> dict[str, Any]:
        """Return every recipe of a commit as plain data; raise ValueError if it cannot be read."""
        if commit not in self.known:
            path = (self.cache or cache_folder() / "commits") / f"{commit}.json"
            content = read_hashed(path)
            if content is None:
                content = self._read(commit)
                write_hashed(path, content)
            self.known[commit] = json.loads(content)
        return self.known[commit]

    def _read(self, commit: str) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            try:
                archive = _output(["git", "-C", str(self.home), "archive", commit, "torchcaps"])
            except (OSError, subprocess.CalledProcessError) as error:
                hint = "`git fetch --unshallow` completes a shallow clone"
                raise ValueError(f"could not look at {commit[:12]}: {_reason(error)}; {hint}") from error
            program = NEEDED_BY + inspect.getsource(needed_by) + READ
            try:
                subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True, capture_output=True)
                return _output([sys.executable, "-c", program], cwd=folder, env=os.environ | {"PYTHONPATH": folder})
            except (OSError, subprocess.CalledProcessError) as error:
                raise ValueError(f"could not read the recipes of {commit[:12]}: {_reason(error)}") from error


def _output(command: list[str], **options: Any) -> bytes:
    return subprocess.run(command, check=True, capture_output=True, **options).stdout


def _reason(error: Exception) -> str:
    output = getattr(error, "stderr", None)
    return ((output or b"").decode(errors="replace").strip() or str(error)).splitlines()[-1]
