"""Files around the code: workflows that could run, a citation that can be read, versions that agree.

No workflow has run where these tests run. They check what can be checked without a server.
"""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import torchcaps
from torchcaps.pretrained import entries

yaml = pytest.importorskip("yaml", reason="PyYAML, of the extra dev")
HOME = Path(__file__).parents[1]
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
WORKFLOWS = {path.name: path.read_text() for path in sorted((HOME / ".github/workflows").glob("*.yml"))}
TARGETS = {*re.findall(r"^([a-z][a-z-]*):", (HOME / "Makefile").read_text(), re.M)}
SECRETS = {"GITHUB_TOKEN"}  # GitHub makes it for each run; RELEASING.md says that there is no other
ACTIONS = {
    "actions/checkout@v5",
    "actions/setup-python@v6",
    "actions/upload-artifact@v4",
    "actions/download-artifact@v4",
    "actions/attest-build-provenance@v3",
    "pypa/gh-action-pypi-publish@release/v1",
}
PINS = dict(re.findall(r"^([\w.-]+)==(.+)$", (HOME / "constraints.txt").read_text(), re.M))


def pythons() -> list[str]:
    """Versions of Python that the classifiers promise."""
    found = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line) for line in PROJECT["classifiers"]]
    return [line[1] for line in found if line]


def read(text: str) -> dict:
    """Read a YAML file. A bare `on` is the word, not true, which YAML 1.1 would make of it."""
    return {"on" if key is True else key: value for key, value in yaml.safe_load(text).items()}


def complaints(text: str) -> list[str]:
    """List what is wrong with a workflow, a line each."""
    flow, found = read(text), []
    missing = [key for key in ("name", "on", "permissions", "jobs") if not flow.get(key)]
    if missing:
        return [f"misses {', '.join(missing)}"]
    for name, job in flow["jobs"].items():
        found += [f"{name}: misses {key}" for key in ("runs-on", "steps", "timeout-minutes") if key not in job]
        if job.get("needs", name) not in flow["jobs"]:
            found.append(f"{name}: needs {job['needs']}, which is no job")
        versions = job.get("strategy", {}).get("matrix", {}).get("python-version", [])
        for step in job.get("steps", []):
            if ("uses" in step) == ("run" in step):
                found.append(f"{name}: a step wants one of uses and run, got {step}")
            if step.get("uses", "") and step["uses"] not in ACTIONS:
                found.append(f"{name}: {step['uses']} is not one of the known actions")
            given = step.get("with", {}).get("python-version", "")
            versions = [*versions, given] if re.match(r"\d", str(given)) else versions
        found += [f"{name}: Python {one!r} is not one of {pythons()}" for one in versions if one not in pythons()]
    found += [f"make {one}: no such target" for one in re.findall(r"\bmake ([a-z-]+)", text) if one not in TARGETS]
    found += [f"secret {one} is not documented" for one in re.findall(r"secrets\.(\w+)", text) if one not in SECRETS]
    return found


