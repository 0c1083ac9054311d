"""The ladder's equations by hand (Jeong 2019): which capsules are kept, what they predict, what is told of them
again.
"""

from math import exp, sqrt

import pytest
import torch

from torchcaps.ops import code_loss, keep_most_active, ladder_activity, misfit, propagate, regress, squash
from torchcaps.ops.ladder import (
    Made,
    disagreement,
    distance_loss,
    mean_code_loss,
    mean_distance,
    predictions,
    propagate_made,
    regress_made,
)  # fmt: skip
from torchcaps.ops.squash import direction


def row(*activity: float) -> torch.Tensor:
    """Capsules of one number, as long as they are active."""
    return torch.tensor(activity).unsqueeze(-1)


def keep(*activity: float, n_kept: int):
    return keep_most_active(row(*activity), torch.tensor(activity), n_kept)


# the pruning layer


def test_figure_2_of_the_paper():
    """The first, fourth and sixth of six capsules are kept: c = (1, 0, 0, 1, 0, 1), rows in their order."""
    kept = keep(0.7, 0.1, 0.3, 0.9, 0.2, 0.8, n_kept=3)
    assert kept.code.tolist() == [1, 0, 0, 1, 0, 1]
    assert kept.index.tolist() == [0, 3, 5]
    assert kept.poses.flatten().tolist() == pytest.approx([0.7, 0.9, 0.8])  # not 0.9, 0.8, 0.7
    assert kept.weights.tolist() == [1, 1, 1]


def test_of_equals_the_first_are_kept():
    assert keep(0.5, 0.9, 0.5, 0.5, 0.1, n_kept=3).index.tolist() == [0, 1, 2]
    assert keep(0.5, 0.5, 0.5, 0.9, n_kept=2).index.tolist() == [0, 3]
    assert keep(0.0, 0.0, 0.0, 0.0, n_kept=2).index.tolist() == [0, 1]


def test_ties_and_order_are_those_of_a_stable_sort(rng):
    activity = torch.randint(0, 6, (5, 3, 40), generator=rng).float() / 6
    poses = torch.randn(5, 3, 40, 4, generator=rng)
    kept = keep_most_active(poses, activity, 11)
    wanted = activity.argsort(dim=-1, descending=True, stable=True)[..., :11].sort(-1).values
    assert torch.equal(kept.index, wanted)
    assert torch.equal(kept.code.nonzero()[:, -1].view(5, 3, 11), wanted)
    assert torch.equal(kept.poses, torch.take_along_dim(poses, wanted.unsqueeze(-1), -2))


def test_kept_capsules_may_lie_in_the_order_of_their_activity():
    activity = torch.tensor([0.2, 0.9, 0.5, 0.9, 0.1])
    poses = row(*activity.tolist())
    by_place, by_activity = (keep_most_active(poses, activity, 3, order) for order in ("index", "activity"))
    assert by_place.index.tolist() == [1, 2, 3] and by_activity.index.tolist() == [1, 3, 2]  # of equals the first
    assert torch.equal(by_place.code, by_activity.code)  # the code tells which were kept, in no order
    assert torch.equal(by_activity.poses, poses[[1, 3, 2]])
    with pytest.raises(ValueError, match="order must be one of index, activity; got 'size'"):
        keep_most_active(poses, activity, 3, "size")


def test_capsules_that_are_not_there_have_no_weight_and_no_code():
    kept = keep(0.0, 0.5, 0.0, 0.25, n_kept=3)
    assert kept.code.tolist() == [0, 1, 0, 1]
    assert (kept.index.tolist(), kept.weights.tolist()) == ([0, 1, 3], [0, 1, 1])


def test_all_may_be_kept_and_one():
    kept = keep(0.2, 0.1, 0.3, n_kept=3)
    assert kept.code.tolist() == [1, 1, 1] and kept.index.tolist() == [0, 1, 2]
    kept = keep(0.2, 0.1, 0.3, n_kept=1)
    assert kept.code.tolist() == [0, 0, 1] and kept.poses.item() == pytest.approx(0.3)


