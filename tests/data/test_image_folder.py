"""A user's own images: what is read, what becomes of it, what is held out, and what is refused in plain words."""

import numpy as np
import pytest
import torch

from torchcaps.data import DataError, info, load
from torchcaps.data.batches import Batches
from torchcaps.data.batches.balance import balanced_order, members
from torchcaps.data.sets.image_folder import LEAST, list_folder, read_files, split_by_class, survey
from torchcaps.data.sources.user_images import look_at, open_image, read_image
from torchcaps.train.plain import from_plain, to_plain
from torchcaps.train.recipe import KINDS

Image = pytest.importorskip("PIL.Image", reason="pip install 'torchcaps[experiments]'")


def save(path, pixels, **settings) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path, **settings)


@pytest.fixture
def folder(tmp_path):
    """Ten red-ish images and six grey ones, all 20x20."""
    draw = np.random.default_rng(0)
    for n in range(10):
        save(tmp_path / "own" / "red" / f"{n}.png", draw.integers(0, 256, (20, 20, 3)) * [1, 0, 0])
    for n in range(6):
        save(tmp_path / "own" / "grey" / f"{n}.jpg", draw.integers(0, 256, (20, 20)))
    return tmp_path / "own"


def test_classes_are_folders_in_the_order_of_their_names(folder):
    (folder / "red" / "notes.txt").write_text("")
    (folder / "red" / ".hidden.png").write_text("")
    found = list_folder(folder)
    assert found.classes == ("grey", "red")
    assert (len(found.files), found.labels.count(0), found.ignored) == (16, 6, 1)


def test_a_survey_tells_what_a_run_has_to_know(folder):
    found = survey(folder, seed=0)
    assert found.data.classes == ("grey", "red")
    assert found.data.shape == (3, 20, 20)  # one square size, not too large: kept; one image in colour: all are
    assert (found.train, found.test) == ({"grey": 5, "red": 8}, {"grey": 1, "red": 2})
    assert (info(found.data).n_train, info(found.data).n_test, info(found.data).n_classes) == (13, 3, 2)
    assert from_plain(to_plain(found.data), KINDS) == found.data


def test_images_of_other_sizes_become_the_default_or_what_is_asked(folder):
    save(folder / "red" / "wide.png", np.zeros((10, 40)))
    assert survey(folder, seed=0).data.shape == (3, 32, 32)
    assert survey(folder, seed=0).sizes in (((20, 20), (40, 10)), ((40, 10), (20, 20)))  # as many pixels
    assert survey(folder, seed=0, size=24).data.shape == (3, 24, 24)
    with pytest.raises(DataError, match="give --size 16 or more"):
        survey(folder, seed=0, size=15)


def test_the_whole_image_is_kept_and_the_rest_is_black(tmp_path):
    save(tmp_path / "wide.png", np.full((2, 8), 200))
    read = read_image(tmp_path / "wide.png", 4, 1)
    assert read.tolist() == [[[0] * 4, [200] * 4, [0] * 4, [0] * 4]]  # 8x2 becomes 4x1, in the middle


