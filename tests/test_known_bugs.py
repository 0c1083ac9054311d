"""Mistakes that many ports of capsule networks share. Each check passes on ours and is shown to fail on the mistake.

The numbers are those of the list this is drawn from. Number 5 (selection on test images) and number 9 (EM routing) have files
of their own.
"""

import pytest
import torch
from einops import rearrange
from torch.nn.functional import mse_loss

from torchcaps import CapsNet, Capsules, ConvRoutedCapsules, PrimaryCapsules, RoutedCapsules
from torchcaps.ops import dynamic_routing, dynamic_routing_steps, margin_loss, reconstruction_loss, squash


def fails(check, wrong) -> None:
    """A check that cannot fail checks nothing."""
    with pytest.raises(AssertionError):
        check(wrong)


def votes_of(poses, weight):
    return torch.einsum("bid,ijde->bije", poses, weight)


# 1. Primary capsules reshaped without a permute: a "capsule" is then eight neighbouring pixels of one channel.


def check_a_primary_capsule_is_all_channels_of_a_type_at_one_place(capsules_of) -> None:
    """`capsules_of`: features [b (n d) h w] -> poses. With n = 3 types of d = 4 numbers on a 5x2 grid."""
    before = torch.rand(1, 12, 5, 2, generator=torch.Generator().manual_seed(0))
    after = before.clone()
    after[:, :, 3, 1] += 1.0
    changed = (capsules_of(after) != capsules_of(before))[0]  # [i d]
    assert changed.any(-1).sum() == 3, "one place holds one capsule of each type"
    assert changed[[1 * 10 - 3, 2 * 10 - 3, 3 * 10 - 3]].all(), "capsules are ordered (type, row, column)"
    after = before.clone()
    after[:, 4:8] += 1.0
    changed = (capsules_of(after) != capsules_of(before))[0]
    assert changed[10:20].all(), "channels 4 to 7 are the second type"
    assert changed.sum() == 10 * 4, "and no other"


def ours_primary(features):
    layer = PrimaryCapsules(c_in=12, n_types=3, d_out=4, kernel=1, stride=1)
    layer.weight.data = torch.eye(12).view(12, 12, 1, 1)
    return layer(features).poses


def test_1_a_primary_capsule_is_all_channels_of_a_type_at_one_place():
    check_a_primary_capsule_is_all_channels_of_a_type_at_one_place(ours_primary)
    fails(check_a_primary_capsule_is_all_channels_of_a_type_at_one_place, lambda x: squash(x.reshape(len(x), -1, 4)))
    wrong_order = lambda x: squash(rearrange(x, "b (n d) h w -> b (h w n) d", d=4))  # noqa: E731
    fails(check_a_primary_capsule_is_all_channels_of_a_type_at_one_place, wrong_order)


# 2. Softmax over the input axis instead of the output axis.


def check_every_input_spends_one_vote(couplings_of) -> None:
    """`couplings_of`: poses, weight -> couplings [b i j] of the last pass."""
    rng = torch.Generator().manual_seed(0)
    couplings = couplings_of(torch.randn(2, 6, 4, generator=rng), torch.randn(6, 3, 4, 5, generator=rng))
    torch.testing.assert_close(couplings.sum(-1), torch.ones(2, 6))


def ours_couplings(poses, weight):
    *_, last = dynamic_routing_steps(poses, weight)
    return last.couplings


def wrong_couplings(poses, weight):
    votes = votes_of(poses, weight)
    logits = torch.zeros(votes.shape[:-1])
    for _ in range(3):
        couplings = logits.softmax(dim=1)
        parents = squash((couplings[..., None] * votes).sum(1))
        logits = logits + (votes * parents[:, None]).sum(-1)
    return couplings


def test_2_softmax_runs_over_the_outputs():
    check_every_input_spends_one_vote(ours_couplings)
    fails(check_every_input_spends_one_vote, wrong_couplings)


# 3. Routing logits shared over the batch.


def check_samples_do_not_see_each_other(route) -> None:
    rng = torch.Generator().manual_seed(0)
    poses, weight = torch.randn(3, 6, 4, generator=rng), torch.randn(6, 3, 4, 5, generator=rng)
    torch.testing.assert_close(route(poses, weight)[:1], route(poses[:1], weight))


def wrong_shared_logits(poses, weight):
    votes = votes_of(poses, weight)
    logits = torch.zeros(votes.shape[1:-1])
    for _ in range(3):
        parents = squash((logits.softmax(-1)[..., None] * votes).sum(1))
        logits = logits + (votes * parents[:, None]).sum(-1).mean(0)
    return parents


def test_3_logits_belong_to_one_sample():
    check_samples_do_not_see_each_other(lambda poses, weight: dynamic_routing(poses, weight).poses)
    fails(check_samples_do_not_see_each_other, wrong_shared_logits)