def test_only_kept_capsules_get_a_gradient_and_the_code_gives_none(rng):
    poses = torch.randn(2, 6, 3, generator=rng, dtype=torch.float64, requires_grad=True)
    kept = keep_most_active(poses, poses.norm(dim=-1), 2)
    assert not kept.code.requires_grad and not kept.weights.requires_grad
    kept.poses.sum().backward()
    torch.testing.assert_close(poses.grad, kept.code.unsqueeze(-1).expand_as(poses))


def test_what_is_not_a_number_does_not_point_beyond_the_row():
    kept = keep_most_active(torch.ones(4, 2), torch.full((4,), torch.nan), 2)
    assert kept.index.max() < 4


@pytest.mark.parametrize("n_kept", [0, 5])
def test_more_or_fewer_than_there_are_cannot_be_kept(n_kept):
    with pytest.raises(ValueError, match=f"{n_kept} of 4 capsules cannot be kept; ask for 1 to 4"):
        keep_most_active(torch.ones(4, 2), torch.ones(4), n_kept)


def test_an_activity_for_every_capsule_is_wanted():
    with pytest.raises(ValueError, match=r"one activity per capsule, \[2, 4\]; got \[2, 5\]"):
        keep_most_active(torch.ones(2, 4, 3), torch.ones(2, 5), 2)


# Eq. 1 to 4


def test_equation_1_by_hand():
    """Two kept capsules of two numbers, one parent of two. The first keeps its pose, the second swaps its numbers and
    doubles them.
    """
    poses = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    transforms = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [2.0, 0.0]]]])  # [j k d e]
    shares = torch.tensor([[0.5, 0.25]])
    assert predictions(poses, transforms).tolist() == [[[1, 2], [8, 6]]]
    assert propagate(poses, transforms, shares).tolist() == [[0.5 * 1 + 0.25 * 8, 0.5 * 2 + 0.25 * 6]]


def test_equations_2_and_3_by_hand():
    """Rows (3, 4) and (0.3, 0.4) of lengths 5 and 0.5: each is squashed by itself, to 25/26 and 0.25/1.25."""
    regressors = torch.tensor([[[[3.0, 0.0], [0.0, 4.0]], [[0.3, 0.0], [0.0, 0.4]]]])  # [j k d e]
    told = regress(torch.tensor([[1.0, 1.0]]), regressors)
    torch.testing.assert_close(told, torch.tensor([[[0.6 * 25 / 26, 0.8 * 25 / 26], [0.6 * 0.2, 0.8 * 0.2]]]))
    whole = torch.tensor([[[3.0, 4.0], [0.3, 0.4]]]).flatten(-2)
    assert not torch.allclose(squash(whole), told.flatten(-2))  # as one long vector it would be another


def test_what_a_last_layer_makes_by_hand():
    """One net, one row, one hidden number 2, m = 2 numbers of a kept capsule, e = 1: matrices 2 · (3, 5) + (1, -1) =
    (7, 9).
    """
    made = Made(torch.tensor([[[2.0]]]), torch.tensor([[[3.0], [5.0]]]), torch.tensor([[[1.0], [-1.0]]]))
    assert made.matrices().tolist() == [[[[7], [9]]]]
    assert propagate_made(torch.tensor([[[10.0, 1.0]]]), made).tolist() == [[[79]]]
    assert regress_made(torch.tensor([[[0.5]]]), made).tolist() == [[[3.5, 4.5]]]


def some_made(rng, n=3, r=5, h=4, m=8, e=2) -> tuple[torch.Tensor, ...]:
    """Poses by shares, poses of parents, and what `Made` is of."""
    shapes = (n, r, m), (n, r, e), (n, r, h), (n, m, h * e), (n, m, e)
    return tuple(torch.randn(*shape, generator=rng, dtype=torch.float64).requires_grad_() for shape in shapes)


