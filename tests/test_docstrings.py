"""Code in docstrings, which the pages of the reference show, runs too; docstrings and code keep the style."""

import ast
import inspect
import re
import sys
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import pytest

import torchcaps
from torchcaps.runtime.metrics_log import MetricsLog

HOME = Path(torchcaps.__file__).parent
DOCS = HOME.parent / "docs"
sys.path.append(str(DOCS))

from sphinx_parts.public_names import marked, offered, told_by  # noqa: E402

# by file and name: the extra that it wants and the package that this brings
EXTRAS = {
    "integrations/sklearn.py CapsNetClassifier": ("experiments", "sklearn"),
    "pretrained/hub.py": ("hub", "huggingface_hub"),
    "models/capsule_head.py CapsuleHead": ("sentences", "transformers"),
}
FORMULAS = {
    "ops/inverted.py",
    "ops/lazy.py",
    "ops/self_attention.py",
    "ops/self_routing.py",
}  # of a paper, in its letters
OPENERS = re.compile(r"(?:\A|(?<=[.!?:]\s)|(?<=\n\n))\s*(?:- )?((?:Of|That|Those|Whose|What)\b[^\n]{,40})")


def codes_of(source: str) -> dict[str, str]:
    """By the name of the class or function, "" for the file: the lines of its docstring that are indented behind an
    empty one.
    """
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            parts = re.findall(r"\n\n((?: {4}.*(?:\n+|$))+)", ast.get_docstring(node) or "")
            if parts:
                found[getattr(node, "name", "")] = "\n".join(map(dedent, parts))
    return found


@cache
def codes() -> dict[str, str]:
    return {
        f"{path.relative_to(HOME).as_posix()} {name}".strip(): code
        for path in sorted(HOME.rglob("*.py"))
        for name, code in codes_of(path.read_text()).items()
    }


def given(name: str) -> dict:
    """Names that a docstring takes for granted: its own class, and a reader's data."""
    if name == "integrations/sklearn.py CapsNetClassifier":
        from torchcaps.integrations.sklearn import CapsNetClassifier

        # as many epochs as it has by default take half a minute
        return {"CapsNetClassifier": lambda **settings: CapsNetClassifier(**settings, epochs=1)}
    if name == "pretrained/hub.py":
        return {"torchcaps": torchcaps}
    import torch
    from transformers import AutoModel, AutoTokenizer
    from transformers_tiny import model, tokenizer

    for made in (model("encoder"), tokenizer("encoder")):
        made.save_pretrained("encoder")
    texts, labels = ["a great film", "a slow one"], torch.tensor([1, 0])
    names = {
        "AutoModel": AutoModel,
        "AutoTokenizer": AutoTokenizer,
        "CapsuleHead": torchcaps.CapsuleHead,
        "torch": torch,
    }
    return names | {"name": "encoder", "texts": texts, "labels": labels}


def test_all_of_them_are_known():
    source = (
        '"""One.\n\n    x = 1\n\n    y = 2\n\nTwo:\n- a\n  b\n"""\ndef f():\n    """F.\n\n        f()\n\n    Two."""'
    )
    assert codes_of(source) == {"": "x = 1\n\ny = 2\n\n", "f": "f()\n\n"}
    assert set(EXTRAS) | FORMULAS <= set(codes())
    assert len(examples()) >= 140
    assert all(name.partition(" ")[2] for name in examples()), "code in the docstring of a file: run it, or list it"


@cache
def examples() -> dict[str, str]:
    """Examples that need no more than PyTorch, by file and class."""
    return {name: code for name, code in codes().items() if name not in EXTRAS and name not in FORMULAS}


def run_example(code: str, names: dict) -> None:
    """Run it; a line that is an expression must give what the comment behind it says."""
    lines = code.splitlines()
    for statement in ast.parse(code).body:
        expected = lines[statement.end_lineno - 1].partition("  # ")[2]
        if isinstance(statement, ast.Expr) and expected:
            found = str(eval(compile(ast.Expression(statement.value), "example", "eval"), names))
            assert found == expected, f"{ast.unparse(statement)} is {found}, and the comment says {expected}"
        else:
            exec(compile(ast.Module([statement], []), "example", "exec"), names)


