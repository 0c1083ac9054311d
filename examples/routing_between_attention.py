"""A routing layer between blocks of self-attention: forty tokens become eight capsules, which attend to each other.

Heinsen 2019 proposes it in section 7; `LazyRoutedCapsules` (Heinsen 2022) forms no votes, so sequences may be long.
The task: do more of the tokens of a sequence lie below 5 or above? Runs in seconds on a CPU, with no download.

python examples/routing_between_attention.py
"""

import torch
from torch import Tensor, nn

from torchcaps import Capsules, LazyRoutedCapsules


class RoutedTransformer(nn.Module):
    """Token numbers [b n] and where they are tokens [b n] -> logits [b 2]."""

    def __init__(self, n_tokens: int = 10, width: int = 32, n_capsules: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(n_tokens, width)
        self.before, self.after = (
            nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.route = LazyRoutedCapsules(None, n_capsules, width, width)  # any number of tokens -> eight capsules
        self.classes = nn.Linear(width, 2)

    def forward(self, ids: Tensor, present: Tensor) -> Tensor:
        vectors = self.before(self.embed(ids), src_key_padding_mask=~present)
        capsules = self.route(Capsules.of(vectors, present))  # padding counts for nothing
        return self.classes(self.after(capsules.poses).mean(1))


def draw(n: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Sequences of 9 to 40 tokens, each with most of them on one side."""
    labels = torch.randint(2, (n,), generator=rng)
    mostly = torch.rand(n, 40, generator=rng) < 0.75
    ids = torch.randint(5, (n, 40), generator=rng) + 5 * (mostly == labels.bool()[:, None])
    present = torch.arange(40) < torch.randint(9, 41, (n, 1), generator=rng)
    return ids, present, ((ids >= 5) & present).sum(1).mul(2).gt(present.sum(1)).long()


torch.manual_seed(0)
rng = torch.Generator().manual_seed(1)
model = RoutedTransformer()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(60):
    ids, present, labels = draw(64, rng)
    loss = nn.functional.cross_entropy(model(ids, present), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"step {step + 1}: loss {loss.item():.3f}")

ids, present, labels = draw(500, rng)
with torch.no_grad():
    padding = torch.randint(10, ids.shape, generator=rng)
    torch.testing.assert_close(model(torch.where(present, ids, padding), present), model(ids, present))
    right = (model.eval()(ids, present).argmax(-1) == labels).float().mean().item()
print(f"test accuracy {100 * right:.1f} %")
