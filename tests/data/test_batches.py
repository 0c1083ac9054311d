import pytest
import torch

from torchcaps.data import Labelled
from torchcaps.data.batches import Batches

CPU = torch.device("cpu")


def test_an_epoch_uses_every_image_at_most_once_and_leaves_the_remainder_out(rng):
    data = Labelled(torch.arange(50, dtype=torch.uint8).view(50, 1, 1, 1), torch.arange(50))
    batches = Batches(data, 16, (), CPU)
    epochs = []
    for _ in range(2):
        batches.new_epoch(rng)
        epochs.append(torch.cat([batches.at(torch.tensor(step)).labels for step in range(batches.n_steps)]))
    assert batches.n_steps == 3
    assert all(len(epoch.unique()) == 48 for epoch in epochs)
    assert set(range(50)) - set(epochs[0].tolist()) != set(range(50)) - set(epochs[1].tolist())
    for image, label in zip(batches.at(torch.tensor(1)).images, batches.at(torch.tensor(1)).labels, strict=True):
        assert round(image.item() * 255) == label


def test_more_images_in_a_batch_than_there_are_is_refused():
    data = Labelled(torch.zeros(5, 1, 2, 2, dtype=torch.uint8), torch.zeros(5, dtype=torch.long))
    with pytest.raises(ValueError, match="a batch of 8 was asked for and there are 5 training images"):
        Batches(data, 8, (), CPU)
