"""Metrics: pure functions of (output, target) that return plain numbers or small tensors."""

from math import log

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


def wrong(predictions: Int64[Tensor, "n *k"], labels: Int64[Tensor, "n *k"]) -> Bool[Tensor, "n"]:
    """Mark wrong predictions. With several classes per image, all must be found, in any order."""
    return (
        predictions != labels if labels.ndim == 1 else (predictions.sort(-1).values != labels.sort(-1).values).any(-1)
    )


def error_percent(predictions: Int64[Tensor, "n"], labels: Int64[Tensor, "n"]) -> float:
    """Compute the error in percent."""
    return 100 * wrong(predictions, labels).double().mean().item()


def exact_match_error_percent(predictions: Int64[Tensor, "n k"], labels: Int64[Tensor, "n k"]) -> float:
    """Compute the error in percent for sets of k classes, all of which must be right (Sabour 2017, MultiMNIST)."""
    return 100 * wrong(predictions, labels).double().mean().item()


def half_credit_error_percent(predictions: Int64[Tensor, "n k"], labels: Int64[Tensor, "n k"]) -> float:
    """Compute the error in percent for sets of k classes, where each class found earns 1/k."""
    found = (predictions.unsqueeze(-1) == labels.unsqueeze(-2)).any(-2)
    return 100 * (1 - found.double().mean().item())


def confusion(predictions: Int64[Tensor, "n"], labels: Int64[Tensor, "n"], n_classes: int) -> Int64[Tensor, "j j"]:
    """Compute the confusion matrix: rows are true classes, columns are predictions."""
    return torch.bincount(labels * n_classes + predictions, minlength=n_classes**2).view(n_classes, n_classes)


def coupling_entropy(couplings: Float[Tensor, "*b i j"]) -> float:
    """Compute the mean entropy of the inputs' couplings relative to its maximum: 1 is uniform, 0 is one-hot."""
    shares = couplings / couplings.sum(-1, keepdim=True)  # leaky couplings sum to less than 1
    return torch.special.entr(shares).sum(-1).mean().item() / log(max(couplings.shape[-1], 2))  # 0 for one output


def dead_capsules(activity: Float[Tensor, "n i"], threshold: float = 0.01) -> Bool[Tensor, "i"]:
    """Mark capsules whose activity is below the threshold on all n images."""
    return activity.amax(0) < threshold
