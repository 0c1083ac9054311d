"""Transforms shared by the places of a type, for every routing that has transforms."""

import pytest
import torch

from torchcaps.layers import ROUTINGS, CapsuleLayer, Capsules, EMCapsules, MatrixCapsules

N_TYPES, PLACES, N_OUT = 3, 4, 2
SHARING = [name for name in ROUTINGS if name != "ladder"]


def inputs(seed: int = 0) -> Capsules:
    rng = torch.Generator().manual_seed(seed)
    poses, score = torch.randn(5, N_TYPES * PLACES, 8, generator=rng), torch.randn(5, N_TYPES * PLACES, generator=rng)
    return Capsules.scored(poses, score)


def repeated(shared: CapsuleLayer, name: str) -> CapsuleLayer:
    """Build the layer with one transform per input, equal at all places of a type."""
    whole = CapsuleLayer(N_TYPES * PLACES, N_OUT, 8, 8, name)
    wanted = whole.state_dict()
    whole.load_state_dict(
        {
            key: value if value.shape == wanted[key].shape else value.repeat_interleave(PLACES, 0)
            for key, value in shared.state_dict().items()
        }
    )
    return whole


@pytest.mark.parametrize("name", SHARING)
def test_a_shared_transform_is_the_same_one_at_every_place(name):
    torch.manual_seed(0)
    shared = CapsuleLayer(N_TYPES * PLACES, N_OUT, 8, 8, name, n_types=N_TYPES)
    whole = repeated(shared, name)
    count = {layer: sum(parameter.numel() for parameter in layer.parameters()) for layer in (shared, whole)}
    assert count[shared] < 0.8 * count[whole]
    for layer in (shared, whole):
        layer.zero_grad()
        found = layer(inputs())
        (found.poses.square().sum() + found.confidence.square().sum()).backward()
    torch.testing.assert_close(shared(inputs()), whole(inputs()), rtol=1e-4, atol=1e-5)
    for (key, one), many in zip(shared.named_parameters(), whole.parameters(), strict=True):
        summed = many.grad if one.shape == many.shape else many.grad.unflatten(0, (N_TYPES, PLACES)).sum(1)
        torch.testing.assert_close(one.grad, summed, rtol=1e-3, atol=1e-4, msg=lambda said, key=key: f"{key}: {said}")


@pytest.mark.parametrize("name", SHARING)
def test_a_calibrated_layer_with_shared_transforms_is_alive(name):
    torch.manual_seed(0)
    layer = CapsuleLayer(16 * 9, 12, 16, 16, name, n_types=16)
    found = layer.calibrate(Capsules.scored(torch.randn(32, 144, 16), torch.randn(32, 144)))
    least = 0.05 if name == "self-routing" else 0.2  # its activities sum to one
    assert least <= found.activity.median() <= 0.7 and found.activity.std() > 1e-3


def test_types_that_do_not_fit_are_refused():
    for name in SHARING:
        with pytest.raises(ValueError, match=r"needs n_types that divides n_in; got n_types=5, n_in=12"):
            CapsuleLayer(12, 2, 8, 8, name, n_types=5)
    with pytest.raises(ValueError, match=r"a ladder .* has no transforms per type, got n_types=3; leave it out"):
        CapsuleLayer(12, 2, 8, 8, "ladder", n_types=3)
    with pytest.raises(ValueError, match=r"sharing='places' needs n_types that divides n_in; got n_types=None"):
        EMCapsules(12, 2, 4, 2, 2, sharing="places")
    with pytest.raises(ValueError, match=r"12 inputs on a grid of 2x2 have 3 types, got n_types=6"):
        MatrixCapsules(12, 2, grid=(2, 2), n_types=6)
