"""InvertedCapsNet (Tsai 2020)."""

import pytest
import torch

from torchcaps.models import InvertedCapsNet
from torchcaps.models.inverted_capsnet import _fields
from torchcaps.ops import inverted_routing

SMALL = {"channels": (4, 4), "n_types": 2, "d_pose": 4, "rows": 2}


@pytest.mark.parametrize(("n_blocks", "wanted"), [(1, 1_343_985), (2, 1_713_393)])
def test_parameters_by_hand(n_blocks, wanted):
    with torch.device("meta"):
        found = sum(p.numel() for p in InvertedCapsNet(n_blocks=n_blocks).parameters())
    block = lambda c_in, c_out: 9 * c_in * c_out + 9 * c_out * c_out + 4 * c_out  # noqa: E731
    stem = 27 * 64 + 2 * 64 + block(64, 64) + block(64, 128) + 64 * 128 + 2 * 128
    stem += (n_blocks - 1) * (block(64, 64) + block(128, 128))
    primary = 9 * 128 * 512 + 512 + 2 * 16
    local, dense = 2 * (9 * 32 * 32 * 16 + 32), (9 * 32 * 32 * 16 + 32) + (32 * 10 * 16 + 32)
    assert found == stem + primary + local + dense + 17 == wanted


def test_a_place_sees_its_field():
    assert _fields((3, 5)).tolist() == [[0, 1, 2, 5, 6, 7, 10, 11, 12], [2, 3, 4, 7, 8, 9, 12, 13, 14]]
    with pytest.raises(ValueError, match="a grid of 2x6 capsules is too small for a field of 3x3; give larger images"):
        _fields((2, 6))


def test_further_iterations_update_all_layers_from_the_poses_of_the_one_before():
    torch.manual_seed(0)
    model, images = InvertedCapsNet((1, 14, 14), 3, n_conv=1, n_iters=3, **SMALL).eval(), torch.rand(2, 1, 14, 14)

    def update(level, below, above):
        seen = below[:, level.field] if level.field is not None else below[:, None]
        return inverted_routing(
            seen.flatten(2, 3), level.weight, 1, rows=2, scale=level.scale, bias=level.bias, start=above
        )

    one, two, three = model.levels
    poses = model.primary_poses(images)
    a = update(one, poses, None)
    b = update(two, a, None)
    c = update(three, b, None)
    for _ in range(2):
        a, b, c = update(one, poses, a), update(two, a, b), update(three, b, c)
    torch.testing.assert_close(model(images).poses, c.squeeze(1))


@pytest.mark.parametrize("size", [(13, 13), (14, 19)])
def test_every_parameter_learns(size):
    torch.manual_seed(0)
    model = InvertedCapsNet((3, *size), 4, **SMALL)
    found = model(torch.rand(4, 3, *size))
    assert found.poses.shape == (4, 4, 4) and 0.05 < found.activity.median() < 0.95
    torch.nn.functional.cross_entropy(found.score, torch.arange(4)).backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())


def test_the_stem_has_blocks():
    with pytest.raises(ValueError, match="InvertedCapsNet: n_blocks must be a whole number of at least 1, got 0"):
        InvertedCapsNet(n_blocks=0)
