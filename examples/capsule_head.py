"""Capsules on top of a transformer: five lines, marked below. pip install 'torchcaps[sentences]'

The transformer here is tiny and untrained, so that nothing is fetched; yours is `AutoModel.from_pretrained(...)` and
stays frozen
if you leave out `train_encoder`. Runs in seconds on a CPU.

python examples/capsule_head.py
"""

import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from torchcaps import CapsuleHead

torch.manual_seed(0)
rng = torch.Generator().manual_seed(1)
GOOD, BAD, PLAIN = ["great", "lovely", "warm"], ["dull", "awful", "slow"], ["the", "film", "is", "a", "scene"]
words = ["[PAD]", *GOOD, *BAD, *PLAIN]
plain = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[PAD]"))
plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]")


def draw(n: int) -> tuple[list[str], torch.Tensor]:
    """Sentences of three to eight words, one of which says what to think of it."""
    labels = torch.randint(2, (n,), generator=rng)
    texts = []
    for label in labels.tolist():
        others = [
            PLAIN[int(torch.randint(len(PLAIN), (), generator=rng))]
            for _ in range(int(torch.randint(2, 8, (), generator=rng)))
        ]
        others.insert(
            int(torch.randint(len(others) + 1, (), generator=rng)),
            (BAD, GOOD)[label][int(torch.randint(3, (), generator=rng))],
        )
        texts.append(" ".join(others))
    return texts, labels


sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
encoder = BertModel(BertConfig(vocab_size=len(words), **sizes))  # 1
model = CapsuleHead(encoder, n_classes=2, train_encoder=True, d_features=16, n_parts=8)  # 2
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(60):
    texts, labels = draw(32)
    batch = tokenizer(texts, padding=True, return_tensors="pt")  # 3
    scores = model(batch["input_ids"], batch["attention_mask"])  # 4
    loss = torch.nn.functional.cross_entropy(scores, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"step {step + 1}: loss {loss.item():.3f}")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "head.safetensors"
    model.save(path)  # 5
    model = CapsuleHead.load(path, encoder).eval()

texts, labels = draw(200)
batch = tokenizer(texts, padding=True, return_tensors="pt")
with torch.no_grad():
    scores = model(batch["input_ids"], batch["attention_mask"])
    used = model.used(batch["input_ids"][:1], batch["attention_mask"][:1])[0, int(scores[0].argmax())].sum(1)
print(
    f"{texts[0]!r} is taken for {('bad', 'good')[int(scores[0].argmax())]}; "
    f"used of its words, over all layers: {used.tolist()}"
)
print(f"test accuracy {100 * (scores.argmax(-1) == labels).float().mean():.1f} %")
