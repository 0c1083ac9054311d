"""Every package that an installation brings is pinned to one version."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

requirements = pytest.importorskip("packaging.requirements", reason="comes with pytest")
HOME = Path(__file__).parents[1]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(file: str) -> dict[str, str]:
    lines = [line.strip() for line in (HOME / file).read_text().splitlines()]
    found = [re.fullmatch(r"([\w.-]+)==([\w.]+)", line) for line in lines if line and not line.startswith("#")]
    assert all(found), f"{file} has a line that pins no version"
    return {plain(line[1]): line[2] for line in found}


def installed() -> dict[str, str]:
    """Everything that torchcaps and its extras need here, and what that needs in turn, with the versions found."""
    project = tomllib.loads((HOME / "pyproject.toml").read_text())
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    wanted += [each for extra in project["project"]["optional-dependencies"].values() for each in extra]
    found, left = {}, [(requirements.Requirement(each), "") for each in wanted]
    while left:
        need, extra = left.pop()
        name = plain(need.name)
        if name in found or (need.marker and not need.marker.evaluate({"extra": extra})):
            continue
        try:
            package = distribution(need.name)
        except PackageNotFoundError:
            continue  # an extra that is not installed
        found[name] = package.version.split("+")[0]
        for each in map(requirements.Requirement, package.requires or []):
            # what torch itself pins, the parts of CUDA, need not be pinned again
            if not (name == "torch" and "==" in str(each.specifier)):
                left += [(each, one) for one in ("", *need.extras)]
    return found


def test_whatever_is_installed_is_pinned():
    pins, found = pinned("constraints.txt"), installed()
    if found["torch"] != pins["torch"]:
        pytest.skip(f"torch {found['torch']} was installed without constraints.txt")
    assert len(found) > 20
    assert not sorted(set(found) - set(pins)), "pin them in constraints.txt"
    others = {name: version for name, version in found.items() if version != pins[name]}
    assert not others, "constraints.txt has other versions; install with it"


def test_the_kernels_beside_it_are_pinned_too():
    assert set(pinned("constraints-kernels.txt")) == {"triton", "numpy"}
