"""A head of capsules on any transformer."""

import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("transformers", reason="pip install 'torchcaps[sentences]'")

from tests.transformers_tiny import LIMIT, model, tokenizer, transformers
from torchcaps import CapsuleHead

TEXTS = ["the film is great", "dull", "not a great film"]
SMALL = {"d_features": 8, "n_parts": 4}
KINDS = ["encoder", "decoder"]


def batch_of(kind: str, texts=TEXTS, side: str = "right"):
    words = tokenizer(kind)
    words.pad_token = words.pad_token or words.eos_token
    words.padding_side = side
    return words(texts, padding=True, return_tensors="pt")


def drawn(head: CapsuleHead) -> CapsuleHead:
    """Betas of zero hide mistakes."""
    for name, parameter in head.head.named_parameters():
        if "beta" in name or name == "depth":
            torch.nn.init.normal_(parameter)
    return head


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing_on_either_side(kind, side):
    """On the left too, though both transformers would count places from there, padding included."""
    head = drawn(CapsuleHead(model(kind), 3, **SMALL)).eval()
    alone = torch.cat([head(**batch_of(kind, [text])) for text in TEXTS])
    batch = batch_of(kind, side=side)
    torch.testing.assert_close(head(**batch), alone, rtol=1e-4, atol=1e-4)
    places = torch.arange(batch["input_ids"].shape[1]).expand_as(batch["input_ids"])
    counted = head(**batch, position_ids=places)  # whoever knows better is listened to
    assert torch.allclose(counted, alone, rtol=1e-4, atol=1e-4) == (side == "right")


def positions(kind: str):
    """A transformer for 12 tokens whose table of positions has two places in front that no token gets."""
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 12,
    }
    config, network = getattr(transformers, f"{kind}Config"), getattr(transformers, f"{kind}Model")
    return network(config(**sizes, max_position_embeddings=14, pad_token_id=1)).eval()


@pytest.mark.parametrize("kind", [*KINDS, "Roberta", "MPNet"])
def test_texts_longer_than_the_encoder_takes_are_one_clear_error(kind):
    encoder = model(kind) if kind in KINDS else positions(kind)
    head, ids = CapsuleHead(encoder, 2, **SMALL).eval(), torch.full((2, LIMIT + 1), 5)
    assert head(ids[:, :LIMIT], torch.ones(2, LIMIT).long()).isfinite().all()
    with pytest.raises(
        ValueError, match="the texts have 13 tokens, padding included, and the encoder takes 12; cut them"
    ):
        head(ids)


def test_transformers_without_a_table_of_positions_have_no_limit():
    sizes = {
        "vocab_size": 12,
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 16,
        "num_layers": 1,
        "num_heads": 2,
        "decoder_start_token_id": 0,
    }
    head = CapsuleHead(transformers.T5Model(transformers.T5Config(**sizes)), 2, **SMALL)
    assert head.limit is None and head(torch.full((1, 40), 5)).shape == (1, 2)


