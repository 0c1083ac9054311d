"""Pictures changed a little so that the answer is wrong: one step along the sign of the gradient, and many with restarts.

Goodfellow 2014 (FGSM) and Madry 2017 (PGD), in the largest change of a pixel. Both raise the score of the best wrong class over that of the
true one; only its sign counts, so that no loss saturates.
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
    """How far the best wrong class is ahead of the true one."""
    true = one_hot(labels, scores.shape[-1]).bool()
    return scores.masked_fill(true, -torch.inf).amax(-1) - scores.gather(-1, labels[:, None]).squeeze(-1)


def direction(scores: Scores, images: Float[Tensor, "b c h w"], labels: Int64[Tensor, "b"]) -> Float[Tensor, "b c h w"]:
    """The sign of the gradient of the lead."""
    images = images.detach().requires_grad_()
    with torch.enable_grad():
        lead = lead_of_the_wrong(scores(images), labels).sum()
    return torch.autograd.grad(lead, images)[0].sign()


def fgsm(scores: Scores, images: Float[Tensor, "b c h w"], labels: Int64[Tensor, "b"], strength: float) -> Float[Tensor, "b c h w"]:
    """One step as long as allowed."""
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
    """Many small steps, from the picture itself and then from random places around it.

    Of all ends, and the picture as it is, one that is answered wrong, if there is any. `rng` lies on the host.
    A step is 2.5 times what would reach the border in all of them.
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
        # what is answered wrong already is kept
        found = torch.where(right.view(-1, 1, 1, 1), at, found)
        right = right & (answers(at) == labels)
    # an attack may also do nothing: what is answered wrong as it is counts as found
    return torch.where((right & (answers(images) != labels)).view(-1, 1, 1, 1), images, found)


@contextmanager
def frozen(model: nn.Module) -> Iterator[nn.Module]:
    """Evaluation mode, and gradients for pictures only; put back afterwards."""
    was_training, wanted = model.training, [parameter.requires_grad for parameter in model.parameters()]
    model.eval().requires_grad_(False)
    try:
        yield model
    finally:
        model.train(was_training)
        for parameter, value in zip(model.parameters(), wanted, strict=True):
            parameter.requires_grad_(value)
