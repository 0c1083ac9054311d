"""Embeddings of sentences: in memory, ahead of the steps, on disk; and batches of them."""

import shutil
from dataclasses import replace

import pytest
import torch

from torchcaps.data import DataError, load
from torchcaps.data.augment import Mixup, Shift
from torchcaps.data.batches import SentenceBatch, SentenceBatches, batches_for, embeddings, sentences_in_order
from torchcaps.data.batches.embeddings import InMemory, Shards, Window, groups, padded, store_for
from torchcaps.data.batches.sentences import mixed
from torchcaps.data.sets.sst import GeneratedEncoder, Sentences
from torchcaps.papers import RECIPES

CPU = torch.device("cpu")
TEXTS = ("the film is great", "dull", "a warm scene", "good good")


@pytest.fixture
def encoder():
    return GeneratedEncoder()


@pytest.fixture
def data(encoder):
    return Sentences(torch.tensor([4, 0, 3, 4]), TEXTS, encoder)


def alone(encoder, text: str) -> torch.Tensor:
    """The embeddings of one sentence without any padding, as they are stored."""
    ids, present = padded(encoder.tokenise([text]), encoder.pad)
    return encoder.hidden(ids, present)[0].bfloat16().float()


def check(store, encoder, picks: list[int], n: int) -> None:
    taken, present = store.take(torch.tensor(picks), n)
    for row, pick in enumerate(picks):
        wanted = alone(encoder, TEXTS[pick])[:n]
        torch.testing.assert_close(taken[row, : len(wanted)], wanted, rtol=0, atol=0)
        assert not taken[row, len(wanted) :].any()
        assert present[row].tolist() == [1] * len(wanted) + [0] * (n - len(wanted))


def test_what_is_taken_is_each_sentence_alone(encoder, data):
    store = store_for(data, CPU)
    assert isinstance(store, InMemory) and store.longest == 5  # four words and an end
    check(store, encoder, [2, 0, 3, 3], 5)
    check(store, encoder, [1], 2)


def test_embeddings_are_computed_once(data, monkeypatch):
    first = store_for(data, CPU)
    monkeypatch.setattr(GeneratedEncoder, "hidden", None)
    assert store_for(data, CPU) is first


def test_only_the_last_sets_are_kept(encoder):
    stores = [store_for(Sentences(torch.zeros(1), (text,), encoder), CPU) for text in TEXTS]
    assert list(encoder.kept.values()) == stores[1:]


def test_a_window_holds_what_the_next_steps_take(encoder):
    tokens = encoder.tokenise(TEXTS)
    of_a_step = 2 * 5 * 3 * 8 * 2  # two sentences of five tokens, three layers of eight half numbers
    window = Window(encoder, tokens, 2, CPU, room=2 * of_a_step + 1)
    order = torch.tensor([[2, 0], [1, 3], [0, 0], [3, 2]])
    flat = window.flat.data_ptr()
    assert window.prepare(order) == 2
    check(window, encoder, [2, 0], 5)
    check(window, encoder, [1, 3], 5)
    assert window.prepare(order[2:]) == 2
    check(window, encoder, [3, 2], 5)
    assert window.flat.data_ptr() == flat  # a captured step has seen this address
    assert Window(encoder, tokens, 2, CPU, room=1).prepare(order) == 1


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(embeddings, "PER_SHARD", 2)


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_shards_give_what_memory_gives(encoder, tmp_path, small_shards):
    store = Shards(tmp_path, encoder, encoder.tokenise(TEXTS))
    check(store, encoder, [3, 0, 2, 1], 5)
    assert [name[:6] for name in names(tmp_path)] == ["00000-", "00001-"]


def test_shards_go_on_where_they_were_stopped_and_mend_what_is_damaged(
    encoder, tmp_path, small_shards, monkeypatch, capsys
):
    tokens, calls = encoder.tokenise(TEXTS), []
    hidden = GeneratedEncoder.hidden
    monkeypatch.setattr(GeneratedEncoder, "hidden", lambda self, *args: calls.append(1) or hidden(self, *args))
    Shards(tmp_path, encoder, tokens)
    before = names(tmp_path)
    assert len(calls) == 2 and "2 of 2 shards" in capsys.readouterr().err
    Shards(tmp_path, encoder, tokens)
    assert len(calls) == 2 and capsys.readouterr().err == ""
    (tmp_path / before[1]).unlink()
    Shards(tmp_path, encoder, tokens)
    assert len(calls) == 3
    content = bytearray((tmp_path / before[0]).read_bytes())
    content[5] ^= 1
    (tmp_path / before[0]).write_bytes(content)
    mended = Shards(tmp_path, encoder, tokens)
    assert len(calls) == 4 and names(tmp_path) == before
    check(mended, encoder, [0, 1], 5)


