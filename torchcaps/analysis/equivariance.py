"""Equivariance of poses: R² of linear regressions from a pose to shift, rotation, scale, shear and stroke width.

Test digits are transformed by known factors, the model computes a pose for each image, and a ridge regression predicts
the factors from poses of held-out digits. Poses of different classes lie in different spaces, so each class has its own
regression, and R² is relative to the mean of each class: the class alone explains nothing.

The class is the predicted one, not the label: it selects the pose, and in use there is no label.
A digit's own slant, size and width are unknown, so no model reaches 1: compare models on the same digits.

Letters beyond the usual: `n` images, `f` pose dimensions, `k` factors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, pad

from torchcaps.analysis.metrics import error_percent
from torchcaps.analysis.routing import evaluating
from torchcaps.data import Labelled, fingerprint
from torchcaps.data.augment import Augmentation, Shift
from torchcaps.data.batches.images import in_order
from torchcaps.data.sets.affine import BRIGHT, ROTATION, SHEAR, transform
from torchcaps.data.sets.digits import stratified_indices
from torchcaps.layers import Capsules

SHIFT = 2  # whole pixels, as in the training of MNIST models
# uniform and independent. One scale, not two: the horizontal scale of a 1 would be its stroke width under another name.
# It only shrinks, since a digit fills most of its frame. The shear is affNIST's: it moves the right side down, which a
# narrow digit hardly shows
RANGES = {
    "down": (-SHIFT, SHIFT),
    "right": (-SHIFT, SHIFT),
    "rotation": (-ROTATION, ROTATION),  # degrees, counter-clockwise
    "scale": (0.8, 1.0),
    "shear": (-SHEAR, SHEAR),
    "stroke width": (-1.0, 1.0),  # pixels, as `thickened` applies them
}
FACTORS = tuple(RANGES)
LARGEST = 28  # largest digit that stays inside the 40x40 canvas of `transform`
FIT, CHOOSE, SCORE = range(3)  # parts of the digits: fit the regression, choose its strength, evaluate it
STRENGTHS = tuple(10.0**power for power in range(-3, 6))
LEAST = 20  # images; a class that is predicted less often gets the mean


class KnownDigits(NamedTuple):
    """Transformed digits with the factors they were made by.

    Example:

        digits = Labelled(torch.zeros(3, 1, 28, 28, dtype=torch.uint8), torch.tensor([4, 1, 7]))
        known = known_digits(digits, (28, 28), torch.Generator().manual_seed(0), copies=2)
        known.labels.tolist(), list(known.factors.shape)  # ([4, 1, 7, 4, 1, 7], [6, 6])
    """

    images: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]
    factors: Float[Tensor, "n k"]  # float64 on the host, named by FACTORS
    sources: Int64[Tensor, " n"]  # index of the original digit


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


@dataclass(frozen=True, kw_only=True)
class Equivariance:
    """Result of `equivariance` as plain numbers, by factor where they belong to one.

    Example:

        import torchcaps
        model, digits = torchcaps.load("capsnet-mnist-small"), torchcaps.data.load("generated", "test")
        found = equivariance(model, digits, torch.device("cpu"), copies=2)
        list(found.r2) == list(FACTORS), found.n_features  # (True, 16)
    """

    r2: dict[str, float]
    strength: dict[str, float]
    n_features: int
    n_fitted: int  # images, including those that chose the strength
    n_scored: int
    n_left_out: int  # images whose ink would leave the frame
    error_percent: float  # classification error on the transformed digits
    digits: str  # fingerprint
    copies: int
    seed: int

    def plain(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return asdict(self)


def equivariance(
    model: nn.Module,
    digits: Labelled,
    device: torch.device,
    *,
    augment: Sequence[Augmentation] = (),
    copies: int = 4,
    seed: int = 0,
) -> Equivariance:
    """Compute R² of every factor on half of the digits, with regressions fitted to the other half.

    The model is on `device`. Give upright, centred digits: MNIST's own, even for a model with a larger frame.
    """
    if not isinstance(digits, Labelled):
        raise ValueError(
            f"equivariance moves images with one label each, and {type(model).__name__} was trained on "
            f"{type(digits).__name__}; give a network for such images"
        )
    _, *frame = model.image
    on_device, rng = Labelled(digits.images.to(device), digits.labels), torch.Generator().manual_seed(seed)
    known = known_digits(on_device, tuple(frame), rng, copies=copies)
    with evaluating(model):
        batches = in_order(Labelled(known.images, known.labels), 500, device, augment)
        seen = [tuple(part.cpu() for part in pose_of(model, batch.images)) for batch in batches]
    poses, classes = (torch.cat(parts) for parts in zip(*seen, strict=True))
    part = split(digits.labels, seed)[known.sources]
    found = explain(poses, classes, known.factors, part)
    n_scored = int((part == SCORE).sum())
    return Equivariance(
        r2=dict(zip(FACTORS, found.r2.tolist(), strict=True)),
        strength=dict(zip(FACTORS, found.strengths.tolist(), strict=True)),
        n_features=poses.shape[1],
        n_fitted=len(part) - n_scored,
        n_scored=n_scored,
        n_left_out=copies * len(digits.labels) - len(part),
        error_percent=error_percent(classes, known.labels),
        digits=fingerprint(digits),
        copies=copies,
        seed=seed,
    )


def side_by_side(results: Mapping[str, Equivariance]) -> str:
    """Format results as a text table with one column per model."""
    if len({(result.digits, result.copies, result.seed) for result in results.values()}) != 1:
        raise ValueError(
            "side_by_side expects results on the same digits with the same copies and seed; measure these models "
            "again alike"
        )
    ours = list(results.values())
    rows = [("R²", *results)]
    rows += [(name, *(f"{result.r2[name]:.3f}" for result in ours)) for name in ours[0].r2]
    rows += [("pose dimensions", *(f"{result.n_features:,}" for result in ours))]
    rows += [("images scored", *(f"{result.n_scored:,}" for result in ours))]
    rows += [("error %", *(f"{result.error_percent:.2f}" for result in ours))]
    first, *rest = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join(
        "  ".join([row[0].ljust(first), *(cell.rjust(n) for cell, n in zip(row[1:], rest, strict=True))])
        for row in rows
    )


def pose_of(model: nn.Module, images: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b f"], Int64[Tensor, "b"]]:
    """Compute the pose and predicted class of each image, by the first of these that the model has:

    a method `pose_features(images)` that returns both;
    a method `features(images)`, the input of the last layer, and logits [b j];
    `Capsules`, one per class, the most active of which is predicted.
    """
    if hasattr(model, "pose_features"):
        poses, classes = model.pose_features(images)
    elif hasattr(model, "features"):
        poses, classes = model.features(images), model(images).argmax(-1)
    else:
        capsules = model(images)
        if not isinstance(capsules, Capsules):
            raise ValueError(
                "pose_of expects a model that returns Capsules, or has features(images) or pose_features(images); "
                f"{type(model).__name__} returns {type(capsules).__name__}; give it pose_features(images) -> (poses "
                "[b f], classes [b])"
            )
        classes = capsules.confidence.argmax(-1)
        poses = capsules.poses[torch.arange(len(classes), device=classes.device), classes]
    return poses.flatten(1), classes


def known_digits(
    digits: Labelled, frame: tuple[int, int], rng: torch.Generator, *, copies: int, chunk: int = 500
) -> KnownDigits:
    """Transform `copies` of each digit by random factors into a frame [h w], ordered (copy, digit), on their device.

    A copy is dropped if its ink (brighter than BRIGHT) would leave the frame under any shift, not only its own, so that
    shifts stay independent of the image. `rng` is on the host. Fewer `copies` give the first part of the same set;
    `chunk` bounds the memory.
    """
    images, labels = digits
    if max(images.shape[-2:]) > LARGEST:
        raise ValueError(
            f"known_digits expects digits of at most {LARGEST}x{LARGEST}, got {list(images.shape)}; give smaller ones"
        )
    sources, factors = torch.arange(len(labels)).repeat(copies), draw_factors(copies * len(labels), rng)
    made = [
        _make(images[which.to(images.device)], own, frame)
        for which, own in zip(sources.split(chunk), factors.split(chunk), strict=True)
    ]
    fits = torch.cat([fit for _, fit in made]).cpu()
    if fits.sum() * 2 < len(fits):
        raise ValueError(
            f"only {int(fits.sum()):,} of {len(fits):,} transformed digits fit into {frame[0]}x{frame[1]}; "
            "give digits with more empty space around them"
        )
    kept = sources[fits]
    return KnownDigits(torch.cat([pictures[fit] for pictures, fit in made]), labels.cpu()[kept], factors[fits], kept)


def draw_factors(n: int, rng: torch.Generator) -> Float[Tensor, "n k"]:
    """Draw random factors, ordered as FACTORS. Shifts are whole pixels.

    Stroke widths are multiples of 1/128, for which `thickened` is exact on every device.
    """
    low, high = torch.tensor(list(RANGES.values()), dtype=torch.float64).T
    chance = torch.rand(n, len(FACTORS), generator=rng, dtype=torch.float64)
    factors = low + (high - low) * chance
    factors[:, :2] = (low[:2] + (high[:2] - low[:2] + 1) * chance[:, :2]).floor()
    factors[:, -1] = (factors[:, -1] * 128).round() / 128
    return factors


def _make(
    images: UInt8[Tensor, "n c h w"], factors: Float[Tensor, "n k"], frame: tuple[int, int]
) -> tuple[Tensor, Bool[Tensor, " n"]]:
    """Transform images, and mark those whose ink stays in the frame under every shift."""
    down_right, (rotation, scale, shear, width) = factors[:, :2], factors[:, 2:].unbind(1)
    nil = torch.zeros_like(rotation)
    upright = transform(images, torch.stack([rotation, shear, scale, scale, nil, nil], dim=1))
    canvas = thickened(upright, width)  # after scaling, so that widths are in pixels of the result
    height, breadth = frame
    n_ink, n_inside = (
        (picture > BRIGHT).sum((1, 2, 3))
        for picture in (canvas, _middle(canvas, height - 2 * SHIFT, breadth - 2 * SHIFT))
    )
    # with a margin, so that a shift brings in the image's own border, not zeros
    wide = _middle(canvas, height + 2 * SHIFT, breadth + 2 * SHIFT)
    moved = Shift(SHIFT).apply(wide, down_right.long().to(wide.device))
    return _middle(moved, height, breadth), n_ink == n_inside


def _middle(images: UInt8[Tensor, "n c h w"], height: int, width: int) -> UInt8[Tensor, "n c h2 w2"]:
    """Crop images to the centre, or pad them with zeros."""
    down, right = height - images.shape[-2], width - images.shape[-1]
    return pad(images, [right // 2, right - right // 2, down // 2, down - down // 2])


def thickened(images: UInt8[Tensor, "n c h w"], widths: Float[Tensor, " n"]) -> UInt8[Tensor, "n c h w"]:
    """Widen strokes by `widths` pixels, both sides together; negative widths thin them. Range: -2 to 2.

    A grey dilation (or erosion) by one pixel changes a stroke by two pixels. For smaller changes the image is
    interpolated with its dilation: the profile across a saturated stroke gains `widths` pixels of ink as a grey rim.
    """
    share = (widths / 2).float().to(images.device)[:, None, None, None]
    ink = torch.where(share < 0, -1, 1) * images.float()  # thinning strokes dilates the background
    return (ink + share.abs() * (_dilated(ink) - ink)).abs().round().to(torch.uint8)


def _dilated(levels: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    """Average the dilations by a cross and by a square: along a diagonal one is below a pixel, the other above."""
    across = max_pool2d(levels, (1, 3), stride=1, padding=(0, 1))
    cross = torch.maximum(across, max_pool2d(levels, (3, 1), stride=1, padding=(1, 0)))
    square = max_pool2d(across, (3, 1), stride=1, padding=(1, 0))
    return (cross + square) / 2


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
