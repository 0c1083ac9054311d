"""MNIST and Fashion-MNIST: the format, and, where the files are at hand, the images themselves."""

import hashlib
import os
import struct

import pytest
import torch

from torchcaps.data import DataError, info, load, status
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


@pytest.mark.parametrize(
    "csv", [b"", b"label\n1,2,3\n", b"label\n1,two\n", b"label\n" + b",".join([b"300"] * 785), b"label\n1\n1,2\n"]
)
@pytest.mark.filterwarnings("ignore:loadtxt")  # an empty table warns before it is refused
def test_another_csv_is_refused(csv):
    with pytest.raises(DataError, match="not a table of label and 784 pixels"):
        mnist.idx_from_csv({"mnist_train.csv": csv})


@pytest.mark.parametrize("files", [mnist.MNIST, mnist.FASHION_MNIST], ids=lambda files: files.name)
def test_each_set_has_four_files_with_hashes_and_several_mirrors(files):
    assert tuple(files.sha256) == mnist.NAMES and all(len(sha256) == 64 for sha256 in files.sha256.values())
    assert len(files.mirrors) >= 3 and any(isinstance(mirror, Package) for mirror in files.mirrors)
    assert info(files.name).files == 4 and status(files.name) == "missing: 4 files"


def test_the_two_sets_are_not_confused():
    """Their files have the same names, so only the hashes tell them apart."""
    assert not set(mnist.MNIST.sha256.values()) & set(mnist.FASHION_MNIST.sha256.values())


@pytest.mark.data
@pytest.mark.skipif(not REAL_FILES, reason="TORCHCAPS_DATA names no folder")
@pytest.mark.parametrize(
    "split, n, first, mean", [("train", 60_000, [5, 0, 4, 1, 9], 33.3184), ("test", 10_000, [7, 2, 1, 0, 4], 33.7912)]
)
def test_mnist_is_what_it_was(split, n, first, mean):
    data = load("mnist", split, root=REAL_FILES)
    assert list(data.images.shape) == [n, *info("mnist").shape] and data.labels[:5].tolist() == first
    assert data.images.double().mean().item() == pytest.approx(mean, abs=1e-4)