def test_a_large_set_is_kept_on_disk_by_a_cpu(data, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path))
    monkeypatch.setattr(embeddings, "SMALL", 0)
    assert isinstance(store_for(data, CPU), Shards)
    assert [path.name.startswith("generated-") for path in (tmp_path / "embeddings").iterdir()] == [True]


def test_a_full_disk_is_an_error_before_the_work(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 100}))
    with pytest.raises(
        DataError,
        match=r"embeddings of 4 sentences by generated need 0.0 GB more .* train on the root sentences alone, on a GPU",
    ):
        Shards(tmp_path, encoder, encoder.tokenise(TEXTS))
    assert names(tmp_path) == []


def test_groups_hold_every_sentence_once_and_no_more_tokens_than_allowed():
    lengths = [3, 9, 1, 4, 4, 7, 20]
    found = list(groups(lengths, at_once=16))
    assert sorted(number for group in found for number in group) == list(range(7))
    assert all(len(group) == 1 or len(group) * max(lengths[number] for number in group) <= 16 for group in found)
    assert len(found) < 7


@pytest.mark.parametrize(
    ("text", "why"),
    [(" ", r"sentence 2 of 2 is empty"), ("a " * 40, r"sentence 2 of 2 has 41 tokens and generated takes 32")],
)
def test_what_cannot_be_embedded_is_named(encoder, text, why):
    with pytest.raises(ValueError, match=why):
        store_for(Sentences(torch.zeros(2), ("good", text), encoder), CPU)


def test_masks_are_mixed_as_the_embeddings_are():
    """Figure 5(d): where a token meets padding, its share of being there is its share in the mixture."""
    batch = SentenceBatch(
        torch.tensor([[4.0, 8.0], [2.0, 0.0], [6.0, 6.0]]).view(3, 2, 1, 1),
        torch.tensor([[1.0, 1], [1, 0], [1, 1]]),
        torch.tensor([0, 1, 2]),
    )
    found = mixed(batch, torch.tensor([0.75, 0.5, 1.0]))
    assert found.embeddings.flatten(1).tolist() == [[3.5, 6.0], [4.0, 3.0], [6.0, 6.0]]
    assert found.present.tolist() == [[1.0, 0.75], [1.0, 0.5], [1.0, 1.0]]
    assert found.others.tolist() == [1, 2, 0] and found.labels.tolist() == [0, 1, 2]


def test_an_epoch_shows_every_sentence_and_repeats_from_its_generator():
    data = load("generated-sentences", "validation")
    one, other = (batches_for(data, 16, (Mixup(),), CPU) for _ in range(2))
    assert isinstance(one, SentenceBatches) and one.n_steps == 4
    for batches in (one, other):
        batches.new_epoch(torch.Generator().manual_seed(5))
    assert sorted(one.order.flatten().tolist()) == list(range(64))
    for step in range(4):
        first, second = one.at(torch.tensor(step)), other.at(torch.tensor(step))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_step_sees_its_sentences_through_a_window_too():
    data = load("generated-sentences", "validation")
    plain, ahead = (SentenceBatches(data, 16, (), CPU) for _ in range(2))
    encoder = data.encoder
    ahead.store = Window(encoder, encoder.tokenise(data.texts), 16, CPU, room=3 * 16 * 9 * 3 * 8 * 2)
    for seed in (0, 1):
        for batches in (plain, ahead):
            batches.new_epoch(torch.Generator().manual_seed(seed))
        for step in range(1, 4):  # as a resumed run, that begins within an epoch
            ahead.before(step)
            assert all(
                torch.equal(a, b)
                for a, b in zip(plain.at(torch.tensor(step))[:3], ahead.at(torch.tensor(step))[:3], strict=True)
            )


def test_in_order_nothing_is_left_out():
    data = load("generated-sentences", "test")
    batches = list(sentences_in_order(data, 50, CPU))
    assert torch.cat([batch.labels for batch in batches]).tolist() == data.labels.tolist()
    lengths = torch.cat([batch.present.sum(1) for batch in batches])
    assert lengths.tolist() == [len(text.split()) + 1 for text in data.texts]


def test_wrong_batches_are_refused(data):
    with pytest.raises(ValueError, match="sentences can be mixed, and nothing else"):
        batches_for(data, 2, (Shift(2),), CPU)
    with pytest.raises(ValueError, match="a batch of 5 was asked for and there are 4 training sentences"):
        batches_for(data, 5, (), CPU)


def test_another_shape_of_run_is_refused():
    with pytest.raises(ValueError, match="no model 'capsnet'; there are em-sentences, pooled-sentences for sentences"):
        replace(RECIPES["smoke/em-sentences"].make(), model="capsnet").build()
