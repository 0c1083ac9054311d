"""On CUDA convolutions lie channels last and every other weight as it was made: a routing would copy its transforms."""

import pytest
import torch

from torchcaps import CapsNet
from torchcaps.layers import ConvAutoencoder
from torchcaps.layers.memory_format import convolutions_channels_last, to_device

LAST = torch.channels_last
SMALL = {"channels": 8, "n_types": 4, "hidden": (8, 8)}


def test_filters_lie_channels_last_and_transforms_as_they_were():
    model = convolutions_channels_last(CapsNet((3, 28, 28), 10, **SMALL))
    moved = {name for name, weight in model.named_parameters() if not weight.is_contiguous()}
    assert moved == {"conv.weight", "primary.weight"}
    assert all(model.get_parameter(name).is_contiguous(memory_format=LAST) for name in moved)
    assert model.classes.weight.ndim == 4  # what the whole model's memory format would move


def test_filters_that_are_plain_parameters_move_too():
    assert not convolutions_channels_last(ConvAutoencoder((2, 28, 28), channels=4)).second.is_contiguous()


def test_the_layout_changes_no_value(rng):
    model, images = CapsNet((1, 28, 28), 10, **SMALL), torch.rand(2, 1, 28, 28, generator=rng)
    wanted = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    poses = model(images).poses
    moved = convolutions_channels_last(model)
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in moved.state_dict().items())
    torch.testing.assert_close(moved(images).poses, poses)


@pytest.mark.parametrize(("device", "contiguous"), [("cpu", True), ("cuda", False)])
def test_only_a_gpu_wants_channels_last(monkeypatch, device, contiguous):
    model = CapsNet((1, 28, 28), 10, **SMALL)
    monkeypatch.setattr(type(model), "to", lambda self, device: self)  # there is no GPU here
    assert to_device(model, torch.device(device)).primary.weight.is_contiguous() == contiguous
