"""Data sets by name: what is found, what is read, what is refused, and what a fingerprint sees."""

import ast
import sys
from pathlib import Path

import pytest
import torch

import torchcaps.data
from torchcaps.data import DataError, Labelled, class_names, fingerprint, get, info, load

pytestmark = pytest.mark.usefixtures("no_files_at_hand")


def test_a_misspelt_name_brings_the_near_ones():
    with pytest.raises(ValueError, match="no data set 'fashionmnist'; did you mean fashion-mnist"):
        load("fashionmnist", "train")
    with pytest.raises(ValueError, match="`torchcaps data ls` lists them"):
        info("???")


def test_only_train_and_test_can_be_loaded():
    with pytest.raises(ValueError, match=r"'train' or 'test', got 'validation'.*hold_out"):
        load("generated", "validation")


def test_loading_what_is_missing_says_how_to_get_it():
    with pytest.raises(DataError, match="torchcaps data get mnist"):
        load("mnist", "test")


def test_what_is_built_in_needs_no_fetching():
    said = []
    assert get("generated", progress=said.append) == [] and said == ["generated: built in, nothing to fetch"]


def test_importing_the_package_imports_no_extra():
    """Imports at the top of a module need no extras; sklearn and the like are imported where they are used."""
    allowed = {*sys.stdlib_module_names, "torch", "numpy", "einops", "jaxtyping", "safetensors", "torchcaps"}
    modules = list(Path(torchcaps.data.__file__).parent.rglob("*.py"))
    assert len(modules) >= 30
    for module in modules:
        for node in ast.parse(module.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= allowed, f"{module.name} imports {names}"


def labelled(n: int = 100) -> Labelled:
    return Labelled(torch.arange(n * 4).remainder(251).to(torch.uint8).reshape(n, 1, 2, 2), torch.arange(n) % 10)


def test_fingerprint_sees_shape_pixels_labels_and_order():
    data = labelled()
    changed = data.images.clone()
    changed[-1, 0, 1, 1] += 1
    others = [
        Labelled(data.images.reshape(100, 1, 1, 4), data.labels),
        Labelled(changed, data.labels),
        Labelled(data.images, data.labels.roll(1)),
        Labelled(data.images.flip(0), data.labels.flip(0)),
    ]
    assert len({fingerprint(data), *map(fingerprint, others)}) == 5
    assert fingerprint(data) == fingerprint(Labelled(data.images.clone(), data.labels.clone()))
    assert fingerprint(data) == fingerprint(Labelled(data.images.to(memory_format=torch.channels_last), data.labels))


def test_classes_have_names_or_numbers():
    assert class_names("smallnorb-48-folds") == ("animal", "human", "airplane", "truck", "car")
    assert class_names("sst2-mpnet-dev") == ("negative", "positive")
    assert class_names("cifar10")[-1] == "truck" and class_names("digits") == tuple("0123456789")
