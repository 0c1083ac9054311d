"""MNIST and Fashion-MNIST: the format, the table of sets, and, where the files are at hand, the pictures themselves."""

import ast
import hashlib
import os
import struct
import sys
from pathlib import Path

import pytest
import torch

import torchcaps.data
from torchcaps.data import DATASETS, DataError, Labelled, fingerprint, get, hold_out, info, load, status
from torchcaps.data.sets import mnist
from torchcaps.data.sources.files import FileSet, Package

REAL_FILES = os.environ.get("TORCHCAPS_DATA")
pytestmark = pytest.mark.usefixtures("no_files_at_hand")


def idx(shape: list[int], values: bytes) -> bytes:
    return struct.pack(f">BBBB{len(shape)}i", 0, 0, 8, len(shape), *shape) + values


def toy(folder, images: bytes, labels: bytes) -> FileSet:
    """A set of two files with the hashes of whatever is written."""
    contents = {"train-images-idx3-ubyte": images, "train-labels-idx1-ubyte": labels}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return FileSet("toy", {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()})


def test_pixels_and_labels_keep_their_places(tmp_path):
    files = toy(tmp_path, idx([2, 2, 3], bytes(range(12))), idx([2], bytes([7, 255])))
    images, labels = mnist.read_split(files, "train", tmp_path)
    assert images.tolist() == [[[[0, 1, 2], [3, 4, 5]]], [[[6, 7, 8], [9, 10, 11]]]] and images.dtype == torch.uint8
    assert labels.tolist() == [7, 255] and labels.dtype == torch.int64


@pytest.mark.parametrize(
    "content, complaint",
    [
        (b"", "got nothing"),
        (b"\0\0\x0d\3" + bytes(12), "got 00 00 0d 03"),
        (idx([4], b"abcd"), "got 00 00 08 01"),
        (b"\0\0\x08\3\0\0", "is not an idx file"),
        (idx([2, 2, 3], bytes(11)), r"announces \[2, 2, 3\] values and holds 11 bytes"),
        (idx([2, 2, 3], bytes(13)), "holds 13 bytes"),
        (idx([0, 2, 3], b""), "holds 0 bytes"),
        (idx([-1, -2, 3], bytes(6)), r"announces \[-1"),
    ],
)
def test_what_is_no_idx_file_is_refused_by_name(content, complaint):
    with pytest.raises(DataError, match=complaint) as caught:
        mnist.parse_idx(content, 3, "toy/train-images")
    assert str(caught.value).startswith("toy/train-images ")


def test_as_many_labels_as_images(tmp_path):
    files = toy(tmp_path, idx([2, 2, 3], bytes(12)), idx([3], bytes(3)))
    with pytest.raises(DataError, match="2 images but 3 labels"):
        mnist.read_split(files, "train", tmp_path)


def test_csv_turns_back_into_the_very_idx_bytes():
    pixels = bytes(torch.arange(784).remainder(256).tolist())
    row = ",".join(map(str, pixels))
    csv = f"label,1x1,…\r\n3,{row}\r\n8,{row}\r\n".encode()
    contents = mnist.idx_from_csv({"some/mnist_train.csv": csv, "some/mnist_test.csv": csv})
    assert set(contents) == set(mnist.NAMES)
    assert contents["t10k-images-idx3-ubyte"] == idx([2, 28, 28], pixels * 2)
    assert contents["train-labels-idx1-ubyte"] == idx([2], bytes([3, 8]))


@pytest.mark.parametrize("csv", [b"", b"label\n1,2,3\n", b"label\n1,two\n", b"label\n" + b",".join([b"300"] * 785), b"label\n1\n1,2\n"])
@pytest.mark.filterwarnings("ignore:loadtxt")  # an empty table warns before it is refused
def test_another_csv_is_refused(csv):
    with pytest.raises(DataError, match="not a table of label and 784 pixels"):
        mnist.idx_from_csv({"mnist_train.csv": csv})


@pytest.mark.parametrize("files", [mnist.MNIST, mnist.FASHION_MNIST], ids=lambda files: files.name)
def test_each_set_has_four_files_with_hashes_and_several_homes(files):
    assert tuple(files.sha256) == mnist.NAMES and all(len(sha256) == 64 for sha256 in files.sha256.values())
    assert len(files.homes) >= 3 and any(isinstance(home, Package) for home in files.homes)
    assert info(files.name).files == 4 and status(files.name) == "missing: 4 files"


def test_the_two_sets_are_not_confused():
    """Their files have the same names, so only the hashes tell them apart."""
    assert not set(mnist.MNIST.sha256.values()) & set(mnist.FASHION_MNIST.sha256.values())


def test_every_set_is_listed_under_its_own_name():
    assert [entry.info.name for entry in DATASETS.values()] == list(DATASETS)
    assert {"mnist", "fashion-mnist", "digits", "digits-writers", "generated", "generated-16"} <= set(DATASETS)


def test_a_misspelt_name_brings_the_near_ones():
    with pytest.raises(ValueError, match="no data set 'fashionmnist'; did you mean fashion-mnist"):
        load("fashionmnist", "train")
    with pytest.raises(ValueError, match="there are mnist, "):
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
    """Whatever stands at the top of a module is there without extras; sklearn and the like are imported where they are used."""
    allowed = {*sys.stdlib_module_names, "torch", "numpy", "einops", "jaxtyping", "safetensors", "torchcaps"}
    modules = list(Path(torchcaps.data.__file__).parent.glob("*.py"))
    assert len(modules) >= 5
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


def test_hold_out_parts_the_data_and_keeps_labels_with_images():
    data = labelled()
    rest, held = hold_out(data, 20, seed=3)
    assert len(rest.labels) == 80 and held.labels.bincount().tolist() == [2] * 10
    both = [(tuple(image.flatten().tolist()), int(label)) for part in (rest, held) for image, label in zip(*part, strict=True)]
    assert sorted(both) == sorted((tuple(image.flatten().tolist()), int(label)) for image, label in zip(*data, strict=True))
    assert fingerprint(hold_out(data, 20, seed=3)[1]) == fingerprint(held) != fingerprint(hold_out(data, 20, seed=4)[1])


@pytest.mark.parametrize("n", [0, 100, -1, 101])
def test_hold_out_leaves_something_on_both_sides(n):
    with pytest.raises(ValueError, match=f"100 pictures, got {n}"):
        hold_out(labelled(), n, seed=0)


@pytest.mark.data
@pytest.mark.skipif(not REAL_FILES, reason="TORCHCAPS_DATA names no folder")
@pytest.mark.parametrize("split, n, first, mean", [("train", 60_000, [5, 0, 4, 1, 9], 33.3184), ("test", 10_000, [7, 2, 1, 0, 4], 33.7912)])
def test_mnist_is_what_it_was(split, n, first, mean):
    data = load("mnist", split, root=REAL_FILES)
    assert list(data.images.shape) == [n, *info("mnist").shape] and data.labels[:5].tolist() == first
    assert data.images.double().mean().item() == pytest.approx(mean, abs=1e-4)