def test_images_are_opened_as_people_see_them(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    save(tmp_path / "turned.jpg", np.zeros((8, 16)), exif=exif)
    assert open_image(tmp_path / "turned.jpg").size == (8, 16)
    save(tmp_path / "clear.png", np.zeros((4, 4, 4)))
    assert np.asarray(open_image(tmp_path / "clear.png")).min() == 255  # transparent: white shows
    Image.fromarray(np.full((4, 4), 40_000, dtype=np.uint16)).save(tmp_path / "deep.png")
    assert np.asarray(open_image(tmp_path / "deep.png")).tolist() == [[40_000 // 256] * 4] * 4
    save(tmp_path / "colour.png", np.full((4, 4, 3), 7))
    assert look_at(tmp_path / "colour.png").grey
    save(tmp_path / "colour.png", np.full((4, 4, 3), [7, 7, 8]))
    assert not look_at(tmp_path / "colour.png").grey


def test_unreadable_files_are_refused_by_name_or_left_out(folder):
    (folder / "red" / "broken.png").write_bytes(b"no image")
    whole = (folder / "red" / "0.png").read_bytes()
    (folder / "red" / "cut.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        DataError, match=r"(?s)2 of 18 images cannot be read.*red/broken.png.*red/cut.png.*--skip-unreadable"
    ):
        survey(folder, seed=0)
    found = survey(folder, seed=0, skip_unreadable=True)
    assert [bad.file for bad in found.unreadable] == ["red/broken.png", "red/cut.png"]
    assert found.data.n_train + found.data.n_test == 16


def test_a_link_that_leads_nowhere_is_a_file_that_cannot_be_read(folder):
    (folder / "red" / "gone.png").symlink_to(folder / "nothing.png")
    with pytest.raises(DataError, match=r"(?s)1 of .* images cannot be read:\s+red/gone\.png: .*No such file"):
        survey(folder, 0)
    assert [bad.file for bad in survey(folder, 0, skip_unreadable=True).unreadable] == ["red/gone.png"]


def test_a_fifth_of_every_class_is_held_out_by_the_seed(folder):
    labels = torch.tensor([0] * 50 + [1] * 10 + [2] * 5)
    train, test = split_by_class(labels, seed=3)
    assert torch.bincount(labels[test]).tolist() == [10, 2, 1]
    assert torch.cat([train, test]).sort().values.tolist() == list(range(65))
    assert torch.equal(test, split_by_class(labels, seed=3)[1])
    assert not torch.equal(test, split_by_class(labels, seed=4)[1])
    own = survey(folder, seed=5).data
    parts = [load(own, split, folder, seed=5) for split in ("train", "test")]
    listing = list_folder(folder)
    everything = read_files(listing, folder, 20, 3, False).images
    both = torch.cat([part.images for part in parts])
    assert sorted(map(str, both.flatten(1).tolist())) == sorted(map(str, everything.flatten(1).tolist()))


def test_a_folder_that_has_changed_is_not_split_anew(folder):
    own = survey(folder, seed=0).data
    load(own, "test", folder)
    save(folder / "red" / "new.png", np.zeros((20, 20, 3)))
    with pytest.raises(DataError, match=r"does not hold the 16 images .* it has 17"):
        load(own, "test", folder)
    assert len(own.read_all(folder).labels) == 17
    with pytest.raises(DataError, match="say where they lie with --data FOLDER"):
        load(own, "test")


def test_another_folder_may_have_some_of_the_classes_and_no_others(folder, tmp_path):
    own = survey(folder, seed=0).data
    for name in ("red", "rose"):
        for n in range(2):
            save(tmp_path / "other" / name / f"{n}.png", np.zeros((9, 9)))
    with pytest.raises(DataError, match="has a class 'rose' that this network was not taught; it knows grey, red"):
        own.read_all(tmp_path / "other")
    (tmp_path / "other" / "rose").rename(tmp_path / "other" / "grey")
    (tmp_path / "other" / "grey" / "0.png").unlink()
    assert own.read_all(tmp_path / "other").labels.tolist() == [0, 1, 1]


def test_copies_are_counted(folder):
    (folder / "red" / "again.png").write_bytes((folder / "red" / "0.png").read_bytes())
    assert survey(folder, seed=0).copies == 1


def test_folders_that_no_training_could_use_are_refused(tmp_path, folder):
    with pytest.raises(DataError, match="is no folder; give one with a folder for each class"):
        survey(tmp_path / "nowhere", seed=0)
    with pytest.raises(DataError, match="has no folders; put the images into two at least"):
        survey(folder / "red", seed=0)
    (folder / "grey").rename(tmp_path / "aside")
    with pytest.raises(DataError, match="has one folder, red"):
        survey(folder, seed=0)
    for n in range(LEAST - 1):
        save(folder / "rare" / f"{n}.png", np.full((9, 9), n))
    with pytest.raises(DataError, match=f"too few images: rare has 4; every class needs {LEAST}"):
        survey(folder, seed=0)
    for name in ("a", "b"):
        (tmp_path / "empty" / name).mkdir(parents=True)
    with pytest.raises(DataError, match=r"hold no images; they end in .png"):
        survey(tmp_path / "empty", seed=0)
    (tmp_path / "parts").mkdir()
    for part in ("train", "test"):
        (tmp_path / "parts" / part / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match=r"test, train in .* look like parts, not classes"):
        survey(tmp_path / "parts", seed=0)


def test_balanced_drawing_shows_every_class_as_often(rng):
    labels = torch.tensor([0] * 90 + [1] * 8 + [2] * 2)
    order = balanced_order(members(labels), 95, rng)
    drawn = torch.bincount(labels[order])
    assert sorted(drawn.tolist()) == [31, 32, 32]
    each = torch.bincount(order, minlength=100)
    assert each[:90].max() == 1  # of 90 images none comes twice
    assert each[90:98].min() >= 3 and each[90:98].max() <= 4  # of 8 each before any comes again
    assert not torch.equal(order, balanced_order(members(labels), 95, rng))


def test_batches_are_balanced_where_a_stage_asks_for_it(rng):
    from torchcaps.data import Labelled

    labels = torch.tensor([0] * 60 + [1] * 4)
    data = Labelled(torch.zeros(64, 1, 4, 4, dtype=torch.uint8), labels)
    for balanced, rare in ((True, 32), (False, 4)):
        batches = Batches(data, 8, (), torch.device("cpu"), balanced=balanced)
        batches.new_epoch(rng)
        shown = torch.cat([batches.at(torch.tensor(step)).labels for step in range(batches.n_steps)])
        assert int((shown == 1).sum()) == rare
