import pytest
import torch

from torchcaps.layers import Decoder


def test_decoder_draws_only_what_is_kept(rng):
    decoder, poses = Decoder(3, 4, (1, 5, 6), hidden=(8,)), torch.randn(2, 3, 4, generator=rng)
    keep = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    others = poses + torch.randn(2, 3, 4, generator=rng) * (1 - keep).unsqueeze(-1)
    pictures = decoder(poses, keep)
    assert pictures.shape == (2, 1, 5, 6)
    assert pictures.min() > 0
    assert pictures.max() < 1
    torch.testing.assert_close(decoder(others, keep), pictures)
    assert not torch.allclose(decoder(poses, 1 - keep), pictures)


def test_decoder_has_a_layer_more_than_hidden_sizes():
    kinds = [type(layer).__name__ for layer in Decoder(3, 4, (1, 5, 6)).net]
    assert kinds == ["Linear", "ReLU", "Linear", "ReLU", "Linear", "Sigmoid"]


def test_decoder_refuses_other_shapes():
    decoder = Decoder(3, 4, (1, 5, 6))
    with pytest.raises(ValueError, match=r"Decoder expects \[..., 3 capsules, 4 dimensions each\], got \[2, 1, 4\]"):
        decoder(torch.ones(2, 1, 4), torch.ones(2, 1))
    with pytest.raises(ValueError, match=r"Decoder: keep must be \[2, 3\], one number per capsule, got \[2, 1\]"):
        decoder(torch.ones(2, 3, 4), torch.ones(2, 1))
