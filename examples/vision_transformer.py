"""Capsules on top of a vision transformer. pip install 'torchcaps[sentences]'

The transformer is tiny and untrained, so that nothing is fetched, and it is trained with the head. Yours is
`AutoModel.from_pretrained("facebook/dinov2-small")`, say, and stays frozen if you leave out `train_encoder`. The task:
is a bright spot in the upper or the lower half of a noisy image? Runs in seconds on a CPU.

python examples/vision_transformer.py
"""

import torch
from torch import Tensor
from transformers import ViTConfig, ViTModel

from torchcaps import CapsuleHead

SIDE, PATCH = 16, 4


def draw(n: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images [n 1 16 16] with one bright patch, and their class."""
    rows, columns = torch.randint(SIDE // PATCH, (2, n), generator=rng)
    spots = torch.zeros(n, SIDE // PATCH, SIDE // PATCH)
    spots[torch.arange(n), rows, columns] = 1
    images = spots.repeat_interleave(PATCH, 1).repeat_interleave(PATCH, 2)[:, None]
    return images + 0.2 * torch.randn(images.shape, generator=rng), (rows >= 2).long()


torch.manual_seed(0)
rng = torch.Generator().manual_seed(1)
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
encoder = ViTModel(ViTConfig(image_size=SIDE, patch_size=PATCH, num_channels=1, **sizes), add_pooling_layer=False)
model = CapsuleHead(encoder, n_classes=2, train_encoder=True, d_features=16, n_parts=8)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(80):
    images, labels = draw(64, rng)
    loss = torch.nn.functional.cross_entropy(model(pixel_values=images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step}: loss {loss:.3f}")

model.eval()
with torch.no_grad():
    images, labels = draw(500, rng)
    right = (model(pixel_values=images).argmax(-1) == labels).float().mean()
print(f"test accuracy {100 * right:.1f} %")