def test_matrices_that_are_never_formed_give_what_formed_ones_give(rng):
    """k = 2 capsules of d = 4 numbers; each row of each net is an image of its own."""
    weighted, pose_sum, *parts = some_made(rng)
    matrices = Made(*parts).matrices().unflatten(2, (2, 4)).unsqueeze(2)  # [n r j k d e], j = 1
    up = propagate(weighted.unflatten(2, (2, 4)), matrices, torch.ones(3, 5, 1, 2, dtype=torch.float64)).squeeze(2)
    down = regress(pose_sum.unsqueeze(2), matrices).flatten(2)
    made = Made(*parts)
    found = propagate_made(weighted, made), squash(regress_made(pose_sum, made).unflatten(2, (2, 4))).flatten(2)
    torch.testing.assert_close(found, (up, down), rtol=1e-12, atol=1e-12)
    inputs, scale = (weighted, pose_sum, *parts), torch.randn(3, 5, 2, generator=rng, dtype=torch.float64)
    grads = [torch.autograd.grad((a * scale).sum() + b.square().sum(), inputs) for a, b in (found, (up, down))]
    torch.testing.assert_close(*grads, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("op", [propagate_made, regress_made])
def test_no_matrix_is_kept_for_the_backward_pass(op, rng):
    """r · m · e numbers for each net would be; h is small here, so that all else is less."""
    weighted, pose_sum, *parts = some_made(rng, n=1, r=50, h=2, m=30, e=3)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        op(weighted if op is propagate_made else pose_sum, Made(*parts)).sum().backward()
    assert sizes and max(sizes) < 50 * 30 * 3


def test_equation_4_by_hand():
    """Squared distances 0.01 and 0.03 have a mean of 0.02; the paper's own example is exp(-0.01 · 5.12) = 0.95."""
    poses = torch.tensor([[0.5, 0.0], [0.0, 0.5]], dtype=torch.float64)
    told = poses + torch.tensor([[0.1, 0.0], [0.1, sqrt(0.02)]], dtype=torch.float64)
    found = misfit(told.unsqueeze(0), poses, torch.ones(2, dtype=torch.float64))
    assert found.item() == pytest.approx(0.02)
    assert ladder_activity(found).item() == pytest.approx(exp(-5.12 * 0.02))
    assert ladder_activity(torch.tensor(0.01)).item() == pytest.approx(0.95, abs=2e-4)
    assert mean_distance(told.unsqueeze(0), poses, torch.ones(2, dtype=torch.float64)).item() == pytest.approx(
        (0.1 + sqrt(0.03)) / 2
    )


def test_a_row_that_does_not_count_is_not_in_the_mean():
    poses, told = torch.zeros(2, 3), torch.tensor([[[1.0, 0, 0], [0, 2.0, 0]]])
    assert misfit(told, poses, torch.tensor([1.0, 1.0])).tolist() == [2.5]
    assert misfit(told, poses, torch.tensor([1.0, 0.0])).tolist() == [1.0]


def test_the_output_is_the_direction_times_the_activity():
    torch.testing.assert_close(direction(torch.tensor([3.0, 4.0])), torch.tensor([0.6, 0.8]))
    assert direction(torch.zeros(2)).tolist() == [0, 0]


def test_predictions_that_agree_are_no_disagreement():
    """Equal predictions lie on their mean, whatever the shares; opposite ones of length 1 have a mean of 0 and lie 0.5
    from it.
    """
    shares, weights = torch.tensor([[0.2, 0.6]]), torch.ones(2)
    alike = torch.tensor([[[0.3, 0.4], [0.3, 0.4]]])
    pose_sum = (shares.unsqueeze(-1) * alike).sum(-2)
    assert disagreement(alike, pose_sum, shares, weights).item() == pytest.approx(0, abs=1e-9)
    opposite = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]])
    assert disagreement(opposite, torch.zeros(1, 2), torch.ones(1, 2), weights).item() == pytest.approx(0.5**2)


