"""Linear readout of factors from poses: R² of ridge regressions on held-out images.

Poses of different classes lie in different spaces, so each class has its own regression, and R² is relative to the mean
of each class: the class alone explains nothing.

Letters beyond the usual: `n` images, `f` pose dimensions, `k` factors.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from torchcaps.data.sets.digits import stratified_indices

FIT, CHOOSE, SCORE = range(3)  # parts of the digits: fit the regression, choose its strength, evaluate it
STRENGTHS = tuple(10.0**power for power in range(-3, 6))
LEAST = 20  # images; a class that is predicted less often gets the mean


class Ridge(NamedTuple):
    """Ridge regression solved for all strengths at once: along the axes of `basis` the poses are uncorrelated.

    Example:

        poses = torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        ridge = fit_ridge(poses, 3 * poses[:, :1])  # the first pose dimension, times 3
        round(ridge.predict(torch.ones(1, 2, dtype=torch.float64), torch.tensor([1e-9])).item(), 3)  # 3.0
    """

    mean: Float[Tensor, " f"]
    basis: Float[Tensor, "f f"]
    # variance and covariance are sums over the images, not means: a class of few images is regularised more
    variance: Float[Tensor, " f"]
    covariance: Float[Tensor, "f k"]  # with the factors
    factor_mean: Float[Tensor, " k"]

    def predict(self, poses: Float[Tensor, "n f"], strengths: Float[Tensor, " k"]) -> Float[Tensor, "n k"]:
        """Predict factors with the weights that minimise squared errors + strength · |weights|², per factor."""
        weights = self.basis @ (self.covariance / (self.variance[:, None] + strengths))
        return self.factor_mean + (poses - self.mean) @ weights


class Explained(NamedTuple):
    """R² of each factor and the ridge strengths that were chosen.

    Example:

        poses, part = torch.randn(200, 2, dtype=torch.float64), torch.arange(200) % 3  # fit, choose, score
        found = explain(poses, torch.zeros(200, dtype=torch.long), 3 * poses[:, :1], part)
        round(found.r2.item(), 2), found.strengths.item()  # (1.0, 0.001)
    """

    r2: Float[Tensor, " k"]
    strengths: Float[Tensor, " k"]


def split(labels: Int64[Tensor, " m"], seed: int) -> Int64[Tensor, " m"]:
    """Assign each digit to FIT, CHOOSE or SCORE: 40, 10 and 50 percent, stratified by class."""
    part = torch.full_like(labels, FIT, device="cpu")
    rest, scored = stratified_indices(labels.cpu(), len(labels) // 2, seed)
    part[scored] = SCORE
    _, chosen = stratified_indices(labels.cpu()[rest], len(rest) // 5, seed)
    part[rest[chosen]] = CHOOSE
    return part


def explain(
    poses: Float[Tensor, "n f"], classes: Int64[Tensor, " n"], factors: Float[Tensor, "n k"], part: Int64[Tensor, " n"]
) -> Explained:
    """Compute R² of each factor on the SCORE images.

    The strength is chosen by fitting on FIT and evaluating on CHOOSE; the final regression fits on both.
    """
    to_fit, *others = (int(classes[part == which].bincount(minlength=1).max()) for which in (FIT, CHOOSE, SCORE))
    if to_fit < LEAST or min(others) < 2:
        raise ValueError(
            f"explain expects a class with {LEAST} images to fit, got at most {to_fit}; give more digits or more copies"
        )
    grid = factors.new_tensor(STRENGTHS)[:, None].expand(-1, factors.shape[1])
    tried = r_squared(poses, classes, factors, part == FIT, part == CHOOSE, grid)
    strengths = grid.gather(0, tried.argmax(0, keepdim=True))
    return Explained(r_squared(poses, classes, factors, part != SCORE, part == SCORE, strengths)[0], strengths[0])


def r_squared(
    poses: Float[Tensor, "n f"],
    classes: Int64[Tensor, " n"],
    factors: Float[Tensor, "n k"],
    fitted: Bool[Tensor, " n"],
    scored: Bool[Tensor, " n"],
    strengths: Float[Tensor, "t k"],
) -> Float[Tensor, "t k"]:
    """Compute R² for each row of strengths: 1 - squared error / squared distance from the class mean.

    Both sums run over all `scored` images.
    """
    poses = poses.double() / deviations(poses[fitted].double(), classes[fitted])
    missed, spread = torch.zeros_like(strengths), torch.zeros_like(strengths[0])
    for which in classes[scored].unique():
        own, here = (classes == which) & fitted, (classes == which) & scored
        truth = factors[here]
        spread += (truth - truth.mean(0)).square().sum(0)
        ridge = fit_ridge(poses[own], factors[own]) if own.sum() >= LEAST else None
        for row, strength in enumerate(strengths):
            predicted = factors[fitted].mean(0) if ridge is None else ridge.predict(poses[here], strength)
            missed[row] += (truth - predicted).square().sum(0)
    return 1 - missed / spread


def deviations(poses: Float[Tensor, "n f"], classes: Int64[Tensor, " n"]) -> Float[Tensor, " f"]:
    """Compute the standard deviation of each pose dimension about its class mean, pooled over classes.

    It is infinite for constant dimensions, which removes them. With one scale per class, a unit that is almost dead in
    the fitted images of a class could dominate in a scored one.
    """
    _, index, counts = classes.unique(return_inverse=True, return_counts=True)
    means = poses.new_zeros(len(counts), poses.shape[1]).index_add_(0, index, poses) / counts[:, None]
    found = (poses - means[index]).square().mean(0).sqrt()
    # models compute in float32, where so small a deviation is rounding
    return found.masked_fill(found <= 1e-6 * poses.square().mean(0).sqrt(), torch.inf)


def fit_ridge(poses: Float[Tensor, "n f"], factors: Float[Tensor, "n k"]) -> Ridge:
    """Fit a ridge regression. Both tensors are float64; poses share one scale, since one strength applies to all."""
    mean, factor_mean = poses.mean(0), factors.mean(0)
    centred = poses - mean
    variance, basis = torch.linalg.eigh(centred.T @ centred)
    covariance = basis.T @ (centred.T @ (factors - factor_mean))
    return Ridge(mean, basis, variance.clamp(min=0), covariance, factor_mean)
