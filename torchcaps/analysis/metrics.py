"""Functions of (output, target) that return plain numbers or small tensors. Nothing here accumulates or decides."""

from math import log

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


def wrong(predictions: Int64[Tensor, "n *k"], labels: Int64[Tensor, "n *k"]) -> Bool[Tensor, "n"]:
    """Of several classes in a picture all must be found, in whatever order."""
    return predictions != labels if labels.ndim == 1 else (predictions.sort(-1).values != labels.sort(-1).values).any(-1)


def error_percent(predictions: Int64[Tensor, "n"], labels: Int64[Tensor, "n"]) -> float:
    """How many of a hundred are wrong."""
    return 100 * wrong(predictions, labels).double().mean().item()


def exact_match_error_percent(predictions: Int64[Tensor, "n k"], labels: Int64[Tensor, "n k"]) -> float:
    """Sets of k classes: an image counts as right only when all k are (Sabour 2017, MultiMNIST)."""
    return 100 * wrong(predictions, labels).double().mean().item()


def half_credit_error_percent(predictions: Int64[Tensor, "n k"], labels: Int64[Tensor, "n k"]) -> float:
    """Sets of k classes: each class found earns 1/k."""
    found = (predictions.unsqueeze(-1) == labels.unsqueeze(-2)).any(-2)
    return 100 * (1 - found.double().mean().item())


def confusion(predictions: Int64[Tensor, "n"], labels: Int64[Tensor, "n"], n_classes: int) -> Int64[Tensor, "j j"]:
    """Row: the true class. Column: what was said."""
    return torch.bincount(labels * n_classes + predictions, minlength=n_classes**2).view(n_classes, n_classes)


def coupling_entropy(couplings: Float[Tensor, "*b i j"]) -> float:
    """Mean entropy of an input's couplings as a share of the largest possible: 1 is uniform, 0 is decided."""
    shares = couplings / couplings.sum(-1, keepdim=True)  # leaky couplings leave a part to nobody
    return torch.special.entr(shares).sum(-1).mean().item() / log(max(couplings.shape[-1], 2))  # of one output it is 0


def dead_capsules(activity: Float[Tensor, "n i"], threshold: float = 0.01) -> Bool[Tensor, "i"]:
    """Capsules that stay below the threshold on every one of n images."""
    return activity.amax(0) < threshold
