"""README as a package index shows it, where a link that is relative to the repository leads nowhere.

Everything else about the package stands in pyproject.toml.
"""

import re
import runpy
import tomllib
from pathlib import Path

from setuptools import setup

HOME = Path(__file__).parent


def with_whole_links(text: str, repository: str, tag: str) -> str:
    """Make the relative links and images of a Markdown text lead to the files of a tag; code stays as it is."""
    places = {r"(!\[[^][]*\]\()": f"{repository}/raw/{tag}/", r"(\]\()": f"{repository}/blob/{tag}/"}
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    for start, place in places.items():  # images first: what is whole by then is no longer relative
        whole = re.compile(rf"{start}(?![a-z]+:|#|/)")
        parts[::2] = [whole.sub(lambda found, place=place: found[1] + place, part) for part in parts[::2]]
    return "".join(parts)


def description(home: Path) -> str:
    """Return README with whole links; as it is while `Repository` of pyproject.toml is still to be filled in."""
    text = (home / "README.md").read_text(encoding="utf-8")
    address = tomllib.loads((home / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
    if address.startswith(runpy.run_path(str(home / "torchcaps/runtime/project.py"))["PLACEHOLDER"]):
        return text
    version = re.search(r'^__version__ = "(.+)"$', (home / "torchcaps/__init__.py").read_text(encoding="utf-8"), re.M)
    return with_whole_links(text, address.rstrip("/"), f"v{version[1]}")


if __name__ == "__main__":
    setup(long_description=description(HOME), long_description_content_type="text/markdown")
