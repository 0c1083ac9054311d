"""Reading order is import order: a module imports only what stands before it in the line."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "torchcaps"
# floors from the ground up; rooms of one floor do not import each other
FLOORS = [
    {"ops", "runtime"}, {"layers"}, {"models"}, {"data"}, {"analysis"}, {"train"}, {"probes"}, {"results"}, {"figures"}, {"bench"},
    {"papers"}, {"pretrained", "integrations"}, {"play"}, {"cli"}, {"__main__"},
]  # fmt: skip
SOURCES = {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def imported(source: str, package: str) -> set[str]:
    """Every module that the source imports, at the top or inside a function, written out in full."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            parent = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join(parent + (node.module or "").split(".") * bool(node.module))
            # `from torchcaps import data` names a part, `from torchcaps.data import load` names it already
            found |= {f"{module}.{name.name}" for name in node.names} if module == "torchcaps" else {module}
        elif (
            isinstance(node, ast.Call)
            and "import" in ast.unparse(node.func)
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            found.add(str(node.args[0].value))  # importlib.import_module("torchcaps.x")
    return found


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def complaints(path: Path, source: str) -> list[str]:
    """List the forbidden imports of this file."""
    part, package = part_of(path), ".".join(["torchcaps", *path.relative_to(PACKAGE).parent.parts])
    if part == "__init__":
        return []  # the front door shows everything public
    floor = next((number for number, rooms in enumerate(FLOORS) if part in rooms), None)
    if floor is None:
        return [f"{part} has no place in the floors of tests/test_imports.py: give it one"]
    allowed = {part, "__version__"}.union(*FLOORS[:floor])
    modules = [name.split(".") for name in imported(source, package)]
    targets = {name[1] if len(name) > 1 else "__init__" for name in modules if name[0] == "torchcaps"}
    return [
        f"{path.relative_to(PACKAGE)} imports {target}, which stands behind it" for target in sorted(targets - allowed)
    ]


def test_at_the_top_stand_rooms_alone():
    rooms = set().union(*FLOORS) - {"__main__"}
    there = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert there == rooms | {"__init__.py", "__main__.py", "py.typed"}
    assert {part_of(path) for path in SOURCES} == rooms | {"__init__", "__main__"}


def test_imports_only_point_back():
    assert [each for path, source in SOURCES.items() for each in complaints(path, source)] == []


def test_only_kernels_import_triton():
    """Their files say so by name."""
    told = {
        path
        for path, source in SOURCES.items()
        if any(name.split(".")[0] == "triton" for name in imported(source, "torchcaps"))
    }
    assert told and all(path.name.startswith("triton_") for path in told)


@pytest.mark.parametrize(
    ("file", "source", "target"),
    [
        ("ops/dynamic/reference.py", "from torchcaps.layers import Capsules", "layers"),
        ("ops/dynamic/reference.py", "def f():\n    import torchcaps.layers.capsules", "layers"),
        ("ops/dynamic/reference.py", "from torchcaps import models", "models"),
        ("ops/dynamic/reference.py", "from torchcaps import CapsNet", "CapsNet"),
        ("ops/dynamic/reference.py", "import torchcaps", "__init__"),
        ("ops/squash.py", "from ..layers import Capsules", "layers"),
        ("ops/squash.py", "from .. import layers", "layers"),
        ("data/sets/mnist.py", "if True:\n    from torchcaps.train import train", "train"),
        ("analysis/metrics.py", "from .. import train", "train"),
        ("runtime/files.py", "from torchcaps.ops import squash", "ops"),
        ("train/loop.py", "from importlib import import_module\nimport_module('torchcaps.papers.smoke')", "papers"),
    ],
)
def test_an_import_that_points_forward_is_seen(file, source, target):
    assert complaints(PACKAGE / file, source) == [f"{file} imports {target}, which stands behind it"]


def test_what_is_allowed_is_not_complained_of():
    assert (
        complaints(PACKAGE / "layers" / "routed.py", "from torchcaps.ops import squash\nfrom .capsules import Capsules")
        == []
    )
    assert (
        complaints(
            PACKAGE / "bench" / "ops.py",
            "from torchcaps.ops.testing import compare_routing\nfrom torchcaps import __version__",
        )
        == []
    )
    assert complaints(PACKAGE / "utils.py", "") == [
        "utils has no place in the floors of tests/test_imports.py: give it one"
    ]


def test_importing_the_package_needs_nothing_optional_and_does_nothing():
    """In a process of its own: no plotting, no scikit-learn, and neither the random state nor a setting of torch is
    touched.
    """
    script = """
import sys, torch
before = torch.random.get_rng_state(), torch.get_default_dtype(), torch.get_num_threads()
import torchcaps, torchcaps.figures.report
assert torch.equal(before[0], torch.random.get_rng_state()) and before[1:] == (torch.get_default_dtype(), torch.get_num_threads())
print(*sorted({"sklearn", "matplotlib", "PIL", "tensorboard", "triton", "pytest"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=PACKAGE.parent, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr


def test_everything_public_is_there():
    import torchcaps

    assert len(torchcaps.__all__) >= 13
    assert all(hasattr(torchcaps, name) for name in torchcaps.__all__)


def test_every_layer_can_be_imported_from_the_package():
    from torch import nn

    import torchcaps
    from torchcaps import layers

    parts = {name: getattr(layers, name) for name in layers.__all__}
    found = {name for name, part in parts.items() if isinstance(part, type) and issubclass(part, nn.Module)}
    assert len(found) >= 11 and found <= {*torchcaps.__all__}
