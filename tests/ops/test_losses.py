import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.functional import one_hot

from torchcaps.layers import Capsules
from torchcaps.ops import cross_entropy_loss, margin_loss, presence_loss, reconstruction_loss, spread_loss, squash
from torchcaps.ops.losses import LOSSES


def test_margin_by_hand():
    lengths = torch.tensor([[0.5, 0.2, 0.0], [0.95, 0.05, 0.1], [0.9, 0.4, 0.7]])
    present = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    by_hand = [
        (0.9 - 0.5) ** 2 + 0.5 * (0.2 - 0.1) ** 2,
        0.0,  # long enough and short enough: nothing to pay
        0.5 * (0.9 - 0.1) ** 2 + (0.9 - 0.4) ** 2 + (0.9 - 0.7) ** 2,  # two digits in one image
    ]
    torch.testing.assert_close(margin_loss(lengths, present), torch.tensor(by_hand))


def test_margins_and_weight_are_arguments():
    loss = margin_loss(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]), upper=0.8, lower=0.2, absent_weight=0.25)
    torch.testing.assert_close(loss, torch.tensor(0.3**2 + 0.25 * 0.3**2))


def test_beyond_the_margins_nothing_pulls():
    lengths = torch.tensor([0.95, 0.05], requires_grad=True)
    margin_loss(lengths, torch.tensor([1.0, 0.0])).backward()
    assert (lengths.grad == 0).all()


def test_reconstruction_by_hand_is_a_sum_over_the_picture():
    pictures, targets = torch.zeros(2, 1, 2, 2), torch.tensor([[[[1.0, 2.0], [0.0, 0.0]]], [[[0.5, 0.5], [0.5, 0.5]]]])
    torch.testing.assert_close(reconstruction_loss(pictures, targets), torch.tensor([1.0 + 4.0, 4 * 0.25]))


def test_spread_by_hand():
    scores = torch.tensor([[0.5, 0.4, 0.1], [0.2, 0.6, 0.5]])
    present = one_hot(torch.tensor([0, 0]), 3).float()
    # margins left: 0.2 - (0.5 - 0.4) = 0.1 and none; 0.2 - (0.2 - 0.6) = 0.6 and 0.2 - (0.2 - 0.5) = 0.5
    torch.testing.assert_close(spread_loss(scores, present), torch.tensor([0.1**2, 0.6**2 + 0.5**2]))
    torch.testing.assert_close(
        spread_loss(scores, present, margin=0.9), torch.tensor([0.8**2 + 0.5**2, 1.3**2 + 1.2**2])
    )


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_one_number_per_image_for_any_leading_axes(shape, rng):
    scores, present = torch.rand(*shape, 4, generator=rng), torch.zeros(*shape, 4)
    picture = torch.rand(*shape, 1, 5, 5, generator=rng)
    assert margin_loss(scores, present).shape == spread_loss(scores, present).shape == shape
    assert reconstruction_loss(picture, torch.zeros_like(picture)).shape == shape


@pytest.mark.parametrize("loss", [margin_loss, spread_loss])
def test_gradient_of_class_losses_is_the_slope(loss):
    scores = torch.tensor(
        [[0.3, 0.45, 0.15], [0.6, 0.2, 0.95]], dtype=torch.float64, requires_grad=True
    )  # away from the corners
    present = one_hot(torch.tensor([0, 1]), 3).double()
    assert gradcheck(lambda x: loss(x, present), scores)


def test_gradient_of_reconstruction_is_the_slope(rng):
    pictures, targets = torch.rand(2, 2, 1, 3, 3, dtype=torch.float64, generator=rng)
    assert gradcheck(reconstruction_loss, (pictures.requires_grad_(), targets.requires_grad_()))


@pytest.mark.parametrize("loss", LOSSES.values())
def test_labels_in_place_of_one_hot_rows_are_refused(loss):
    """Three labels and three classes: broadcasting would go through."""
    wanted = rf"^{loss.__name__} wants \w+ and present of the same shape, got \[3, 3\] and \[3\]; .*one_hot\(labels, 3\).float\(\)"
    with pytest.raises(ValueError, match=wanted):
        loss(torch.rand(3, 3), torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("loss", LOSSES.values())
def test_rows_of_bool_are_rows_of_numbers(loss, rng):
    outputs, present = torch.rand(4, 3, generator=rng), torch.eye(3)[[0, 2, 1, 1]]
    torch.testing.assert_close(loss(outputs, present.bool()), loss(outputs, present), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.long])
