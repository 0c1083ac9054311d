"""smallNORB: pairs stay pairs, in the order of the originals, whichever format they come in."""

import gzip
import hashlib
import os
import struct
import sys
import tempfile

import numpy as np
import pytest
import torch
from archives import encoded, put, tar

from torchcaps.data import DataError, info, load, status
from torchcaps.data.sets import smallnorb
from torchcaps.data.sets.smallnorb import (
    CATEGORIES,
    FORMATS,
    PARTS,
    TOYS,
    by_toys,
    factors,
    halved,
    instances,
    parse_matrix,
    thinned,
    two_thirds,
)
from torchcaps.data.sources.files import FileSet
from torchcaps.data.sources.formats import Labelled, read_split

REAL_FILES = os.environ.get("TORCHCAPS_DATA")
real = pytest.mark.skipif(not REAL_FILES, reason="TORCHCAPS_DATA names no folder")
PACKED, UNPACKED, COPY = FORMATS
pytestmark = pytest.mark.usefixtures("no_files_at_hand")


def matrix(values: np.ndarray) -> bytes:
    """The official format, written by hand; a table of one axis still has three sizes."""
    magic = {1: 0x1E3D4C55, 4: 0x1E3D4C54}[values.itemsize]
    sizes = [*values.shape, *[1] * (3 - values.ndim)]
    return (
        struct.pack(f"<{2 + len(sizes)}i", magic, values.ndim, *sizes)
        + values.astype(values.dtype.newbyteorder("<")).tobytes()
    )


def pairs(n: int) -> np.ndarray:
    """Flat grey levels that tell every image apart; a JPEG keeps those."""
    levels = 10 * np.arange(2 * n, dtype=np.uint8).reshape(n, 2, 1, 1)
    return np.broadcast_to(levels, (n, 2, 96, 96)).copy()


def jpegs(n: int) -> dict[str, bytes]:
    eyes = {
        (at, eye): encoded(pair[side], "JPEG")
        for at, pair in enumerate(pairs(n))
        for side, eye in enumerate(("lt", "rt"))
    }
    return {f"./{at:06}_{CATEGORIES[at % 5]}_04_{eye}.jpg": content for (at, eye), content in eyes.items()}


def official(dat: np.ndarray, cat: np.ndarray) -> dict[str, bytes]:
    return {f"{PARTS['train']}-dat.mat": matrix(dat), f"{PARTS['train']}-cat.mat": matrix(cat)}


def test_the_jpeg_copy_keeps_pairs_order_and_labels(tmp_path):
    """The archive is shuffled on purpose: the number in the name decides, not the place."""
    pytest.importorskip("PIL")
    members = dict(sorted(jpegs(7).items(), key=lambda item: item[0][::-1]))
    fmt = put(tmp_path, COPY, {"smallnorb-train.tar.xz": tar(members)})
    images, labels = read_split([fmt], "train", tmp_path)
    assert (
        list(images.shape) == [7, 2, 96, 96]
        and labels.tolist() == [0, 1, 2, 3, 4, 0, 1]
        and labels.dtype == torch.int64
    )
    assert (images.int() - torch.from_numpy(pairs(7)).int()).abs().max() <= 1
    assert len(list((tmp_path / "cache" / "smallnorb").iterdir())) == 1, "decoded images are kept"


@pytest.mark.parametrize(
    "change, complaint",
    [
        (
            lambda names: names.pop("./000001_human_04_rt.jpg"),
            "holds 000002_airplane_04_lt.jpg where 000001_.*_rt.jpg was expected",
        ),
        (lambda names: names.pop("./000002_airplane_04_rt.jpg"), "holds 5 images, which is no number of pairs"),
        (lambda names: names.update({"./000003_cat_04_lt.jpg": b""}), "holds 000003_cat_04_lt.jpg where"),
        (
            lambda names: names.update({"./000001_human_04_lt.jpg": b"no image"}),
            "000001_human_04_lt.jpg is not an image",
        ),
        (
            lambda names: names.update({"./000001_human_04_lt.jpg": encoded(np.zeros((9, 9), np.uint8), "JPEG")}),
            r"is \[9, 9\] of uint8",
        ),
        (lambda names: names.clear(), "holds 0 images"),
    ],
)
def test_a_copy_that_is_not_as_it_should_be_is_refused(tmp_path, change, complaint):
    pytest.importorskip("PIL")
    members = jpegs(3)
    change(members)
    fmt = put(tmp_path, COPY, {"smallnorb-train.tar.xz": tar(members)})
    with pytest.raises(DataError, match=complaint):
        read_split([fmt], "train", tmp_path)
    assert not (tmp_path / "cache").exists(), "nothing half decoded is kept"


def test_without_pillow_the_error_says_what_to_install(tmp_path, monkeypatch):
    pytest.importorskip("PIL")
    fmt = put(tmp_path, COPY, {"smallnorb-train.tar.xz": tar(jpegs(2))})
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"Pillow.*pip install 'torchcaps\[experiments\]'"):
        read_split([fmt], "train", tmp_path)


