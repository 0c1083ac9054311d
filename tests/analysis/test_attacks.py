"""Attacks on a model that can be computed by hand: a line through two pixels."""

import torch
from torch import nn

from torchcaps.analysis.attacks import direction, fgsm, frozen, lead_of_the_wrong, pgd


def scores(images: torch.Tensor) -> torch.Tensor:
    """Class 0 wins by the first pixel, class 1 by twice the second, class 2 never."""
    left, right = images.flatten(1).unbind(1)
    return torch.stack([left, 2 * right, torch.full_like(left, -10.0)], dim=-1)


def answers(images: torch.Tensor) -> torch.Tensor:
    return scores(images).argmax(-1)


def pair(*pixels: float) -> torch.Tensor:
    return torch.tensor(pixels).view(-1, 1, 1, 2)


def test_the_lead_is_that_of_the_best_wrong_class():
    assert lead_of_the_wrong(torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]]), torch.tensor([0, 2])).tolist() == [
        -1.0,
        1.0,
    ]


def test_one_step_goes_as_far_as_allowed_and_stays_a_picture():
    images, labels = pair(0.9, 0.3, 0.05, 0.9), torch.tensor([0, 1])
    assert direction(scores, images, labels).flatten(1).tolist() == [[-1.0, 1.0], [1.0, -1.0]]
    changed = fgsm(scores, images, labels, 0.1).flatten(1)
    torch.testing.assert_close(changed, torch.tensor([[0.8, 0.4], [0.15, 0.8]]))
    assert fgsm(scores, pair(1.0, 0.0), torch.tensor([1]), 0.1).flatten().tolist() == [1.0, 0.0]  # clipped to 0..1


def test_many_steps_reach_the_corner_and_mislead_where_the_ball_allows_it():
    """0.9 against 0.6 becomes 0.8 against 0.8: not yet wrong at 0.1; at 0.11 it is."""
    images, labels = pair(0.9, 0.3), torch.tensor([0])
    for strength, wrong in ((0.05, False), (0.11, True)):
        changed = pgd(
            scores, answers, images, labels, strength, steps=5, restarts=2, rng=torch.Generator().manual_seed(0)
        )
        assert ((changed - images).abs() <= strength + 1e-6).all()
        assert bool(answers(changed) != labels) == wrong


def test_restarts_escape_a_place_without_gradient():
    """The score is flat at the image itself: one step from there, or one start, finds nothing."""

    def flat(images):
        lead = (images.flatten(1).sum(1) - 1.05).clamp(min=0)
        return torch.stack([torch.full_like(lead, 0.01), lead], dim=-1)

    def say(images):
        return flat(images).argmax(-1)

    images, labels, options = pair(0.5, 0.5), torch.tensor([0]), {"steps": 5, "rng": torch.Generator().manual_seed(0)}
    assert say(fgsm(flat, images, labels, 0.2)) == 0
    assert say(pgd(flat, say, images, labels, 0.2, restarts=1, **options)) == 0
    assert say(pgd(flat, say, images, labels, 0.2, restarts=10, **options)) == 1


def test_what_is_wrong_already_is_kept():
    """A later restart that ends right again must not undo an earlier one."""
    asked = []

    def say(images):
        asked.append(images)
        return torch.tensor([1 if len(asked) == 1 else 0])

    images, labels = pair(0.9, 0.3), torch.tensor([0])
    changed = pgd(scores, say, images, labels, 0.05, steps=2, restarts=3, rng=torch.Generator().manual_seed(0))
    assert torch.equal(changed, asked[0])


def test_what_is_answered_wrong_as_it_is_counts_as_found():
    """Every end of the attack is answered right, the image itself is not."""
    images, labels = pair(0.9, 0.3, 0.9, 0.3), torch.tensor([0, 0])

    def say(seen):
        return (seen == images).flatten(1).all(1).long() * torch.tensor([1, 0])

    changed = pgd(scores, say, images, labels, 0.05, steps=2, restarts=2, rng=torch.Generator().manual_seed(0))
    assert torch.equal(changed[0], images[0]) and not torch.equal(changed[1], images[1])


def test_a_frozen_model_gives_gradients_to_pictures_only_and_is_put_back():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    with frozen(model) as still:
        x = torch.ones(1, 2, requires_grad=True)
        still(x).sum().backward()
        assert x.grad is not None and not model.training and not model.weight.requires_grad
    assert model.training and model.weight.requires_grad and not model.bias.requires_grad and model.weight.grad is None
