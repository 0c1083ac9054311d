"""The reader of the official affNIST files, on small files of the same structure."""

import hashlib
import io
import zipfile

import numpy as np
import pytest
import torch

from torchcaps.data import DataError, load
from torchcaps.data.sets import affnist
from torchcaps.data.sources.files import FileSet

scipy_io = pytest.importorskip("scipy.io")
pytestmark = pytest.mark.usefixtures("no_files_at_hand")


def mat(n: int, first: int = 0, **changed) -> bytes:
    """`n` images, one a column: the pixel in row r, column c of image k is (40 r + c + k + first) mod 251."""
    pixels = np.arange(1600)[:, None] + np.arange(n)[None, :] + first
    fields = {
        "affine_transformation": np.zeros((6, n)),
        "human_readable_transform": np.arange(6.0)[:, None] + 10 * np.arange(n)[None, :],
        "image": (pixels % 251).astype(np.uint8),
        "label_int": (np.arange(n)[None, :] + first).astype(np.uint8),
        "original_id": np.arange(n)[None, :] * 100.0,
    }
    file = io.BytesIO()
    scipy_io.savemat(file, {"affNISTdata": fields | changed}, do_compression=True)
    return file.getvalue()


def zipped(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def test_images_stand_upright_beside_their_labels_and_factors():
    data = affnist.parse_mat(mat(3), "toy.mat")
    assert list(data.images.shape) == [3, 1, 40, 40] and data.images.dtype == torch.uint8
    assert data.images[2, 0, 4, 7] == (40 * 4 + 7 + 2) % 251
    assert data.labels.tolist() == [0, 1, 2] and data.labels.dtype == torch.int64
    assert data.original.tolist() == [0, 100, 200]
    assert data.factors.tolist()[1] == [10, 11, 12, 13, 14, 15]


def test_batches_are_joined_in_the_order_of_their_numbers():
    archive = zipped(
        **{"test_batches/10.mat": mat(1, 9), "test_batches/2.mat": mat(2, 5), "test_batches/readme.txt": b"x"}
    )
    assert affnist.parse_archive(archive, "toy").labels.tolist() == [5, 6, 9]


@pytest.mark.parametrize(
    "content, complaint",
    [
        (mat(2, image=np.zeros((784, 2), np.uint8)), r"expected \[1600 n\]"),
        (mat(2, label_int=np.zeros((1, 3), np.uint8)), r"got \[1600, 2\], \[1, 3\]"),
        (mat(2, human_readable_transform=np.zeros((2, 6))), r"\[2, 6\]; replace it"),
        (b"MATLAB", "is not a file of affNIST"),
    ],
)
def test_another_file_is_refused_by_name(content, complaint):
    with pytest.raises(DataError, match=complaint) as caught:
        affnist.parse_mat(content, "affnist/test.mat")
    assert str(caught.value).startswith("affnist/test.mat")


def test_a_struct_without_images_is_refused():
    file = io.BytesIO()
    scipy_io.savemat(file, {"affNISTdata": {"label_int": np.zeros((1, 2))}})
    with pytest.raises(DataError, match="is not a file of affNIST"):
        affnist.parse_mat(file.getvalue(), "toy.mat")
    with pytest.raises(DataError, match=r"holds no \.mat file"):
        affnist.parse_archive(zipped(readme=b""), "toy.zip")


def test_either_archive_will_do_and_its_hash_is_checked(tmp_path):
    contents = {
        "test.mat.zip": zipped(**{"test.mat": mat(4)}),
        "test_batches.zip": zipped(**{"1.mat": mat(2), "2.mat": mat(2, 2)}),
    }
    one, batches = (
        FileSet("affnist", {name: hashlib.sha256(content).hexdigest()}) for name, content in contents.items()
    )
    folder = tmp_path / "data" / "affnist"
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        assert affnist.read_all(tmp_path / "data", one, batches).labels.tolist() == [0, 1, 2, 3]
        (folder / name).write_bytes(content[:-1] + b"?")  # a wrong hash is as good as no file
    with pytest.raises(DataError, match=r"test\.mat\.zip: sha256"):
        affnist.read_all(tmp_path / "data", one, batches)


def test_missing_files_say_where_to_put_them():
    with pytest.raises(DataError, match="torchcaps data get affnist"):
        load("affnist", "test")
