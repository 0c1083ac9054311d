"""A data set is a specification: its fields make its name, a name leads back to it, and others ask by field."""

from dataclasses import replace

import pytest

from torchcaps.data import DATASETS, DataSpec, OwnImages, info, load, spec, stand_in, status
from torchcaps.data.specs import SPLITS

OWN = OwnImages(classes=("cat", "dog"), shape=(3, 32, 32), n_train=8, n_test=2)


def test_a_name_leads_to_its_specification_and_back():
    assert len(DATASETS) == 66
    for name, found in DATASETS.items():
        assert str(found) == name == info(name).name and spec(name) == found == spec(found)
        assert found.split in SPLITS


def test_fields_say_what_a_set_is():
    small = DataSpec(source="smallnorb", size=48)
    assert str(small) == "smallnorb-48"
    assert str(replace(small, split="folds")) == "smallnorb-48-folds"
    assert str(replace(small, thinned=True, split="folds")) == "smallnorb-48-thinned-folds"
    assert str(replace(small, split="azimuth", familiar=True)) == "smallnorb-48-viewpoint-azimuth-familiar"
    assert spec("sst2-gpt2-large-dev") == DataSpec(source="sst", n_classes=2, encoder="gpt2-large", split="dev")
    assert spec("multimnist-6").shift == 6 and spec("digits-pairs").examples == "pairs"
    assert spec("generated-32-rgb") == DataSpec(source="generated", size=32, channels="rgb")


def test_no_two_specifications_have_one_name():
    assert len(set(DATASETS.values())) == len(DATASETS)


def test_names_that_result_files_and_checkpoints_hold_stay_readable():
    stored = [
        "mnist",
        "mnist-40",
        "affnist-like",
        "affnist",
        "multimnist-4",
        "digits-writers",
        "smallnorb-toys",
        "svhn",
        "cifar10",
    ]
    stored += ["smallnorb-viewpoint-elevation", "generated", "generated-sentences", "sst5-mpnet", "sst2-minilm-roots"]
    assert [str(spec(name)) for name in stored] == stored


def test_everything_takes_a_specification_for_a_name():
    pairs = DataSpec(source="generated", examples="pairs")
    assert info(pairs) == info("generated-pairs") and status(pairs) == "built in"
    assert load(pairs, "test").picks.equal(load("generated-pairs", "test").picks)


def test_a_specification_that_no_source_offers_is_refused_with_near_names():
    with pytest.raises(ValueError, match=r"no data set 'smallnorb-40'; did you mean .*smallnorb-48"):
        info(DataSpec(source="smallnorb", size=40))
    with pytest.raises(TypeError, match="eyes"):
        DataSpec(source="smallnorb", eyes=1)


@pytest.mark.parametrize(
    "name, same",
    [
        ("sst5-mpnet-dev", "sst5-mpnet"),
        ("sst5-mpnet", "sst5-mpnet"),
        ("sst5-mpnet-roots", "sst5-mpnet-roots"),
        ("smallnorb-48-viewpoint-azimuth-familiar", "smallnorb-48-viewpoint-azimuth"),
        ("smallnorb-folds", "smallnorb-folds"),
    ],
)
def test_sets_that_share_their_training_part_say_so(name, same):
    assert str(spec(name).same_training) == same and info(name).n_train == info(same).n_train


@pytest.mark.parametrize(
    "data, generated",
    [
        ("mnist", "generated"),
        ("digits", "generated-16"),
        ("mnist-40", "generated-40"),
        ("smallnorb", "generated-96-stereo"),
        ("smallnorb-48-folds", "generated-48-stereo"),
        ("smallnorb-64", "generated-48-stereo"),
        ("cifar10", "generated-32-rgb"),
        ("multimnist-4", "generated-pairs"),
        ("sst5-mpnet", "generated-sentences"),
        (OWN, "generated-32-rgb"),
        (replace(OWN, shape=(1, 36, 36)), "generated"),
        (replace(OWN, shape=(1, 8, 8)), "generated-16"),
        (replace(OWN, shape=(4, 200, 200)), "generated-96"),
    ],
    ids=str,
)
def test_a_smoke_run_has_generated_data_of_the_same_kind(data, generated):
    assert str(stand_in(data)) == generated
