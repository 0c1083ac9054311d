"""Matrix capsules as layers: sizes, what they take and give, and that a stack of them starts alive."""

import pytest
import torch
from torch import nn

from torchcaps.layers import Capsules, ConvMatrixCapsules, MatrixCapsules


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_a_stack_on_grids_starts_alive_and_gradients_reach_the_first_layer():
    first = ConvMatrixCapsules((9, 7), 4, 6, stride=2)
    second = ConvMatrixCapsules(first.out_grid, 6, 5, kernel=2, padding=1)
    stack = nn.Sequential(first, second, MatrixCapsules(second.n_out, 3, grid=second.out_grid))
    capsules = Capsules.scored(torch.randn(3, 4 * 63, 4, 4), torch.randn(3, 4 * 63))
    for layer in stack:
        capsules = layer.calibrate(capsules)
        assert capsules.poses.shape == (3, layer.n_out, 4, 4)
        assert 0.2 <= capsules.activity.median() <= 0.7
        assert 0.5 < capsules.poses.square().mean().sqrt() < 2
        assert capsules.activity.std() > 0.005
    torch.testing.assert_close(capsules.score.sigmoid(), capsules.activity)
    inputs = Capsules.scored(torch.randn(3, 4 * 63, 4, 4), torch.randn(3, 4 * 63))
    stack(inputs).activity.square().sum().backward()
    norms = [layer.weight.grad.norm() * layer.weight.norm() for layer in stack]  # of a relative change
    assert max(norms) < 100 * min(norms), norms


def test_inputs_that_say_nothing_are_refused():
    with pytest.raises(ValueError, match=r"MatrixCapsules\.calibrate: the inputs are all zero or not finite"):
        MatrixCapsules(32, 10, 2, 4, 4).calibrate(torch.zeros(2, 32, 8))


def test_plain_poses_are_certain_and_vectors_are_read_as_matrices():
    layer, poses = MatrixCapsules(6, 3, 2, 3, 4), torch.randn(2, 6, 2, 3)
    sure = Capsules.scored(poses, torch.full((2, 6), 30.0))
    torch.testing.assert_close(layer(poses).poses, layer(sure).poses)
    torch.testing.assert_close(layer(poses.flatten(-2)).poses, layer(poses).poses)


def test_moving_what_a_layer_sees_moves_its_outputs():
    """Away from borders: a parent one place further sees what its neighbour saw, and so do all rivals of its
    children.
    """
    layer = ConvMatrixCapsules((12, 12), 2, 3)
    poses, scores = torch.zeros(2, 12, 12, 4, 4), torch.full((2, 12, 12), -100.0)
    poses[:, 4:7, 4:7], scores[:, 4:7, 4:7] = torch.randn(2, 3, 3, 4, 4), 0.0

    def outputs(by: int) -> torch.Tensor:
        moved = [part.roll((by, by), (1, 2)).flatten(0, 2) for part in (poses, scores)]
        return layer(Capsules.scored(*moved)).score.unflatten(-1, (3, 10, 10))

    torch.testing.assert_close(outputs(1)[:, 3:8, 3:8], outputs(0)[:, 2:7, 2:7])


def test_recomputing_changes_no_gradient_and_keeps_less():
    made = [ConvMatrixCapsules((5, 5), 2, 3, recompute=recompute) for recompute in (False, True)]
    made[1].load_state_dict(made[0].state_dict())
    capsules, sizes = Capsules.scored(torch.randn(2, 50, 4, 4), torch.randn(2, 50)), []
    for layer in made:
        kept = {}

        def keep(tensor, kept=kept):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            found = layer(capsules).score.sum()
        found.backward()
        sizes.append(sum(kept.values()))
    torch.testing.assert_close(made[1].weight.grad, made[0].weight.grad)
    assert 3 * sizes[1] < sizes[0]


def test_steps_end_where_the_layer_does():
    layer, capsules = ConvMatrixCapsules((4, 4), 2, 3), Capsules.scored(torch.randn(2, 32, 4, 4), torch.randn(2, 32))
    *_, last = layer.steps(capsules)
    torch.testing.assert_close(last.scores, layer(capsules).score)
    assert last.assignments.shape == (2, 2, 4, 9, 3)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="10 inputs do not fill a grid of 2x2; give n_in as types · 4"):
        MatrixCapsules(10, 3, grid=(2, 2))
    with pytest.raises(
        ValueError, match="coordinates of a grid go to two rows of a pose, got rows=1; give two or more"
    ):
        MatrixCapsules(8, 3, rows=1, grid=(2, 2))
    for power in (0, -1, float("inf")):
        with pytest.raises(
            ValueError, match=f"MatrixCapsules: density_power must be a finite number above 0, got {power}"
        ):
            MatrixCapsules(8, 3, density_power=power)
    with pytest.raises(ValueError, match=r"expects \[..., 32 capsules, 4 rows, 4 dimensions each\]"):
        ConvMatrixCapsules((4, 4), 2, 3)(torch.randn(2, 16, 4, 4))


def test_the_backend_is_named_for_every_layer():
    layers = [MatrixCapsules(32, 10, n_types=2), ConvMatrixCapsules((5, 5), 2, 3)]
    assert [layer.backend_here(compiling, 64) for layer in layers for compiling in (False, True)] == [
        "blocked",
        "reference",
    ] * 2
