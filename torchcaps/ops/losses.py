"""Losses of capsule networks: each returns one number per image, so that the caller chooses the balance.

A loss of classes takes `Capsules`, and refuses those for which it makes no sense: scores as lengths, lengths as scores.
It also takes the plain tensor that it is computed from, unchecked. `LOSSES` holds them by the name that a routing gives
as its `loss`.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus


@runtime_checkable
class ClassCapsules(Protocol):
    """Capsules of classes: their activity, and its logit where the routing computes scores."""

    activity: Tensor
    score: Tensor | None

    @property
    def logit(self) -> Tensor:
        """Logit of the activity."""


def margin_loss(
    lengths: Float[Tensor, "*b j"] | ClassCapsules,
    present: Float[Tensor, "*b j"],
    *,
    upper: float = 0.9,
    lower: float = 0.1,
    absent_weight: float = 0.5,
) -> Float[Tensor, "*b"]:
    """Eq. 4 of Sabour 2017, summed over the classes (paper: m+ upper, m- lower, lambda absent_weight).

    `lengths`: capsules, or their lengths themselves, never a softmax of them. Capsules with scores are refused.
    """
    if not isinstance(lengths, Tensor):
        if lengths.score is not None:
            raise ValueError(
                "margin_loss wants capsules whose activity is a length, got capsules with scores; use "
                "cross_entropy_loss (EM, lazy, inverted), spread_loss (matrix EM) or likelihood_loss (self-routing)"
            )
        lengths = lengths.activity
    present = _shares("margin_loss", present, lengths=lengths)
    missing = present * (upper - lengths).clamp(min=0).square()
    phantom = (1 - present) * (lengths - lower).clamp(min=0).square()
    return (missing + absent_weight * phantom).sum(-1)


def reconstruction_loss(images: Float[Tensor, "*b c h w"], targets: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b"]:
    """SUM of squared differences over one image. A mean over its pixels would be hundreds of times weaker."""
    _same_shape("reconstruction_loss", images=images, targets=targets)
    return (images - targets).square().sum((-3, -2, -1))


def cross_entropy_loss(
    scores: Float[Tensor, "*b j"] | ClassCapsules, present: Float[Tensor, "*b j"]
) -> Float[Tensor, "*b"]:
    """Cross entropy of a softmax over scores; rows of `present` sum to 1, so an image has one class.

    `scores`: capsules that have them (EM and lazy routing), or logits. Capsules without scores are refused, since a
    softmax of lengths, which end at 1, can never be sure.
    """
    if not isinstance(scores, Tensor):
        if scores.score is None:
            raise ValueError(
                "cross_entropy_loss wants capsules with scores, got capsules whose activity is a length; "
                "use margin_loss"
            )
        scores = scores.score
    _same_shape("cross_entropy_loss", scores=scores, present=present)
    # a masked class has a score of -inf, and 0 · -inf is no number
    return -(present * scores.log_softmax(-1).masked_fill(present == 0, 0)).sum(-1)


def likelihood_loss(
    scores: Float[Tensor, "*b j"] | ClassCapsules, present: Float[Tensor, "*b j"]
) -> Float[Tensor, "*b"]:
    """Negative log likelihood of activities that sum to one over the classes (Hahn 2019), of which an image has one.

    `scores`: capsules of self-routing, or the logits of their activities.
    """
    if not isinstance(scores, Tensor):
        if scores.score is None:
            raise ValueError(
                "likelihood_loss wants capsules with scores, got capsules whose activity is a length; use margin_loss"
            )
        scores = scores.score
    _same_shape("likelihood_loss", scores=scores, present=present)
    return cross_entropy_loss(logsigmoid(scores), present)


def spread_loss(
    scores: Float[Tensor, "*b j"] | ClassCapsules, present: Float[Tensor, "*b j"], *, margin: float | Tensor = 0.2
) -> Float[Tensor, "*b"]:
    """Hinge between the true class and every other one (Hinton 2018): sum over others of max(0, m - (s_t - s_j))².

    An image has one class; for several there is `presence_loss`.

    `scores`: capsules, of which the activity is taken, or their activity.
    """
    scores = scores if isinstance(scores, Tensor) else scores.activity
    present = _shares("spread_loss", present, scores=scores)
    true = (scores * present).sum(-1, keepdim=True)
    return ((margin - (true - scores)).clamp(min=0).square() * (1 - present)).sum(-1)


def presence_loss(logits: Float[Tensor, "*b j"] | ClassCapsules, present: Float[Tensor, "*b j"]) -> Float[Tensor, "*b"]:
    """Binary cross entropy of every activity, summed over the classes: an image has any number of them.

    `logits`: capsules of any routing whose activities need not sum to 1, or logits.
    """
    logits = logits if isinstance(logits, Tensor) else logits.logit
    present = _shares("presence_loss", present, logits=logits)
    # a masked class has a logit of -inf, and 0 · inf is no number
    missing = (present * softplus(-logits)).masked_fill(present == 0, 0)
    return (missing + (1 - present) * softplus(logits)).sum(-1)


LOSSES: dict[str, Callable[..., Tensor]] = {
    "margin": margin_loss,
    "cross-entropy": cross_entropy_loss,
    "likelihood": likelihood_loss,
    "spread": spread_loss,
}


def _shares(loss: str, present: Tensor, **outputs: Tensor) -> Tensor:
    """Return the checked rows of `present` as numbers: rows of bool cannot be subtracted."""
    _same_shape(loss, **outputs, present=present)
    (numbers,) = outputs.values()
    return present.to(numbers.dtype) if present.dtype == torch.bool else present


def _same_shape(loss: str, **tensors: Tensor) -> None:
    """Refuse labels in place of their one-hot rows, or an image without its channel: they broadcast in silence."""
    (name, first), (other, second) = tensors.items()
    if first.shape == second.shape:
        return
    do = "leave no axis out"
    if other == "present" and first.ndim >= 1 and second.shape == first.shape[:-1]:
        one_hot = f"turn class numbers into rows by torch.nn.functional.one_hot(labels, {first.shape[-1]}).float()"
        capsules = "give the capsules, not their poses"
        numbers = not second.is_floating_point() and second.dtype != torch.bool
        # whole numbers with an axis of classes may be either
        do = one_hot if second.ndim == 1 else f"{capsules}, or {one_hot}" if numbers else capsules
    raise ValueError(
        f"{loss} wants {name} and {other} of the same shape, got {list(first.shape)} and {list(second.shape)}; {do}"
    )
