"""Equivariance of poses: R² of linear regressions from a pose to shift, rotation, scale, shear and stroke width.

Test digits are transformed by known factors, the model computes a pose for each image, and a ridge regression predicts
the factors from poses of held-out digits (`readout`).

The class is the predicted one, not the label: it selects the pose, and in use there is no label.
A digit's own slant, size and width are unknown, so no model reaches 1: compare models on the same digits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.analysis.known_digits import FACTORS, known_digits
from torchcaps.analysis.metrics import error_percent
from torchcaps.analysis.readout import SCORE, explain, split
from torchcaps.analysis.routing import evaluating
from torchcaps.data import Labelled, fingerprint
from torchcaps.data.augment import Augmentation
from torchcaps.data.batches.images import in_order
from torchcaps.layers import Capsules


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