def test_3_logits_belong_to_one_sample_in_convolutional_layers_too():
    layer = ConvRoutedCapsules((3, 3), n_in_types=2, n_out_types=2, d_in=4, d_out=4, kernel=2)
    poses = torch.randn(3, 18, 4)
    torch.testing.assert_close(layer(poses).poses[:1], layer(poses[:1]).poses)


# 4. NaN gradient of squash at zero: sqrt, then + eps, gives NaN even with a zero upstream gradient.


def check_squash_has_a_gradient_at_zero(squash_of) -> None:
    for upstream in (1.0, 0.0):
        vectors = torch.zeros(2, 3, requires_grad=True)
        (squash_of(vectors) * upstream).sum().backward()
        assert vectors.grad.isfinite().all()


def wrong_squash(vectors):
    n = vectors.square().sum(-1, keepdim=True).sqrt()
    return vectors * n**2 / (1 + n**2) / (n + 1e-8)


def test_4_squash_has_a_gradient_at_zero():
    check_squash_has_a_gradient_at_zero(squash)
    fails(check_squash_has_a_gradient_at_zero, wrong_squash)


def test_4_a_black_picture_trains():
    """Zero features everywhere: the gradient of the whole network stays finite."""
    model = CapsNet((1, 10, 10), 2, preset="paper", channels=4, kernel=3, n_types=2, d_primary=4, primary_kernel=3, d_class=4, hidden=(8,))
    for parameter in (model.conv.bias, model.primary.bias, model.classes.bias):
        torch.nn.init.zeros_(parameter)
    capsules = model(torch.zeros(2, 1, 10, 10))
    margin_loss(capsules.activity, torch.eye(2)).sum().backward()
    assert all(p.grad.isfinite().all() for name, p in model.named_parameters() if not name.startswith("decoder"))


# 6. Reconstruction loss averaged over pixels instead of summed: the term is then hundreds of times too weak.


def check_reconstruction_is_summed_over_the_picture(loss_of) -> None:
    pictures, targets = torch.ones(2, 1, 28, 28), torch.zeros(2, 1, 28, 28)
    assert float(loss_of(pictures, targets).mean()) == 784.0


def test_6_reconstruction_is_summed_over_the_picture():
    check_reconstruction_is_summed_over_the_picture(reconstruction_loss)
    fails(check_reconstruction_is_summed_over_the_picture, mse_loss)


# 7. Softmax applied to lengths before the margin loss.


def check_a_perfect_answer_costs_nothing(loss_of) -> None:
    """`loss_of`: class poses, present -> loss. The right capsule is 0.95 long, the others 0.05."""
    present = torch.eye(10)
    poses = torch.where(present.bool(), 0.95, 0.05).unsqueeze(-1) * torch.tensor([0.6, 0.8])
    assert (loss_of(poses, present) == 0).all()


def test_7_lengths_go_into_the_margin_loss_as_they_are():
    check_a_perfect_answer_costs_nothing(lambda poses, present: margin_loss(Capsules.of(poses).activity, present))
    fails(check_a_perfect_answer_costs_nothing, lambda poses, present: margin_loss(poses.norm(dim=-1).softmax(-1), present))


def test_7_a_network_says_lengths():
    model = CapsNet((1, 10, 10), 3, channels=4, kernel=3, n_types=2, d_primary=4, primary_kernel=3, d_class=4, hidden=(8,))
    capsules = model(torch.rand(2, 1, 10, 10))
    torch.testing.assert_close(capsules.activity, capsules.poses.norm(dim=-1))


# 8. A layer built for n input capsules that silently broadcasts 1.


def check_one_capsule_in_place_of_six_is_refused(route) -> None:
    route(torch.ones(2, 6, 4))
    message = ""
    try:
        route(torch.ones(2, 1, 4))
    except ValueError as refusal:
        message = str(refusal)
    assert message, "one capsule was broadcast to six in silence"
    assert {"6", "1"} <= set(message), "the message says what was wanted and what came"


def test_8_one_capsule_is_not_broadcast():
    weight, prior = torch.ones(6, 3, 4, 5), torch.zeros(6, 3)
    check = check_one_capsule_in_place_of_six_is_refused
    check(RoutedCapsules(6, 3, 4, 5))
    check(RoutedCapsules(6, 3, 4, 5, sharing="places", n_types=3))
    check(RoutedCapsules(6, 3, 4, 5, sharing="inputs"))
    check(RoutedCapsules(6, 3, 4, 5, sharing="all"))
    check(ConvRoutedCapsules((2, 3), n_in_types=1, n_out_types=2, d_in=4, d_out=5, kernel=2))
    check(lambda poses: dynamic_routing(poses, weight))
    check(lambda poses: dynamic_routing(poses, weight[0], prior=prior))
    fails(check, lambda poses: squash(votes_of(poses, weight).mean(1)))