def test_the_official_files_are_read_packed_and_unpacked(tmp_path):
    dat = np.random.default_rng(0).integers(0, 256, (5, 2, 96, 96), dtype=np.uint8)
    contents = official(dat, np.array([3, 1, 4, 1, 0], dtype=np.int32))
    unpacked = put(tmp_path / "unpacked", UNPACKED, contents)
    name = f"{PARTS['train']}-dat.mat"
    packed = put(
        tmp_path / "packed",
        PACKED,
        {
            f"{name}.gz": gzip.compress(contents[name]),
            f"{PARTS['train']}-cat.mat": contents[f"{PARTS['train']}-cat.mat"],
        },
    )
    for fmt, folder in ((unpacked, "unpacked"), (packed, "packed")):
        images, labels = read_split([fmt], "train", tmp_path / folder)
        assert (
            images.equal(torch.from_numpy(dat)) and labels.tolist() == [3, 1, 4, 1, 0] and labels.dtype == torch.int64
        )


@pytest.mark.parametrize(
    "content, complaint",
    [
        (b"", "begins with nothing"),
        (b"\0" * 40, "begins with 00 00"),
        (matrix(np.zeros((2, 3, 4), np.uint8))[:-1], r"announces \[2, 3, 4\] values of uint8 and holds 23 bytes"),
        (matrix(np.zeros((2, 3, 4), np.int32)) + b"\0", "holds 97 bytes"),
        (struct.pack("<5i", 0x1E3D4C55, 3, 0, 4, 4), "holds 0 bytes"),
        (struct.pack("<3i", 0x1E3D4C55, 4, 5), r"announces \[5\]"),
    ],
)
def test_a_matrix_must_account_for_every_byte(content, complaint):
    with pytest.raises(DataError, match=complaint) as caught:
        parse_matrix(content, "some-dat.mat")
    assert "some-dat.mat" in str(caught.value)


def test_as_many_categories_as_pairs_and_pairs_of_the_right_size(tmp_path):
    for dat, complaint in (
        (pairs(4), "4 images of torch.uint8 and 3 labels"),
        (np.zeros((3, 96, 96), np.uint8), r"holds \[3, 96, 96\]"),
    ):
        fmt = put(tmp_path, UNPACKED, official(dat, np.zeros(3, np.int32)))
        with pytest.raises(DataError, match=complaint):
            read_split([fmt], "train", tmp_path)


def test_a_wrong_hash_is_refused(tmp_path):
    fmt = put(tmp_path, COPY, {"smallnorb-train.tar.xz": b"something"})
    (tmp_path / "smallnorb-train.tar.xz").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"smallnorb-train.tar.xz: sha256 .* expected"):
        read_split([fmt], "train", tmp_path)


def test_half_the_size_is_the_mean_of_four():
    images = torch.tensor(
        [[0, 1, 255, 255], [1, 0, 255, 254], [10, 20, 0, 0], [30, 41, 0, 1]], dtype=torch.uint8
    ).expand(3, 2, 4, 4)
    small = halved(Labelled(images, torch.arange(3)))
    assert small.images.tolist() == [[[[1, 255], [25, 0]]] * 2] * 3 and small.images.dtype == torch.uint8


def test_two_thirds_of_the_size_is_the_mean_over_one_and_a_half_pixels_squared(rng):
    images = torch.randint(256, (2, 2, 6, 9), generator=rng, dtype=torch.uint8)
    small = two_thirds(Labelled(images, torch.arange(2)))
    doubled = images.double().repeat_interleave(2, -1).repeat_interleave(2, -2)  # so that three make a new pixel
    wanted = torch.nn.functional.avg_pool2d(doubled, 3)
    assert small.images.dtype == torch.uint8 and small.labels.tolist() == [0, 1]
    assert small.images.equal((wanted + 0.5 + 1e-9).floor().to(torch.uint8))


def test_thinned_is_what_tensorflow_made_of_them():
    """Interpolation at 2x, 2y is on pixels, not between them: by hand, with its weights there."""
    images = torch.randint(256, (2, 2, 8, 8), dtype=torch.uint8)
    small = thinned(Labelled(images, torch.arange(2)))
    at = torch.arange(4) * (8 / 4)  # the scale of sizes, no half pixel
    low, share = at.floor().long(), at - at.floor()
    rows = torch.lerp(images[:, :, low].double(), images[:, :, low + 1].double(), share.double()[:, None])
    both = torch.lerp(rows[..., low], rows[..., low + 1], share.double())
    assert small.images.dtype == torch.uint8 and small.images.double().equal(both) and small.labels.tolist() == [0, 1]
    assert not small.images.equal(halved(Labelled(images, torch.arange(2))).images)


def test_factors_are_columns(tmp_path, monkeypatch):
    table = np.array([[8, 3, 34, 5], [4, 0, 2, 1]], dtype=np.int32)
    name = f"{PARTS['test']}-info.mat"
    (tmp_path / name).write_bytes(matrix(table))
    monkeypatch.setattr(smallnorb, "FILES", FileSet("smallnorb", {name: hashlib.sha256(matrix(table)).hexdigest()}))
    assert [column.tolist() for column in factors("test", tmp_path)] == [[8, 4], [3, 0], [34, 2], [5, 1]]


