"""Any encoder or decoder of the transformers library: GPT-2 and BERT, tiny and at random."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers", reason="pip install 'torchcaps[sentences]'")

from tests.transformers_tiny import LIMIT, N_BLOCKS, SIZE, WORDS, model, tokenizer, transformers
from torchcaps.data import DataError
from torchcaps.data.batches.embeddings import padded, store_for
from torchcaps.data.sets.sst import Sentences
from torchcaps.data.sources.encoders import NO_LIMIT, Encoder, TransformerEncoder, weights_sha256

TEXTS = ("the film is great", "dull", "not a film")
CPU = torch.device("cpu")


def numbers(*words: str) -> list[int]:
    return [WORDS.index(word) for word in words]


@pytest.fixture
def gpt2():
    return TransformerEncoder("tiny-gpt2", model("decoder"), tokenizer("decoder"))


@pytest.fixture
def bert():
    return TransformerEncoder("tiny-bert", model("encoder"), tokenizer("encoder"))


def test_a_decoder_gets_an_end_that_counts_as_a_token(gpt2):
    assert gpt2.tokenise(["the film"]) == [numbers("the", "film", "<end>")]
    _, present = padded(gpt2.tokenise(TEXTS), gpt2.pad)
    assert present.sum(1).tolist() == [5, 2, 4]


def test_an_encoder_ends_a_sentence_itself(bert):
    assert bert.tokenise(["the film"]) == [numbers("[CLS]", "the", "film", "[SEP]")]


def test_there_is_a_state_before_the_first_block_and_one_after_each(gpt2, bert):
    for encoder in (gpt2, bert):
        assert (encoder.n_layers, encoder.width, encoder.limit) == (N_BLOCKS + 1, SIZE, LIMIT)
        states = encoder.hidden(*padded(encoder.tokenise(TEXTS), encoder.pad))
        assert states.shape == (3, max(map(len, encoder.tokenise(TEXTS))), N_BLOCKS + 1, SIZE)
        assert not states.requires_grad


def test_the_states_are_the_models_own_and_the_last_is_after_the_final_norm(gpt2):
    """GPT-2 block by block: word and place embeddings, then each block, then ln_f."""
    gpt, ids = gpt2.model, torch.tensor(gpt2.tokenise(["not a film"]))
    with torch.no_grad():
        state = gpt.wte(ids) + gpt.wpe(torch.arange(ids.shape[1]))
        wanted = [state]
        for block in gpt.h:
            state = block(state)
            state = state[0] if isinstance(state, tuple) else state
            wanted.append(state)
        wanted[-1] = gpt.ln_f(state)
    found = gpt2.hidden(ids, torch.ones_like(ids).bool())
    torch.testing.assert_close(found, torch.stack(wanted, 2), rtol=1e-5, atol=1e-5)
    assert found[:, :, -1].mean(-1).abs().max() < 1e-5 and found[:, :, -2].mean(-1).abs().max() > 1e-5


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_padding_and_company_change_nothing(kind):
    encoder = TransformerEncoder("tiny", model(kind), tokenizer(kind))
    store = store_for(Sentences(torch.zeros(3), TEXTS, _Given(encoder)), CPU)
    taken, present = store.take(torch.arange(3), store.longest)
    for row, ids in enumerate(encoder.tokenise(TEXTS)):
        alone = encoder.hidden(torch.tensor([ids]), torch.ones(1, len(ids)).bool())[0]
        torch.testing.assert_close(taken[row, : len(ids)], alone, rtol=1e-2, atol=1e-2)  # kept in bfloat16
        assert present[row].sum() == len(ids)


class _Given:
    """An encoder that is loaded already."""

    def __init__(self, encoder):
        self.encoder = encoder

    def load(self, device):
        return self.encoder


def test_a_sentence_longer_than_the_encoder_takes_is_one_clear_error(gpt2, bert):
    for encoder, n in ((gpt2, LIMIT), (bert, LIMIT - 1)):
        with pytest.raises(
            ValueError, match=rf"sentence 2 of 2 has {LIMIT + 1} tokens and tiny-.* takes {LIMIT}: 'film film"
        ):
            encoder.tokenise(["dull", "film " * n])
        assert len(encoder.tokenise(["film " * (n - 1)])[0]) == LIMIT


def test_settings_that_say_no_number_are_no_limit():
    """XLNet, which knows tokens by their distances, says -1."""
    config = transformers.XLNetConfig(vocab_size=12, d_model=SIZE, n_layer=N_BLOCKS, n_head=2, d_inner=32)
    assert config.max_position_embeddings == -1
    assert TransformerEncoder("tiny", transformers.XLNetModel(config), tokenizer("decoder")).limit == NO_LIMIT


def test_places_that_no_token_gets_do_not_count():
    """RoBERTa's positions begin behind its padding token, and its tokenizer may not say how long a text may be."""
    sizes = {
        "hidden_size": SIZE,
        "num_hidden_layers": N_BLOCKS,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 12,
    }
    config = transformers.RobertaConfig(**sizes, max_position_embeddings=LIMIT + 2, pad_token_id=1)
    words = tokenizer("encoder")
    words.model_max_length = 10**30
    encoder = TransformerEncoder("tiny-roberta", transformers.RobertaModel(config), words)
    (ids,) = encoder.tokenise(["film " * (LIMIT - 2)])
    assert encoder.hidden(torch.tensor([ids]), torch.ones(1, LIMIT).bool()).isfinite().all()
    with pytest.raises(ValueError, match=f"has {LIMIT + 1} tokens and tiny-roberta takes {LIMIT}"):
        encoder.tokenise(["film " * (LIMIT - 1)])


def test_an_empty_sentence_is_one_clear_error(gpt2):
    with pytest.raises(ValueError, match="sentence 2 of 3 is empty"):
        gpt2.tokenise(["dull", "  ", "film"])


def test_it_is_found_and_loaded_from_a_folder_and_refused_if_it_is_another(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path / "cache"))
    made, folder = model("encoder"), tmp_path / "encoders" / "tiny"
    made.save_pretrained(folder)
    tokenizer("encoder").save_pretrained(folder)
    encoder = Encoder("tiny", N_BLOCKS + 1, SIZE, 9, root=tmp_path)
    loaded = encoder.load(CPU)
    assert loaded is encoder.load(CPU)
    ids, present = padded(loaded.tokenise(TEXTS), loaded.pad)
    again = TransformerEncoder("tiny", made, tokenizer("encoder"))
    torch.testing.assert_close(loaded.hidden(ids, present)[present], again.hidden(ids, present)[present])
    with pytest.raises(DataError, match=r"tiny has 9 hidden states of 16 dimensions; what lies in .* has 3 of 16"):
        replace(encoder, n_layers=9).load(CPU)


def test_a_copy_in_half_precision_has_the_same_hash_and_other_weights_another(tmp_path):
    made = model("encoder")
    wanted = weights_sha256(made)
    assert weights_sha256(model("encoder").half()) == wanted
    with torch.no_grad():
        made.embeddings.word_embeddings.weight[3, 3] += 1
    assert weights_sha256(made) != wanted


def test_tokens_are_written_for_people(gpt2):
    assert gpt2.words(gpt2.tokenise(["the film"])[0]) == ["the", "film", "<end>"]
