"""The wheel and the source archive: small, complete, and working where there is no checkout.

The default tests build both and look inside. The slow ones install a wheel into a fresh environment: `make test-wheel`.
"""

import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import torchcaps
from torchcaps.pretrained import FOLDER, entries

HOME = Path(__file__).parents[1]
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())
MOST_BYTES = 12_000_000
BUILD = "import sys; from setuptools import build_meta as b; out = sys.argv[1]; b.build_sdist(out); b.build_wheel(out)"
NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
NO_NETWORK |= dict.fromkeys(("no_proxy", "NO_PROXY"), "")
NEEDED = (
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CITATION.cff",
    "constraints.txt",
)
DESCRIBE = "import sys; from setuptools import build_meta as b; print(b.prepare_metadata_for_build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with wheel and source archive, built without the network from a copy of the sources."""
    pytest.importorskip("setuptools")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in NEEDED:
        shutil.copy(HOME / name, source)
    shutil.copytree(HOME / "torchcaps", source / "torchcaps", ignore=shutil.ignore_patterns("__pycache__"))
    (source / "tests").mkdir()
    (source / "tests/test_x.py").touch()  # setuptools would take it along
    subprocess.run([sys.executable, "-c", BUILD, out], cwd=source, check=True, capture_output=True, timeout=250)
    return out


def inside(built: Path) -> dict[str, int]:
    """Files of the wheel with their sizes."""
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        return {one.filename: one.file_size for one in archive.infolist()}


