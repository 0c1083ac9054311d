"""Refuse a release whose tag, version, addresses, citation and changelog disagree: `make release-check TAG=v0.1.0`."""

import re
import sys
import tomllib
from pathlib import Path

from torchcaps.runtime.project import PLACEHOLDER


def complaints(tag: str, home: Path) -> list[str]:
    """List what is left to do before this tag can be released, a line each."""
    version = re.search(r'^__version__ = "(.+)"$', (home / "torchcaps/__init__.py").read_text(), re.M)[1]
    urls = tomllib.loads((home / "pyproject.toml").read_text())["project"]["urls"]
    citation, changelog = (home / "CITATION.cff").read_text(), (home / "CHANGELOG.md").read_text()
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, __version__ of torchcaps/__init__.py is {version}: they must agree")
    for label, url in urls.items():
        if url.startswith(PLACEHOLDER):
            found.append(f"{label} in [project.urls] of pyproject.toml is still {url}: fill it in")
    for path in sorted((home / "docs/notebooks").glob("*.ipynb")):
        if PLACEHOLDER in path.read_text():
            found.append(f"{path.name} of docs/notebooks still installs from {PLACEHOLDER}: run docs/run_notebooks.py")
    if not re.search(rf"^version: {re.escape(version)}$", citation, re.M):
        found.append(f"CITATION.cff does not say `version: {version}`")
    if f"version {version}" not in (home / "README.md").read_text():
        found.append(f"the citation in README.md does not say `version {version}`")
    if not re.search(r"^date-released: \d{4}-\d\d-\d\d$", citation, re.M):
        found.append("CITATION.cff does not say `date-released: YYYY-MM-DD`")
    if not re.search(rf"^## \[{re.escape(version)}\]", changelog, re.M):
        found.append(f"CHANGELOG.md has no heading `## [{version}]`")
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1]:
        sys.exit("release_check: give the tag, as make release-check TAG=v0.1.0")
    if found := complaints(sys.argv[1], Path(__file__).parents[1]):
        sys.exit("\n".join(("not ready to be released:", *found)))
    print(f"{sys.argv[1]}: tag, version, addresses, citation and changelog agree")
