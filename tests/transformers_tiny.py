"""A decoder and an encoder of the transformers library, tiny and at random, with a tokenizer of a few words: nothing is
fetched.
"""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="pip install 'torchcaps[sentences]'")
tokenizers = pytest.importorskip("tokenizers")

WORDS = ("[UNK]", "[PAD]", "[CLS]", "[SEP]", "<end>", "a", "the", "film", "is", "great", "dull", "not")
SIZE, N_BLOCKS, LIMIT = 16, 2, 12


def tokenizer(kind: str):
    """A decoder's tokenizer gives words alone; an encoder's adds [CLS] before and [SEP] behind them."""
    numbers = {word: number for number, word in enumerate(WORDS)}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[UNK]"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    if kind == "decoder":
        return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<end>", unk_token="[UNK]")
    plain.post_processor = tokenizers.processors.BertProcessing(
        ("[SEP]", numbers["[SEP]"]), ("[CLS]", numbers["[CLS]"])
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        model_max_length=LIMIT,
    )


def model(kind: str):
    torch.manual_seed(0)
    if kind == "decoder":
        config = transformers.GPT2Config(
            vocab_size=len(WORDS),
            n_embd=SIZE,
            n_layer=N_BLOCKS,
            n_head=2,
            n_positions=LIMIT,
            bos_token_id=4,
            eos_token_id=4,
        )
        return transformers.GPT2Model(config).eval()
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=SIZE,
        num_hidden_layers=N_BLOCKS,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LIMIT,
    )
    return transformers.BertModel(config).eval()
