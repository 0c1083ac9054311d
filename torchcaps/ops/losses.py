"""Losses of capsule networks: each returns one number per image, so that the caller chooses the balance."""

from jaxtyping import Float
from torch import Tensor


def margin_loss(
    lengths: Float[Tensor, "*b j"],
    present: Float[Tensor, "*b j"],
    *,
    upper: float = 0.9,
    lower: float = 0.1,
    absent_weight: float = 0.5,
) -> Float[Tensor, "*b"]:
    """Eq. 4 of Sabour 2017, summed over the classes (paper: m+ upper, m- lower, lambda absent_weight).

    `lengths` are the capsules' lengths themselves, never a softmax of them.
    """
    _same_shape("margin_loss", lengths=lengths, present=present)
    missing = present * (upper - lengths).clamp(min=0).square()
    phantom = (1 - present) * (lengths - lower).clamp(min=0).square()
    return (missing + absent_weight * phantom).sum(-1)


def reconstruction_loss(pictures: Float[Tensor, "*b c h w"], targets: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b"]:
    """SUM of squared differences over one image. A mean over its pixels would be hundreds of times weaker."""
    _same_shape("reconstruction_loss", pictures=pictures, targets=targets)
    return (pictures - targets).square().sum((-3, -2, -1))


def spread_loss(
    scores: Float[Tensor, "*b j"], present: Float[Tensor, "*b j"], *, margin: float | Tensor = 0.2
) -> Float[Tensor, "*b"]:
    """Hinge between the true class and every other one (Hinton 2018): sum over others of max(0, m - (s_t - s_j))²."""
    _same_shape("spread_loss", scores=scores, present=present)
    true = (scores * present).sum(-1, keepdim=True)
    return ((margin - (true - scores)).clamp(min=0).square() * (1 - present)).sum(-1)


def _same_shape(loss: str, **tensors: Tensor) -> None:
    """Refuse labels in place of their one-hot rows, or an image without its channel: they broadcast in silence."""
    (name, first), (other, second) = tensors.items()
    if first.shape != second.shape:
        numbers = other == "present" and first.ndim >= 1 and second.shape == first.shape[:-1]
        one_hot = f"torch.nn.functional.one_hot(labels, {first.shape[-1]}).float()" if numbers else ""
        raise ValueError(
            f"{loss} wants {name} and {other} of the same shape, got {list(first.shape)} and {list(second.shape)}; "
            + (f"turn class numbers into rows by {one_hot}" if numbers else "leave no axis out")
        )
