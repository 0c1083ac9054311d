"""A head of capsules on any transformer."""

import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("transformers", reason="pip install 'torchcaps[sentences]'")

from tests.transformers_tiny import model, tokenizer
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
def test_padding_changes_nothing_on_either_side(side):
    head = drawn(CapsuleHead(model("encoder"), 3, **SMALL)).eval()
    together = head(**batch_of("encoder", side=side))
    assert together.shape == (3, 3)
    if side == "right":  # an encoder counts places from the left, padding included
        alone = torch.cat([head(**batch_of("encoder", [text])) for text in TEXTS])
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


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
    head, path = drawn(CapsuleHead(model("encoder"), 3, train_encoder=train_encoder, **SMALL)).eval(), tmp_path / "head.safetensors"
    with torch.no_grad():  # as if it had been trained
        head.encoder.embeddings.word_embeddings.weight.mul_(1.5 if train_encoder else 1)
    head.save(path)
    again = CapsuleHead.load(path, model("encoder")).eval()
    assert again.train_encoder == train_encoder
    batch = batch_of("encoder")
    torch.testing.assert_close(again(**batch), head(**batch), rtol=0, atol=0)
    frozen = path.stat().st_size
    assert (frozen > sum(p.numel() * 4 for p in head.encoder.parameters())) == train_encoder  # frozen weights are not copied


def test_wrong_files_and_encoders_are_named(tmp_path):
    path = tmp_path / "head.safetensors"
    CapsuleHead(model("encoder"), 3, **SMALL).save(path)
    import transformers

    config = transformers.BertConfig(vocab_size=12, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
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