def test_poses_in_place_of_lengths_are_refused(dtype):
    with pytest.raises(ValueError, match=r"got \[4, 3, 16\] and \[4, 3\]; give the capsules, not their poses"):
        margin_loss(torch.rand(4, 3, 16), torch.eye(3)[[0, 2, 1, 1]].to(dtype))


def test_rows_of_bool_keep_the_dtype_of_the_outputs():
    assert margin_loss(torch.rand(4, 3).bfloat16(), torch.eye(3)[[0, 2, 1, 1]].bool()).dtype == torch.bfloat16


def test_a_picture_without_its_channel_is_refused():
    with pytest.raises(
        ValueError, match=r"wants images and targets of the same shape, got \[2, 1, 4, 4\] and \[2, 4, 4\]"
    ):
        reconstruction_loss(torch.rand(2, 1, 4, 4), torch.rand(2, 4, 4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_dtype_is_kept(dtype):
    scores, present = torch.rand(2, 4).to(dtype), torch.eye(2, 4).to(dtype)
    assert margin_loss(scores, present).dtype == spread_loss(scores, present).dtype == dtype


def test_losses_take_capsules_and_refuse_those_that_they_do_not_fit():
    poses, score, present = torch.randn(2, 3, 4), torch.randn(2, 3), torch.eye(3)[:2]
    lengths, scored = Capsules.of(squash(poses)), Capsules.scored(poses, score)
    assert torch.equal(margin_loss(lengths, present), margin_loss(lengths.activity, present))
    wanted = torch.nn.functional.cross_entropy(score, torch.tensor([0, 1]), reduction="none")
    torch.testing.assert_close(cross_entropy_loss(scored, present), wanted)
    assert torch.equal(cross_entropy_loss(score, present), cross_entropy_loss(scored, present))
    assert torch.equal(spread_loss(scored, present), spread_loss(score.sigmoid(), present))
    with pytest.raises(ValueError, match=r"margin_loss wants .* length, got capsules with scores; use cross"):
        margin_loss(scored, present)
    with pytest.raises(ValueError, match=r"cross_entropy_loss wants .* scores, got .* length; use margin_loss"):
        cross_entropy_loss(lengths, present)
    with pytest.raises(ValueError, match=r"one_hot\(labels, 3\)"):
        cross_entropy_loss(scored, torch.tensor([0, 1]))


def test_presence_is_a_binary_cross_entropy_for_each_class():
    poses, score = torch.randn(3, 4, 5), torch.randn(3, 4)
    present = torch.tensor([[1.0, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]])
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(score, present, reduction="none").sum(-1)
    for scores in (score, Capsules.scored(poses, score)):
        torch.testing.assert_close(presence_loss(scores, present), wanted)
        torch.testing.assert_close(presence_loss(scores, present.bool()), wanted)
    lengths = Capsules.of(squash(poses))
    wanted = torch.nn.functional.binary_cross_entropy(lengths.activity, present, reduction="none").sum(-1)
    torch.testing.assert_close(presence_loss(lengths, present), wanted)
    with pytest.raises(ValueError, match=r"one_hot\(labels, 4\)"):
        presence_loss(score, torch.tensor([0, 1, 2]))


def test_presence_asks_for_more_of_every_class_that_is_there():
    present = torch.tensor([[0.0, 1, 1], [1, 1, 0], [0, 0, 0]])
    undecided = torch.zeros(3, 3, requires_grad=True)
    presence_loss(undecided, present).sum().backward()
    assert torch.equal(undecided.grad < 0, present.bool())


def test_a_masked_class_has_no_share_of_the_presence():
    score = torch.tensor([[0.0, -torch.inf, 0.0]], requires_grad=True)
    loss = presence_loss(score, torch.tensor([[1.0, 0.0, 0.0]]))
    loss.sum().backward()
    torch.testing.assert_close(loss.detach(), 2 * torch.tensor([2.0]).log())
    assert score.grad.isfinite().all()


def test_a_masked_class_has_no_share_of_the_cross_entropy():
    score = torch.tensor([[0.0, -torch.inf, 0.0]], requires_grad=True)
    loss = cross_entropy_loss(score, torch.tensor([[1.0, 0.0, 0.0]]))
    loss.sum().backward()
    torch.testing.assert_close(loss.detach(), torch.tensor([2.0]).log())
    assert score.grad.isfinite().all()


@pytest.mark.parametrize("loss", [margin_loss, cross_entropy_loss, spread_loss, presence_loss])
def test_losses_of_capsules_compile_as_one_program(loss):
    poses, present = torch.randn(2, 3, 4), torch.eye(3)[:2]
    capsules = Capsules.scored(poses, poses.sum(-1)) if loss is cross_entropy_loss else Capsules.of(squash(poses))
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(capsules, present), loss(capsules, present))
