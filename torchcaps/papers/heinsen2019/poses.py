"""Poses of a toy's class capsule as the viewpoint changes, for figures 4, 6 and 7. Nothing here draws.

Letters beyond the usual: `k` toys, `v` views, `r` the pose vectors of a capsule (the rows of its pose matrix), `p`
points, `q` dimensions of points.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from torchcaps.analysis.routing import evaluating
from torchcaps.data import Labelled
from torchcaps.data.augment import Augmentation
from torchcaps.data.sets.smallnorb import Factors
from torchcaps.figures.numbers import as_input

# fixed while the other varies; not given in the paper
FIXED = {"azimuth": {"elevation": 4, "lighting": 0}, "elevation": {"azimuth": 0, "lighting": 0}}
AT_ONCE = 18  # images
LEAST = 1e-12


class Tracks(NamedTuple):
    """Images and poses of toys under ordered views."""

    toys: list[tuple[int, int]]  # category, instance
    degrees: list[int]  # angles of the views
    indices: Int64[Tensor, "k v"]  # index of each view in the data set
    poses: Float[Tensor, "k v r e"]  # poses of the capsule of the toy's class
    right: Bool[Tensor, "k v"]  # whether that class is predicted


class Changes(NamedTuple):
    """Comparison of each pose vector with the same vector in the first view."""

    distance: Float[Tensor, "*k v r"]  # relative to its norm in the first view
    norm: Float[Tensor, "*k v r"]  # likewise
    cosine: Float[Tensor, "*k v r"]


class Scaled(NamedTuple):
    """Projection of points to the plane."""

    points: Float[Tensor, "p 2"]
    stress: float  # root of the squared errors of all distances, relative to the squared distances


def in_degrees(vary: str, number: int) -> int:
    """Convert the official table's number of an azimuth or an elevation to degrees."""
    return 10 * number if vary == "azimuth" else 30 + 5 * number


def sequences(
    labels: Int64[Tensor, " n"], factors: Factors, vary: str
) -> tuple[list[tuple[int, int]], list[int], Int64[Tensor, "k v"]]:
    """List every toy (category, instance), the degrees of `vary` and the indices of its images; the rest is `FIXED`."""
    if vary not in FIXED:
        raise ValueError(f"views vary by {' or '.join(FIXED)}; got {vary!r}")
    if len(labels) != len(factors.instance):
        raise ValueError(
            f"{len(labels):,} images need as many viewpoints, got {len(factors.instance):,}; "
            "give those of the same part"
        )
    wanted = torch.ones(len(labels), dtype=torch.bool)
    for name, value in FIXED[vary].items():
        wanted &= getattr(factors, name) == value
    views, found = getattr(factors, vary), {}
    for index in wanted.nonzero().flatten().tolist():
        found.setdefault((int(labels[index]), int(factors.instance[index])), {})[int(views[index])] = index
    numbers = sorted({number for toy in found.values() for number in toy})
    if not found or any(sorted(toy) != numbers for toy in found.values()):
        raise ValueError(
            f"some toy lacks an image for some {vary}; give a whole part of smallNORB and its own viewpoints"
        )
    toys = sorted(found)
    return (
        toys,
        [in_degrees(vary, number) for number in numbers],
        torch.tensor([[found[toy][n] for n in numbers] for toy in toys]),
    )


def tracks(
    model: nn.Module, data: Labelled, factors: Factors, vary: str, augment: Sequence[Augmentation] = ()
) -> Tracks:
    """Run the model on every toy of the sequences, preprocessed by the `augment` of its run as in evaluation."""
    toys, degrees, indices = sequences(data.labels, factors, vary)
    poses, right = [], []
    with evaluating(model):
        for some in indices.flatten().split(AT_ONCE):
            capsules, labels = model(as_input(model, data.images[some], augment)), data.labels[some]
            right.append(capsules.confidence.argmax(-1).cpu() == labels)
            poses.append(capsules.poses.cpu()[torch.arange(len(some)), labels])
    shape = {"k": len(toys), "v": len(degrees)}
    return Tracks(
        toys,
        degrees,
        indices,
        rearrange(torch.cat(poses), "(k v) r e -> k v r e", **shape),
        torch.cat(right).view(*indices.shape),
    )


def changes(poses: Float[Tensor, "*k v r e"]) -> Changes:
    """Compute distance to the first view, norm and cosine of every pose vector."""
    first = poses[..., :1, :, :]
    norms, start = poses.norm(dim=-1), first.norm(dim=-1).clamp(min=LEAST)
    cosine = (poses * first).sum(-1) / (norms.clamp(min=LEAST) * start)
    return Changes((poses - first).norm(dim=-1) / start, norms / start, cosine)


def scaled(points: Float[Tensor, "p q"], n_steps: int = 300) -> Scaled:
    """Scale to the plane: points whose distances are as near as possible to the given points' (least squares).

    Starts at the two principal axes and goes on by majorization (de Leeuw 1977): every step lowers the stress, and
    nothing is random.
    """
    points = points.double()
    wanted = torch.cdist(points, points)
    centred = points - points.mean(0)
    *_, axes = torch.linalg.svd(centred, full_matrices=False)
    plane = torch.nn.functional.pad(centred @ axes[:2].T, (0, max(0, 2 - min(axes.shape))))[:, :2]
    for _ in range(n_steps):
        plane = _majorized(plane, wanted)
    lost = (torch.cdist(plane, plane) - wanted).square().sum() / wanted.square().sum().clamp(min=LEAST)
    return Scaled(plane.float(), lost.sqrt().item())


def _majorized(plane: Float[Tensor, "p 2"], wanted: Float[Tensor, "p p"]) -> Float[Tensor, "p 2"]:
    """Apply Guttman's transform with equal weights."""
    now = torch.cdist(plane, plane)
    ratios = torch.where(now > LEAST, wanted / now.clamp(min=LEAST), 0)
    return (plane * ratios.sum(1, keepdim=True) - ratios @ plane) / len(plane)
