"""Code in docstrings, which the pages of the reference show, runs too."""

import ast
import re
from functools import cache
from pathlib import Path
from textwrap import dedent

import pytest

import torchcaps

HOME = Path(torchcaps.__file__).parent
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


def codes_of(source: str) -> dict[str, str]:
    """By the name of the class or function, "" for the file: the lines of its docstring that are indented behind an empty one."""
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
    """What a docstring takes for granted: its own class, and what a reader has."""
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
    assert set(codes()) == set(EXTRAS) | FORMULAS, "code in a docstring that no test runs"


@pytest.mark.parametrize("name", EXTRAS)
def test_code_of_a_docstring_runs(name, tmp_path, monkeypatch):
    extra, module = EXTRAS[name]
    pytest.importorskip(module, reason=f"pip install 'torchcaps[{extra}]'")
    monkeypatch.chdir(tmp_path)
    exec(compile(codes()[name], name, "exec"), given(name))