@pytest.mark.parametrize("name", examples())
def test_an_example_gives_what_its_comments_say(name, tmp_path, monkeypatch):
    """After `import torch` and all names of the module whose page of the reference shows it, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    file, _, kind = name.partition(" ")
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    thing = getattr(import_module(f"torchcaps.{module}"), kind)
    page, _, _ = told_by(marked(DOCS / "api"))[id(thing)].rpartition(".")
    if page == "torchcaps.data":
        pytest.importorskip("sklearn", reason="pip install 'torchcaps[experiments]'")
    names: dict = {}
    exec(f"import torch\nfrom {page} import *", names)
    run_example(examples()[name], names)


def test_a_wrong_example_would_be_noticed():
    run_example("x = 2  # so\nx + 1  # 3", {})
    with pytest.raises(AssertionError, match="x is 2, and the comment says 3"):
        run_example("x = 2\nx  # 3", {})


def without_example(kinds: Iterable[type]) -> list[str]:
    """List the classes whose own docstring shows none, by file and name."""
    named = (f"{Path(inspect.getfile(kind)).relative_to(HOME).as_posix()} {kind.__qualname__}" for kind in kinds)
    return [name for name in named if name not in codes()]


def test_every_class_on_the_pages_of_names_has_an_example():
    modules = [import_module(name) for name in marked(DOCS / "api")]
    things = [getattr(module, each) for module in modules for each in offered(module)]
    kinds = {thing for thing in things if inspect.isclass(thing)}
    assert len(kinds) >= 140
    missing = without_example(kinds)
    assert not missing, f"show how one is made or got, below `Example:` in the docstring of {', '.join(missing)}"


def test_a_class_without_an_example_is_found():
    assert without_example([torchcaps.Capsules, MetricsLog]) == ["runtime/metrics_log.py MetricsLog"]


@pytest.mark.parametrize("name", EXTRAS)
def test_code_of_a_docstring_runs(name, tmp_path, monkeypatch):
    extra, module = EXTRAS[name]
    pytest.importorskip(module, reason=f"pip install 'torchcaps[{extra}]'")
    monkeypatch.chdir(tmp_path)
    exec(compile(codes()[name], name, "exec"), given(name))


def is_boolean(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("bool", "isinstance", "any", "all")
    return isinstance(node, ast.Compare | ast.BoolOp) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    )


def is_sequence(node: ast.expr) -> bool:
    text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return text or isinstance(node, ast.JoinedStr | ast.Tuple | ast.List)


def faults_of(source: str) -> list[str]:
    """Line and fault: a docstring's sentence with a bad opening, a sequence times a boolean, a conditional as
    statement.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            sentences = OPENERS.findall(ast.get_docstring(node) or "")
            found += [f"{getattr(node, 'lineno', 1)}: {sentence}" for sentence in sentences]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.IfExp):
            found.append(f"{node.lineno}: a conditional expression as a statement")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            sides = (node.left, node.right)
            if any(map(is_boolean, sides)) and any(map(is_sequence, sides)):
                found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize(
    "source",
    [
        '"""Of a tile."""',
        '"""One.\n\nWhat follows\n"""',
        'class A:\n    """A set. That is all."""',
        'def f():\n    """F:\n    - Those of a tile."""',
        'name = "-quick" * (a == b)',
        "names = not_first and (not a) * [1]",
        "f() if a else None",
    ],
)
def test_a_fault_of_style_is_found(source):
    assert len(faults_of(source)) == 1
    assert not faults_of('"""Tiles of what is seen. One: that. Offers."""\nx = (a == b) * c\ny = f() if a else "-" * 3')


def test_code_and_docstrings_keep_the_style():
    files = sorted(HOME.rglob("*.py"))
    faults = [f"{path.relative_to(HOME)}:{fault}" for path in files for fault in faults_of(path.read_text())]
    assert not faults, "\n".join(faults)