def test_an_unpacked_table_is_taken_on_trust_if_its_numbers_can_be_viewpoints(tmp_path):
    path = tmp_path / f"{PARTS['train']}-info.mat"
    with pytest.raises(DataError, match=r"-training-info\.mat\.gz of smallnorb"):
        factors("train", tmp_path)
    path.write_bytes(matrix(np.array([[8, 3, 34, 5], [4, 0, 2, 1]], dtype=np.int32)))
    assert factors("train", tmp_path).azimuth.tolist() == [34, 2]
    for table, complaint in (
        ([[8, 9, 34, 5]], r"up to \[8, 9, 34, 5\], expected 0 to \[9, 8, 34, 5\]"),
        ([[1, 2]], r"holds \[1, 2\] numbers"),
    ):
        path.write_bytes(matrix(np.array(table, dtype=np.int32)))
        with pytest.raises(DataError, match=complaint):
            factors("train", tmp_path)


@pytest.fixture
def kept_for_this_test(monkeypatch):
    """Half a gigabyte that pytest would otherwise keep for three runs."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TORCHCAPS_CACHE", folder)
        yield


@real
@pytest.mark.data
@pytest.mark.parametrize(
    "split, means", [pytest.param("train", [0.7522, 0.7572], marks=pytest.mark.slow), ("test", [0.7494, 0.7534])]
)
def test_smallnorb_is_what_it_was(split, means, kept_for_this_test):
    if not status("smallnorb", REAL_FILES).startswith("complete"):
        pytest.skip("smallNORB is not there")
    data = load("smallnorb", split, root=REAL_FILES)
    assert (
        list(data.images.shape) == [24_300, *info("smallnorb").shape] and data.labels.bincount().tolist() == [4860] * 5
    )
    assert (data.images.double().mean(dim=(0, 2, 3)) / 255).tolist() == pytest.approx(means, abs=5e-4)
    small = load("smallnorb-48", split, root=REAL_FILES)
    assert list(small.images.shape) == [24_300, *info("smallnorb-48").shape] and small.labels.equal(data.labels)
    assert (small.images.double().mean(dim=(0, 2, 3)) / 255).tolist() == pytest.approx(means, abs=1e-3)


@real
@pytest.mark.data
def test_the_factors_of_the_test_pairs_are_balanced():
    found = factors("test", REAL_FILES)
    assert found.instance.unique().tolist() == [0, 1, 2, 3, 5] and found.elevation.bincount().tolist() == [2700] * 9
    assert found.azimuth.unique().tolist() == list(range(0, 36, 2)) and found.lighting.bincount().tolist() == [4050] * 6


def test_the_lossless_formats_come_first():
    assert [fmt.about for fmt in FORMATS] == ["the official files", "the official files, unpacked", "a lossy JPEG copy"]
    assert info("smallnorb").files == info("smallnorb-48").files == 6


def test_one_toy_of_each_category_is_kept_aside_to_choose_by():
    toys = torch.tensor([4, 9, 6, 9, 7])
    images = Labelled(torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1), torch.arange(5))
    assert by_toys("train", images, toys).labels.tolist() == [0, 2, 4]
    assert by_toys("test", images, toys).labels.tolist() == [1, 3]
    assert by_toys("test", images, toys, held=6).labels.tolist() == [2]


FOLDS = {"smallnorb-folds": lambda images: images, "smallnorb-48-folds": halved, "smallnorb-48-thinned-folds": thinned}


@pytest.mark.parametrize("name, small", FOLDS.items())
def test_every_fold_keeps_another_toy_aside_and_five_of_them_all(name, small, monkeypatch):
    """Six images of every toy; the toy is written into each."""
    toys = torch.tensor(TOYS).repeat(6)
    images = toys.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 2, 96, 96)
    parts = {"train": (Labelled(images, toys % 5), toys)}  # the official test part is not even asked for
    monkeypatch.setattr("torchcaps.data.sources.formats.read_split", lambda ways, split, root: parts[split][0])
    monkeypatch.setattr(smallnorb, "instances", lambda split, root: parts[split][1])
    for seed in range(7):
        train, test = (load(name, split, seed=seed) for split in ("train", "test"))
        assert test.images.unique().tolist() == [TOYS[seed % 5]] and len(test.labels) == 6
        assert (
            train.images.unique().tolist() == [toy for toy in TOYS if toy != TOYS[seed % 5]] and len(train.labels) == 24
        )
        assert list(train.images.shape[1:]) == list(info(name).shape)
    assert list(small(Labelled(images, toys)).images.shape[1:]) == list(info(name).shape)


def test_toys_are_known_by_the_names_in_the_copy(tmp_path, monkeypatch):
    fmt = put(tmp_path, COPY, {"smallnorb-train.tar.xz": tar(jpegs(3))})
    monkeypatch.setattr("torchcaps.data.sets.smallnorb.FORMATS", (fmt,))
    assert instances("train", tmp_path).tolist() == [4, 4, 4]
    with pytest.raises(DataError, match=r"-training-info\.mat\.gz"):
        instances("train", tmp_path / "nothing")
