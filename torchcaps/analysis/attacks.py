"""Adversarial attacks: FGSM (Goodfellow 2014) and PGD with restarts (Madry 2017), bounded in the maximum norm.

Both increase the margin of the best wrong class over the true class. Only the sign of its gradient is used, so no loss
saturates.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import one_hot

Scores = Callable[[Float[Tensor, "b c h w"]], Float[Tensor, "b k"]]
Answers = Callable[[Float[Tensor, "b c h w"]], Int64[Tensor, "b"]]


def lead_of_the_wrong(scores: Float[Tensor, "b k"], labels: Int64[Tensor, "b"]) -> Float[Tensor, "b"]:
    """Compute the margin of the best wrong class over the true class."""
    true = one_hot(labels, scores.shape[-1]).bool()
    return scores.masked_fill(true, -torch.inf).amax(-1) - scores.gather(-1, labels[:, None]).squeeze(-1)


def direction(scores: Scores, images: Float[Tensor, "b c h w"], labels: Int64[Tensor, "b"]) -> Float[Tensor, "b c h w"]:
    """Compute the sign of the gradient of the margin with respect to the images."""
    images = images.detach().requires_grad_()
    with torch.enable_grad():
        lead = lead_of_the_wrong(scores(images), labels).sum()
    return torch.autograd.grad(lead, images)[0].sign()


def fgsm(
    scores: Scores, images: Float[Tensor, "b c h w"], labels: Int64[Tensor, "b"], strength: float
) -> Float[Tensor, "b c h w"]:
    """Attack with one step of size `strength` along the sign of the gradient."""
    return (images + strength * direction(scores, images, labels)).clamp(0, 1)


def pgd(
    scores: Scores,
    answers: Answers,
    images: Float[Tensor, "b c h w"],
    labels: Int64[Tensor, "b"],
    strength: float,
    *,
    steps: int = 20,
    restarts: int = 5,
    rng: torch.Generator,
) -> Float[Tensor, "b c h w"]:
    """Attack with many small steps, first from the image itself, then from random starts around it.

    Returns a misclassified image if any restart or the image itself is one. `rng` is on the host.
    Step size: 2.5 · strength / steps.
    """
    found, right = images.clone(), torch.ones_like(labels, dtype=torch.bool)
    least, most = (images - strength).clamp(min=0), (images + strength).clamp(max=1)
    for restart in range(restarts):
        at = images
        if restart:
            noise = 2 * torch.rand(images.shape, generator=rng).to(images) - 1
            at = torch.minimum(torch.maximum(images + strength * noise, least), most)
        for _ in range(steps):
            at = at + 2.5 * strength / steps * direction(scores, at, labels)
            at = torch.minimum(torch.maximum(at, least), most)
        # keep images that are misclassified already
        found = torch.where(right.view(-1, 1, 1, 1), at, found)
        right = right & (answers(at) == labels)
    # an unchanged image that is misclassified counts as a successful attack
    return torch.where((right & (answers(images) != labels)).view(-1, 1, 1, 1), images, found)


@contextmanager
def frozen(model: nn.Module) -> Iterator[nn.Module]:
    """Set evaluation mode and disable parameter gradients inside the block; restore both on exit."""
    was_training, wanted = model.training, [parameter.requires_grad for parameter in model.parameters()]
    model.eval().requires_grad_(False)
    try:
        yield model
    finally:
        model.train(was_training)
        for parameter, value in zip(model.parameters(), wanted, strict=True):
            parameter.requires_grad_(value)