def test_the_wheel_holds_the_package_and_the_small_weights(built):
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"torchcaps-{torchcaps.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size <= MOST_BYTES
    large = {f"torchcaps/pretrained/weights/{one.file}" for one in entries().values() if not one.ships}
    sources = (path for path in (HOME / "torchcaps").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    wanted = {str(path.relative_to(HOME)) for path in sources}
    assert large < wanted
    assert {name for name in inside(built) if ".dist-info/" not in name} == wanted - large


def test_pyproject_leaves_out_just_what_the_registry_calls_large():
    left_out = PROJECT["tool"]["setuptools"]["exclude-package-data"]["torchcaps"]
    assert {Path(name).name for name in left_out} == {one.file for one in entries().values() if not one.ships}


def test_the_metadata_say_who_what_and_where(built):
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        text = archive.read(f"torchcaps-{torchcaps.__version__}.dist-info/METADATA").decode()
    said = Parser().parsestr(text)
    assert said["Author"] == "the torchcaps developers" and said["License-Expression"] == "MIT"
    assert "Typing :: Typed" in said.get_all("Classifier")
    assert dict(line.split(", ") for line in said.get_all("Project-URL")) == PROJECT["project"]["urls"]
    assert {*said.get_all("Provides-Extra")} == {*PROJECT["project"]["optional-dependencies"]}


def test_a_package_index_shows_readme(built):
    """As it is while there is no address."""
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        text = archive.read(f"torchcaps-{torchcaps.__version__}.dist-info/METADATA").decode()
    said = Parser().parsestr(text)
    assert said["Description-Content-Type"] == "text/markdown"
    assert said.get_payload() == runpy.run_path(str(HOME / "setup.py"))["description"](HOME)


def test_with_an_address_no_link_of_the_description_is_relative(tmp_path):
    for name in (*NEEDED, "torchcaps/__init__.py", "torchcaps/runtime/project.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(HOME / name, tmp_path / name)
    project = (tmp_path / "pyproject.toml").read_text()
    filled = re.sub(r'(?m)^Repository = ".*"', 'Repository = "https://host/us/caps/"', project)
    (tmp_path / "pyproject.toml").write_text(filled)
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run([sys.executable, "-c", DESCRIBE, out], cwd=tmp_path, check=True, capture_output=True, timeout=100)
    said = Parser().parsestr(next(out.glob("*/METADATA")).read_text()).get_payload()
    tag = f"v{torchcaps.__version__}"
    assert f"](https://host/us/caps/raw/{tag}/docs/moving.gif)" in said
    assert f"](https://host/us/caps/blob/{tag}/docs/start.md)" in said
    assert not re.findall(r"\]\((?!https://)[^)]*\)", said)
    short = said.replace(f"https://host/us/caps/raw/{tag}/", "").replace(f"https://host/us/caps/blob/{tag}/", "")
    assert short == (HOME / "README.md").read_text()


def test_only_relative_links_outside_code_are_changed():
    whole = runpy.run_path(str(HOME / "setup.py"))["with_whole_links"]
    text = "[![a](b.png)](c.md) [d](#e) [f](https://g) [h](i.md#j)\n```sh\n[k](l)\n```\n"
    assert whole(text, "https://host/r", "v1") == (
        "[![a](https://host/r/raw/v1/b.png)](https://host/r/blob/v1/c.md) [d](#e) [f](https://g) "
        "[h](https://host/r/blob/v1/i.md#j)\n```sh\n[k](l)\n```\n"
    )


def test_the_source_archive_builds_the_wheel_and_no_more(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert path.stat().st_size <= MOST_BYTES
    assert {*NEEDED} <= names and {name for name in inside(built) if ".dist-info/" not in name} <= names
    beside = {name.partition("/")[0] for name in names if "/" in name}
    assert beside == {"torchcaps", "torchcaps.egg-info"}


# The slow part, in the order in which a user would do it: the core alone, then the extras.


class Fresh:
    """An environment with the wheel and without the checkout, and an empty folder to work in."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.wheel, self.cwd, self.bin = wheel, folder / "empty", folder / "venv" / "bin"
        self.cwd.mkdir()
        venv.create(folder / "venv", with_pip=True)
        apart = {"TORCHCAPS_CACHE": str(folder / "cache"), "PIP_CONSTRAINT": str(HOME / "constraints.txt")}
        hidden = ("PYTHONPATH", "TORCHCAPS_DATA", "VIRTUAL_ENV")
        self.env = {key: value for key, value in os.environ.items() if key not in hidden} | apart
        self.install("")

    def install(self, extras: str) -> None:
        self.run("pip", "install", "-q", f"{self.wheel}{extras}", timeout=1500)

    def run(self, program: str, *words: str, timeout: int = 900, code: int = 0, online: bool = True) -> str:
        command = [str(self.bin / program), *words]
        env = self.env if online else self.env | NO_NETWORK
        done = subprocess.run(command, cwd=self.cwd, env=env, text=True, capture_output=True, timeout=timeout)
        assert done.returncode == code, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def core(tmp_path_factory, request) -> Fresh:
    """The wheel alone: that of TORCHCAPS_WHEEL, which `make test-wheel` built, or else one built here."""
    given = os.environ.get("TORCHCAPS_WHEEL")
    wheel = Path(given).resolve() if given else next(request.getfixturevalue("built").glob("*.whl"))
    return Fresh(tmp_path_factory.mktemp("fresh"), wheel)


@pytest.fixture(scope="module")
def full(core) -> Fresh:
    core.install("[experiments,play]")
    return core


@pytest.mark.slow
def test_core_comes_from_the_wheel_with_types(core):
    said = core.run("python", "-c", "import torchcaps; print(torchcaps.__file__)")
    package = Path(said.strip()).parent
    assert package.is_relative_to(core.bin.parent) and (package / "py.typed").exists()
    assert core.run("torchcaps", "--version") == f"torchcaps {torchcaps.__version__}\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, one in entries().items() if one.ships])
def test_core_loads(core, name):
    code = f"import torchcaps; m = torchcaps.load({name!r}); print(sum(p.numel() for p in m.parameters()))"
    assert int(core.run("python", "-c", code)) == entries()[name].n_parameters


@pytest.mark.slow
def test_core_says_where_large_weights_go_and_takes_them_there(core):
    code = "import torchcaps; print(type(torchcaps.load('capsnet-mnist')).__name__)"
    said = core.run("python", "-c", code, code=1, online=False)  # a release has an address to fetch from
    place = Path(core.env["TORCHCAPS_CACHE"]) / "weights"
    assert f"put the missing by hand, plain or .gz, into {place}" in said
    assert "capsnet-multimnist is not in the package" in core.run("torchcaps", "pretrained")
    place.mkdir(parents=True)
    shutil.copy(FOLDER / "capsnet-mnist.safetensors", place)
    assert core.run("python", "-c", code) == "CapsNet\n"
    shutil.rmtree(place)


@pytest.mark.slow
def test_core_prints_tables(core):
    assert "0.25" in core.run("torchcaps", "table", "sabour2017")


@pytest.mark.slow
def test_core_reproduces_quickly(core):
    said = core.run("torchcaps", "reproduce", "sabour2017/mnist-r3-recon", "--quick", "--device", "cpu")
    assert "mnist-r3-recon" in said and (core.cwd / "runs/sabour2017/mnist-r3-recon-quick").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("command, extra", [("demo", "experiments"), ("play", "play")])
def test_core_names_the_extra_that_is_missing(core, command, extra):
    said = core.run("torchcaps", command, code=2)
    assert f"pip install 'torchcaps[{extra}]'" in said and "Traceback" not in said
    assert not (core.cwd / command).exists()


@pytest.mark.slow
def test_with_extras_the_demo_runs(full):
    said = full.run("torchcaps", "demo")
    assert "test accuracy" in said and list(full.cwd.rglob("report.html"))


@pytest.mark.slow
def test_with_extras_the_playground_answers(full):
    command = [str(full.bin / "torchcaps"), "play", "--port", "0"]
    with subprocess.Popen(command, cwd=full.cwd, env=full.env, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = next(word for line in process.stdout for word in line.split() if word.startswith("http://"))
            _playground_answers(address.rstrip("/"))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)


def _playground_answers(address: str) -> None:
    reach = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    with reach(address, timeout=60) as answer:
        assert answer.status == 200 and b"<title>" in answer.read()
    with reach(f"{address}/models.json", timeout=60) as answer:
        listed = answer.read().decode()
    assert '"capsnet-mnist-small"' in listed and '"capsnet-mnist"' not in listed
    asked = json.dumps({"network": "capsnet-mnist-small", "pixels": [0] * 784}).encode()
    request = urllib.request.Request(f"{address}/look", asked, {"Content-Type": "application/json"})
    with reach(request, timeout=60) as answer:
        assert len(json.load(answer)["lengths"][0]) == 10
