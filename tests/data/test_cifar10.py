"""CIFAR-10: the same images from the official pickles and from the PNGs of a package."""

import json
import os
import pickle
import struct
import sys

import numpy as np
import pytest
import torch
from archives import encoded, put, tar

from torchcaps.data import DataError, info, load, status
from torchcaps.data.sets.cifar10 import BATCHES, CLASSES, FORMATS
from torchcaps.data.sources.formats import read_split

REAL_FILES = os.environ.get("TORCHCAPS_DATA")
REAL_CACHE = os.environ.get("TORCHCAPS_CACHE", "")
OFFICIAL, PACKAGE = FORMATS
pytestmark = pytest.mark.usefixtures("no_files_at_hand")


def batch(number: int) -> np.ndarray:
    """Two images [n h w c] for each batch."""
    return np.random.default_rng(number).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)


def old_pickle(data: np.ndarray, labels: list[int]) -> bytes:
    """Pickle {"data": array, "labels": list} as Python 2 did, instruction by instruction."""
    text = lambda word: b"U" + bytes([len(word)]) + word  # noqa: E731
    dtype = (
        b"cnumpy\ndtype\n"
        + text(b"u1")
        + b"K\0K\1\x87R(K\3"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    )
    shape = b"".join(b"J" + struct.pack("<i", size) for size in data.shape) + b"\x86"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + text(b"b") + b"\x87R"
    array = empty + b"(K\1" + shape + dtype + b"\x89T" + struct.pack("<i", data.size) + data.tobytes() + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\2}(" + text(b"data") + array + text(b"labels") + numbers + b"u."


def pickles(**changed: bytes) -> bytes:
    members = {"cifar-10-batches-py/readme.html": b""}
    for number, name in enumerate([*BATCHES["train"], *BATCHES["test"]]):
        rows = batch(number).transpose(0, 3, 1, 2).reshape(2, 3072)
        members[f"cifar-10-batches-py/{name}"] = changed.get(name, old_pickle(rows, [number, 9 - number]))
    return tar(members, "gz")


def pngs(**changed: bytes) -> dict[str, bytes]:
    pytest.importorskip("PIL")
    contents = {
        f"{name}.png": encoded(batch(number).reshape(2, 1024, 3), "PNG")
        for number, name in enumerate([*BATCHES["train"], *BATCHES["test"]])
    }
    contents["train_lables.json"] = json.dumps(
        [label for number in range(5) for label in (number, 9 - number)]
    ).encode()
    contents["test_lables.json"] = b"[5,4]"
    return contents | changed


@pytest.mark.parametrize("split, numbers", [("train", range(5)), ("test", [5])])
def test_both_formats_give_the_same_images_in_the_same_order(tmp_path, split, numbers):
    wanted = torch.from_numpy(np.concatenate([batch(number) for number in numbers])).permute(0, 3, 1, 2)
    for fmt, contents in ((OFFICIAL, {"cifar-10-python.tar.gz": pickles()}), (PACKAGE, pngs())):
        images, labels = read_split([put(tmp_path, fmt, contents)], split, tmp_path)
        assert images.equal(wanted) and images.dtype == torch.uint8
        assert (
            labels.tolist() == [label for number in numbers for label in (number, 9 - number)]
            and labels.dtype == torch.int64
        )


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    """The hash keeps such a file out; whoever changes the hash still runs nothing."""
    evil = b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR."
    fmt = put(tmp_path, OFFICIAL, {"cifar-10-python.tar.gz": pickles(test_batch=evil)})
    with pytest.raises(DataError, match=r"test_batch .* not a batch of CIFAR-10 \(it asks for os.system\)"):
        read_split([fmt], "test", tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle",
        pickle.dumps({b"data": 3}, 2),
        old_pickle(np.zeros((2, 3071), np.uint8), [0, 0]),
        old_pickle(np.zeros((2, 3072), np.uint8), [0, 0])[:-40],
    ],
    ids=["empty", "other", "no labels", "too short rows", "cut"],
)
def test_what_is_no_batch_is_refused_by_name(tmp_path, content):
    fmt = put(tmp_path, OFFICIAL, {"cifar-10-python.tar.gz": pickles(test_batch=content)})
    with pytest.raises(DataError, match=r"test_batch of cifar-10-python.tar.gz is not a batch of CIFAR-10"):
        read_split([fmt], "test", tmp_path)


def test_labels_are_checked(tmp_path):
    for text, complaint in [
        (b"[5]", "2 images of torch.uint8 and 1 labels"),
        (b"[5,10]", r"not all whole numbers in 0\.\.9"),
        (b'[5,"4"]', r"not all whole numbers in 0\.\.9"),
        (b"<html>", "test_lables.json is not JSON"),
    ]:
        fmt = put(tmp_path, PACKAGE, pngs() | {"test_lables.json": text})
        with pytest.raises(DataError, match=complaint):
            read_split([fmt], "test", tmp_path)


def test_images_are_checked(tmp_path):
    for content, complaint in [
        (b"no image", "test_batch.png is not an image"),
        (
            encoded(np.zeros((2, 1024), np.uint8), "PNG"),
            r"test_batch.png is \[2, 1024\], expected rows of 1024 pixels in colour",
        ),
        (pngs()["test_batch.png"][:-500], "test_batch.png is not an image"),
    ]:
        fmt = put(tmp_path, PACKAGE, pngs() | {"test_batch.png": content})
        with pytest.raises(DataError, match=complaint):
            read_split([fmt], "test", tmp_path)


def test_without_pillow_the_error_says_what_to_install(tmp_path, monkeypatch):
    fmt = put(tmp_path, PACKAGE, pngs())
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"Pillow.*pip install 'torchcaps\[experiments\]'"):
        read_split([fmt], "test", tmp_path)


@pytest.mark.data
@pytest.mark.skipif(not REAL_FILES, reason="TORCHCAPS_DATA names no folder")
@pytest.mark.parametrize(
    "split, n, first, means",
    [
        ("train", 50_000, [6, 9, 9, 4, 1, 1, 2, 7, 8, 3], [0.4914, 0.4822, 0.4465]),
        ("test", 10_000, [3, 8, 8, 0, 6, 6, 1, 6, 3, 1], [0.4942, 0.4851, 0.4504]),
    ],
)
def test_cifar10_is_what_it_was(split, n, first, means, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_CACHE", REAL_CACHE)
    if not status("cifar10", REAL_FILES).startswith("complete"):
        pytest.skip("CIFAR-10 is not there; `torchcaps data get cifar10` fetches it")
    data = load("cifar10", split, root=REAL_FILES)
    assert list(data.images.shape) == [n, *info("cifar10").shape] and data.labels[:10].tolist() == first
    assert data.labels.bincount().tolist() == [n // 10] * 10 and len(CLASSES) == 10
    assert (data.images.double().mean(dim=(0, 2, 3)) / 255).tolist() == pytest.approx(means, abs=1e-4)
