"""Addresses of the project.

They stand in pyproject.toml, `[project.urls]`, and nowhere else. Installing stores them, and this module reads them.
"""

from importlib.metadata import PackageNotFoundError, metadata

PLACEHOLDER = "https://example.org/"  # in place of an address that a release has yet to fill in


def address(label: str) -> str | None:
    """Return the address with that label, or None if no release has filled it in."""
    try:
        lines = metadata("torchcaps").get_all("Project-URL") or []
    except PackageNotFoundError:  # run from a checkout that was never installed
        return None
    found = dict(line.split(", ", 1) for line in lines)
    given = found.get(label, PLACEHOLDER)
    return None if given.startswith(PLACEHOLDER) else given.rstrip("/")
