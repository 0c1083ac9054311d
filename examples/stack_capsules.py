"""A deep network of five capsule layers on images of your own. Runs in a minute on a CPU, with no download.

python examples/stack_capsules.py
"""

import torch
from torch import nn

from torchcaps import ConvRoutedCapsules, EMCapsules, PrimaryCapsules, RoutedCapsules, calibrate, margin_loss
from torchcaps.data import load

torch.manual_seed(0)
images, labels = load("generated-16", "train")  # bytes [512, 1, 16, 16]; yours go here
images = images.float() / 255

first = nn.Sequential(nn.Conv2d(1, 32, kernel_size=5), nn.ReLU())  # [b, 32, 12, 12]
primary = PrimaryCapsules(32, n_types=4, d_out=4, kernel=5, stride=1)  # 4 types on an 8x8 grid
middle = ConvRoutedCapsules(
    grid=(8, 8), n_in_types=4, n_out_types=6, d_in=4, d_out=8, kernel=4, stride=2
)  # on a 3x3 grid
parts = RoutedCapsules(n_in=middle.n_out, n_out=24, d_in=8, d_out=16)
wholes = EMCapsules(n_in=24, n_out=16, rows=4, d_in=4, d_out=4)  # reads vectors of 16 as matrices of 4x4
top = RoutedCapsules(n_in=16, n_out=10, d_in=16, d_out=16)
model = nn.Sequential(first, primary, middle, parts, wholes, top)  # every layer takes and gives Capsules
calibrate(model, images[:64])  # scale the layers to these images, so that no capsule starts dead

optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(6):
    for batch in torch.randperm(len(labels)).split(64):
        activity = model(images[batch]).activity  # probability of each class
        loss = margin_loss(activity, nn.functional.one_hot(labels[batch], 10).float()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}")

test_images, test_labels = load("generated-16", "test")
with torch.no_grad():
    right = (model(test_images.float() / 255).activity.argmax(-1) == test_labels).float().mean().item()
print(f"test accuracy {100 * right:.1f} %")
