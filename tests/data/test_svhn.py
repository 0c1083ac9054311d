"""SVHN: the digits in their order, from the official files and from the copy as images."""

import io
import os
import sys
import tempfile

import numpy as np
import pytest
import torch
from archives import encoded, put, tar

from torchcaps.data import DataError, info, load, status
from torchcaps.data.sets.svhn import FORMATS
from torchcaps.data.sources.formats import read_split

REAL_FILES = os.environ.get("TORCHCAPS_DATA")
OFFICIAL, COPY = FORMATS
pytestmark = pytest.mark.usefixtures("no_files_at_hand")


def pixels(n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)


def mat(**variables) -> bytes:
    savemat = pytest.importorskip("scipy.io").savemat
    buffer = io.BytesIO()
    savemat(buffer, variables, do_compression=True)
    return buffer.getvalue()


def webps(labels: list[int]) -> dict[str, bytes]:
    return {
        f"{at:06}_{label}.webp": encoded(image, "WEBP")
        for at, (label, image) in enumerate(zip(labels, pixels(len(labels)), strict=True))
    }


def test_the_copy_keeps_order_channels_and_labels(tmp_path):
    pytest.importorskip("PIL")
    members = dict(reversed(webps([5, 0, 9, 1]).items()))
    images, labels = read_split([put(tmp_path, COPY, {"svhn-test.tar.xz": tar(members)})], "test", tmp_path)
    assert images.equal(torch.from_numpy(pixels(4)).permute(0, 3, 1, 2)) and labels.tolist() == [5, 0, 9, 1]
    assert len(list((tmp_path / "cache" / "svhn").iterdir())) == 1, "decoded images are kept"


@pytest.mark.parametrize(
    "change, complaint",
    [
        (lambda names: names.pop("000001_0.webp"), "holds 000002_9.webp where 000001_<label>.webp was expected"),
        (lambda names: names.update({"000004_10.webp": b""}), "holds 000004_10.webp where"),
        (lambda names: names.update({"000001_0.webp": names["000001_0.webp"][:90]}), "000001_0.webp is not an image"),
        (
            lambda names: names.update({"000001_0.webp": encoded(np.zeros((32, 32), np.uint8), "PNG")}),
            r"is \[32, 32\] of uint8, expected .* colour",
        ),
    ],
)
def test_a_copy_that_is_not_as_it_should_be_is_refused(tmp_path, change, complaint):
    pytest.importorskip("PIL")
    members = webps([5, 0, 9, 1])
    change(members)
    fmt = put(tmp_path, COPY, {"svhn-test.tar.xz": tar(members)})
    with pytest.raises(DataError, match=complaint):
        read_split([fmt], "test", tmp_path)
    assert not (tmp_path / "cache").exists(), "nothing half decoded is kept"


def test_half_an_archive_is_refused(tmp_path):
    pytest.importorskip("PIL")
    fmt = put(tmp_path, COPY, {"svhn-test.tar.xz": tar(webps([5, 0, 1, 2]))[:4000]})
    with pytest.raises(DataError, match=r"svhn-test.tar.xz is not a whole tar archive"):
        read_split([fmt], "test", tmp_path)


def test_the_official_file_calls_the_digit_zero_ten(tmp_path):
    content = mat(X=pixels(3).transpose(1, 2, 3, 0), y=np.array([[10], [1], [9]], dtype=np.uint8))
    images, labels = read_split([put(tmp_path, OFFICIAL, {"test_32x32.mat": content})], "test", tmp_path)
    assert images.equal(torch.from_numpy(pixels(3)).permute(0, 3, 1, 2)) and images.is_contiguous()
    assert labels.tolist() == [0, 1, 9] and labels.dtype == torch.int64


def test_another_mat_file_is_refused(tmp_path):
    good = pixels(3).transpose(1, 2, 3, 0)
    for content, complaint in [
        (b"no matrix", "not a MATLAB file with X and y"),
        (mat(X=good), "not a MATLAB file with X and y"),
        (mat(X=good[:16], y=np.ones((3, 1))), r"X of \[16, 32, 3, 3\]"),
        (mat(X=good, y=np.array([[0], [1], [2]])), "expected .* 1..10"),
        (mat(X=good, y=np.ones((2, 1))), "3 images of torch.uint8 and 2 labels"),
    ]:
        fmt = put(tmp_path, OFFICIAL, {"test_32x32.mat": content})
        with pytest.raises(DataError, match=complaint):
            read_split([fmt], "test", tmp_path)


def test_without_scipy_the_error_says_what_to_install(tmp_path, monkeypatch):
    fmt = put(tmp_path, OFFICIAL, {"test_32x32.mat": b"anything"})
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(DataError, match=r"SciPy.*pip install 'torchcaps\[experiments\]'"):
        read_split([fmt], "test", tmp_path)


@pytest.mark.data
@pytest.mark.skipif(not REAL_FILES, reason="TORCHCAPS_DATA names no folder")
@pytest.mark.parametrize(
    "split, first, counts, means",
    [
        pytest.param(
            "train", [1, 9, 2, 3, 2], [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659],
            [0.4377, 0.4438, 0.4728],
            marks=pytest.mark.slow,
        ),
        (
            "test", [5, 2, 1, 0, 6], [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595],
            [0.4524, 0.4525, 0.4690],
        ),
    ],
)  # fmt: skip
def test_svhn_is_what_it_was(split, first, counts, means, monkeypatch):
    """Counts and means of the official files; the copy is cut anew, so its means agree to a thousandth."""
    if not status("svhn", REAL_FILES).startswith("complete"):
        pytest.skip("SVHN is not there")
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TORCHCAPS_CACHE", folder)
        data = load("svhn", split, root=REAL_FILES)
    assert list(data.images.shape) == [sum(counts), *info("svhn").shape] and data.labels[:5].tolist() == first
    assert data.labels.bincount().tolist() == counts
    assert (data.images.double().mean(dim=(0, 2, 3)) / 255).tolist() == pytest.approx(means, abs=1e-3)