# losses


def test_the_code_loss_is_the_squared_distance_of_code_and_activity():
    code, activity = torch.tensor([[1.0, 0.0, 1.0]]), torch.tensor([[0.8, 0.3, 0.5]], requires_grad=True)
    loss = code_loss(code, activity)
    assert loss.item() == pytest.approx(0.04 + 0.09 + 0.25)
    assert mean_code_loss(code, activity).item() == pytest.approx((0.2 + 0.3 + 0.5) / 3)
    loss.backward()
    torch.testing.assert_close(activity.grad, torch.tensor([[-0.4, 0.6, -1.0]]))  # kept up, others down


def test_the_withdrawn_files_loss_by_hand():
    distances, present = torch.tensor([[0.3, 0.5, 0.9]]), torch.tensor([[1.0, 0.0, 0.0]])
    assert distance_loss(distances, present).item() == pytest.approx(0.09 + 0.09 + 0)


@pytest.mark.parametrize("loss", [code_loss, mean_code_loss, distance_loss])
def test_losses_refuse_what_would_broadcast(loss):
    with pytest.raises(ValueError, match=r"got \[2, 3\]"):
        loss(torch.ones(2, 3), torch.ones(2, 1))


# gradients


def everything(poses, transforms, shares, regressors):
    """All of the ladder behind the pruning, for any leading axes."""
    kept = keep_most_active(poses, poses.square().sum(-1), transforms.shape[-3])
    pose_sum = propagate(kept.poses, transforms, shares)
    told = regress(pose_sum, regressors)
    down = misfit(told, kept.poses, kept.weights)
    up = disagreement(predictions(kept.poses, transforms), pose_sum, shares, kept.weights)
    activity = ladder_activity((down + up) / 2)
    return activity, activity.unsqueeze(-1) * direction(pose_sum)


@pytest.mark.parametrize("n_kept", [1, 3])
def test_gradients(n_kept, rng):
    def draw(*shape):
        return torch.rand(*shape, generator=rng, dtype=torch.float64).add_(0.1).requires_grad_()

    shape = (2, n_kept, 3, 4)
    assert torch.autograd.gradcheck(everything, (draw(3, 3), draw(*shape), draw(2, n_kept), draw(*shape)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_capsules_of_zeros_have_finite_gradients(dtype):
    inputs = [
        torch.zeros(*shape, dtype=dtype, requires_grad=True)
        for shape in ((2, 5, 3), (2, 2, 3, 3, 4), (2, 2, 3), (2, 2, 3, 3, 4))
    ]
    activity, poses = everything(*inputs)
    assert (activity == 1).all() and (poses == 0).all()  # nothing is there, and nothing is told of it
    (activity.sum() + poses.sum()).backward()
    assert all(x.grad.isfinite().all() for x in inputs)


def test_leading_axes_are_free(rng):
    shapes = (5, 3), (2, 3, 3, 4), (2, 3), (2, 3, 3, 4)
    inputs = [torch.rand(2, 3, *shape, generator=rng) for shape in shapes]
    whole = everything(*inputs)
    one = everything(*(x[1, 2] for x in inputs))
    for a, b in zip(whole, one, strict=True):
        torch.testing.assert_close(a[1, 2], b)


@pytest.mark.slow  # the layer's own test compiles the same by default
def test_it_compiles_whole(fresh_dynamo, rng):
    inputs = [torch.rand(*shape, generator=rng) for shape in ((2, 5, 3), (2, 2, 3, 3, 4), (2, 2, 3), (2, 2, 3, 3, 4))]
    program = torch.compile(everything, fullgraph=True, backend="aot_eager")
    for one, other in zip(program(*inputs), everything(*inputs), strict=True):
        torch.testing.assert_close(one, other)