def test_an_empty_text_is_one_clear_error():
    head, ids = CapsuleHead(model("encoder"), 2, **SMALL), torch.full((3, 4), 5)
    with pytest.raises(ValueError, match="text 2 of 3 is empty, all padding; give it a word, or leave it out"):
        head(ids, torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]]))
    with pytest.raises(ValueError, match=r"attention_mask must be \[3, 4\], one number per token, got \[3, 5\]"):
        head(ids, torch.ones(3, 5).long())


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_encoder_gets_no_gradient_and_no_dropout(kind):
    encoder = model(kind)
    head = CapsuleHead(encoder, 2, **SMALL).train()
    assert head.head.training and not encoder.training
    loss = torch.nn.functional.cross_entropy(head(**batch_of(kind)), torch.tensor([1, 0, 0]))
    loss.backward()
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert head.head.features[0].weight.grad is not None
    torch.testing.assert_close(head(**batch_of(kind)), head(**batch_of(kind)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_encoder_learns_too(kind):
    encoder = model(kind)
    head = drawn(CapsuleHead(encoder, 2, train_encoder=True, **SMALL)).train()
    assert encoder.training
    batch, labels = batch_of(kind), torch.tensor([1, 0, 0])
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
    losses = []
    for _ in range(12):
        loss = torch.nn.functional.cross_entropy(head(**batch), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0], losses


@pytest.mark.parametrize("train_encoder", [False, True])
def test_it_comes_back_from_a_file(tmp_path, train_encoder):
    head, path = (
        drawn(CapsuleHead(model("encoder"), 3, train_encoder=train_encoder, **SMALL)).eval(),
        tmp_path / "head.safetensors",
    )
    with torch.no_grad():  # as if it had been trained
        head.encoder.embeddings.word_embeddings.weight.mul_(1.5 if train_encoder else 1)
    head.save(path)
    again = CapsuleHead.load(path, model("encoder")).eval()
    assert again.train_encoder == train_encoder
    batch = batch_of("encoder")
    torch.testing.assert_close(again(**batch), head(**batch), rtol=0, atol=0)
    frozen = path.stat().st_size
    assert (
        frozen > sum(p.numel() * 4 for p in head.encoder.parameters())
    ) == train_encoder  # frozen weights are not copied


def test_wrong_files_and_encoders_are_named(tmp_path):
    path = tmp_path / "head.safetensors"
    CapsuleHead(model("encoder"), 3, **SMALL).save(path)
    config = transformers.BertConfig(
        vocab_size=12, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    with pytest.raises(ValueError, match=r"was saved with another encoder \(size mismatch for depth"):
        CapsuleHead.load(path, transformers.BertModel(config))
    path.write_bytes(b"not this")
    with pytest.raises(ValueError, match="is not a whole file of a CapsuleHead"):
        CapsuleHead.load(path, model("encoder"))
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="is a safetensors file of something else"):
        CapsuleHead.load(path, model("encoder"))
    with pytest.raises(ValueError, match=r"CapsuleHead expects token numbers \[b, at least one token\], got \[2, 0\]"):
        CapsuleHead(model("encoder"), 3, **SMALL)(torch.zeros(2, 0, dtype=torch.long))


def test_it_says_what_each_class_used(tmp_path):
    head, batch = drawn(CapsuleHead(model("encoder"), 3, **SMALL)), batch_of("encoder")
    used = head.used(**batch)
    assert used.shape == (3, 3, batch["input_ids"].shape[1], 3)
    assert not used.sum(1)[batch["attention_mask"] == 0].any()
    assert used.min() >= 0 and used.sum(1).max() <= 1 + 1e-6


def vision():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, num_channels=1, **sizes)).eval()


def test_images_go_through_a_vision_transformer(tmp_path):
    """Four patches and the class token in three layers; as images alone and as an image processor names them."""
    encoder, images = vision(), torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    head = drawn(CapsuleHead(encoder, 3, **SMALL)).eval()
    said = encoder(images, output_hidden_states=True)
    states = torch.stack([*said.hidden_states[:-1], said.last_hidden_state], dim=2)
    torch.testing.assert_close(head(pixel_values=images), head.head(states).logit)
    torch.testing.assert_close(head(images), head(pixel_values=images))
    assert head.used(images).shape == (3, 3, 5, 3)
    head.save(tmp_path / "head.safetensors")
    torch.testing.assert_close(CapsuleHead.load(tmp_path / "head.safetensors", vision()).eval()(images), head(images))
    head(images).sum().backward()
    assert all(parameter.grad is None for parameter in encoder.parameters())


def test_a_vision_transformer_of_several_widths_is_refused():
    sizes = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2]}
    head = CapsuleHead(transformers.SwinModel(transformers.SwinConfig(**sizes, window_size=4)), 2, **SMALL)
    with pytest.raises(ValueError, match="hidden states of one shape, and those of SwinModel have 2"):
        head(torch.rand(1, 3, 32, 32))


def test_texts_for_images_and_images_for_texts_are_refused():
    with pytest.raises(ValueError, match=r"expects pixel_values \[b, c, h, w\] and no mask, got \[2, 4\]"):
        CapsuleHead(vision(), 2, **SMALL)(torch.full((2, 4), 5))
    with pytest.raises(ValueError, match=r"expects token numbers .* got no input_ids"):
        CapsuleHead(model("encoder"), 2, **SMALL)(pixel_values=torch.rand(2, 1, 8, 8))