def test_every_workflow_is_there():
    assert set(WORKFLOWS) == {"docs.yml", "release.yml", "slow.yml", "tests.yml", "wheel.yml"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_can_run(name):
    assert complaints(WORKFLOWS[name]) == []


@pytest.mark.parametrize(
    "old, new, told",
    [
        ("permissions:", "permission:", "misses permissions"),
        ("make test ", "make tests ", "make tests: no such target"),
        ('"3.14"', "3.14", "Python 3.14 is not one of"),
        ('"3.14"', '"3.10"', "Python '3.10' is not one of"),
        ("actions/checkout@v5", "actions/checkout@main", "not one of the known actions"),
        ("runs-on: ${{", "run-on: ${{", "test: misses runs-on"),
        ("run: make check", "ran: make check", "wants one of uses and run"),
        ("TORCH_INDEX: https", "KEY: ${{ secrets.PASSWORD }} # https", "secret PASSWORD is not documented"),
    ],
)
def test_a_broken_workflow_is_noticed(old, new, told):
    text = WORKFLOWS["tests.yml"]
    assert old in text
    assert told in "\n".join(complaints(text.replace(old, new)))


def test_tests_run_on_every_python_that_is_promised():
    assert read(WORKFLOWS["tests.yml"])["jobs"]["test"]["strategy"]["matrix"]["python-version"] == pythons()
    assert f">={pythons()[0]}" == PROJECT["requires-python"]


def test_a_release_builds_everything_of_one_commit_and_attests_it():
    flow = read(WORKFLOWS["release.yml"])
    build, attest, publish = (flow["jobs"][name] for name in ("build", "attest", "publish"))
    said = [step.get("run") or step["uses"] for step in build["steps"]]
    order = ["release-check", "make table", "make docs", "make test-wheel", "make release-files", "upload"]
    places = [next(n for n, line in enumerate(said) if part in line) for part in order]
    assert places == sorted(places)
    assert flow["permissions"] == {"contents": "read"} and "permissions" not in build  # the build cannot sign
    assert attest["permissions"] == {"id-token": "write", "attestations": "write"}
    assert [step["uses"].partition("@")[0] for step in attest["steps"]] == [
        "actions/download-artifact",
        "actions/attest-build-provenance",
    ]
    assert (attest["needs"], publish["needs"]) == ("build", "attest")


def test_no_command_of_a_workflow_holds_a_name_that_others_choose():
    """GitHub pastes it into the shell; the name of a tag or branch can be a command."""
    commands = [
        step["run"]
        for text in WORKFLOWS.values()
        for job in read(text)["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    assert not [line for line in commands if re.search(r"github\.(ref|head_ref|base_ref|event\b)", line)]
    assert read(WORKFLOWS["release.yml"])["env"]["TAG"] == "${{ github.ref_name }}"


def test_the_release_check_gets_the_tag_as_it_is():
    """Through the environment: make and the shell would run what stands in it."""
    done = subprocess.run(
        ["make", "-n", "-o", ".venv/done", "release-check"],
        cwd=HOME,
        env=os.environ | {"TAG": "v$(id)"},
        text=True,
        capture_output=True,
        check=True,
    )
    assert '"$TAG"' in done.stdout and "id" not in done.stdout


def test_forms_of_issues_have_what_github_wants():
    forms = [path for path in (HOME / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"]
    assert len(forms) == 3
    for path in forms:
        form = yaml.safe_load(path.read_text())
        assert form["name"] and form["description"]
        ids = [field["id"] for field in form["body"]]
        assert len(ids) == len({*ids}) and all(field["attributes"]["label"] for field in form["body"])
        assert {field["type"] for field in form["body"]} <= {"textarea", "input", "dropdown", "checkboxes"}


def test_the_citation_has_its_required_fields():
    said = yaml.safe_load((HOME / "CITATION.cff").read_text())
    assert {"authors", "cff-version", "message", "title"} <= {*said}
    assert said["cff-version"] == "1.2.0" and said["type"] == "software"
    assert said["authors"] == PROJECT["authors"] and said["license"] == PROJECT["license"]
    assert said["version"] == torchcaps.__version__


def test_read_the_docs_makes_the_same_pages():
    said = yaml.safe_load((HOME / ".readthedocs.yaml").read_text())
    assert said["version"] == 2 and said["build"]["tools"]["python"] in pythons()
    assert said["build"]["commands"][0].startswith("make docs ")


def test_hooks_and_build_tools_have_the_versions_of_the_constraints():
    hooks = yaml.safe_load((HOME / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {one for hook in hooks for one in hook["additional_dependencies"]} == {f"ruff=={PINS['ruff']}"}
    assert {"build", "pyproject-hooks", "packaging", "setuptools"} <= {*PINS}


def load_file(name: str):
    """Import a file of the repository that is in no package."""
    place = importlib.util.spec_from_file_location(Path(name).stem, HOME / name)
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


def test_torch_hub_takes_the_checkout():
    model = torch.hub.load(str(HOME), "capsnet_digits", source="local", verbose=False)
    assert type(model).__name__ == "CapsNet" and model.about["name"] == "digits/warped"
    other = torch.hub.load(str(HOME), "load", "capsnet-digits", n_classes=5, source="local")
    assert other.labels == tuple("01234")


def test_torch_hub_lists_every_pretrained_model():
    found = load_file("hubconf.py")
    callables = {name for name, value in vars(found).items() if callable(value) and not name.startswith("_")}
    assert callables == {"load"} | {name.replace("-", "_") for name in entries()}
    assert all(getattr(found, name).__doc__ for name in callables)


@pytest.mark.slow
def test_torch_hub_asks_for_what_loading_needs(tmp_path):
    """Only modules from outside count: what this process has of its own is there anyway."""
    wanted = load_file("hubconf.py").dependencies
    code = "import sys, torch; before = {*sys.modules}; import torchcaps; torchcaps.load('capsnet-digits'); " + (
        "print(*{name.partition('.')[0] for name in {*sys.modules} - before} - {*sys.stdlib_module_names})"
    )
    env = os.environ | {"PYTHONPATH": str(HOME)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, text=True, capture_output=True, check=True
    )
    known = {re.split(r"[<>=]", line)[0] for line in PROJECT["dependencies"]}
    assert {*done.stdout.split()} & known <= {*wanted} <= known


def unfilled(home: Path, placeholder: str) -> None:
    """Write files as they are before a release: addresses to fill in, no date, other versions."""
    text = (HOME / "pyproject.toml").read_text()
    text = re.sub(r'(?m)^(\w+ = )"https://[^"]*"', rf'\1"{placeholder}torchcaps"', text)
    assert placeholder in text
    citation = re.sub(r"(?m)^date-released:.*\n", "", (HOME / "CITATION.cff").read_text())
    cell = f"source = torchcaps @ git+{placeholder}torchcaps"
    texts = {"pyproject.toml": text, "CITATION.cff": citation, "docs/notebooks/first.ipynb": cell}
    texts |= {name: (HOME / name).read_text() for name in ("CHANGELOG.md", "README.md")}
    texts["torchcaps/__init__.py"] = '__version__ = "9.8.7"\n'
    for name, content in texts.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(content)


def test_a_release_is_refused_until_everything_agrees(tmp_path):
    module = load_file(".github/release_check.py")
    unfilled(tmp_path, module.PLACEHOLDER)
    told = "\n".join(module.complaints("v9.8.6", tmp_path))
    wanted = ["the tag is v9.8.6", "Weights in [project.urls]", "`version: 9.8.7`", "`version 9.8.7`", "date-released"]
    assert all(part in told for part in [*wanted, "`## [9.8.7]`", "first.ipynb"])
    for name in ("pyproject.toml", "docs/notebooks/first.ipynb"):
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text.replace(module.PLACEHOLDER, "https://caps.example.com/"))
    (tmp_path / "CITATION.cff").write_text("version: 9.8.7\ndate-released: 2026-01-02\n")
    (tmp_path / "CHANGELOG.md").write_text("## [9.8.7] - 2026-01-02\n")
    (tmp_path / "README.md").write_text("version 9.8.7")
    assert module.complaints("v9.8.7", tmp_path) == []
