"""Common interface between capsule layers: poses and activities."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils._pytree import _register_namedtuple

from torchcaps.layers.inputs import check_floating, check_tensor
from torchcaps.ops import length
from torchcaps.ops.squash import direction

INF = float("inf")
NEAR = 1e-6  # logits are taken of probabilities at least this far from 0 and 1


class Capsules(NamedTuple):
    """Poses and activities of capsules. On a grid, i runs over (type, row, column).

    `activity` is the probability that a capsule is present. Routings that compute its logit keep it as `score`. Without
    a score, the length of a vector pose is its activity. `of(poses, present)` and `masked(present)` take out capsules
    that are not there, such as padding.

    Example:

        found = RoutedCapsules(n_in=32, n_out=10, d_in=8, d_out=16)(torch.randn(4, 32, 8))
        list(found.poses.shape), list(found.activity.shape)  # ([4, 10, 16], [4, 10])
        tokens, present = torch.randn(2, 5, 8), torch.arange(5) < torch.tensor([[3], [5]])
        Capsules.of(tokens, present).activity[0, 3:].tolist()  # [0.0, 0.0]
    """

    poses: Float[Tensor, "*b i d"] | Float[Tensor, "*b i r d"]  # r rows if a pose is a matrix
    activity: Float[Tensor, "*b i"]
    score: Float[Tensor, "*b i"] | None = None

    @classmethod
    def of(cls, poses: Capsules | Float[Tensor, "*b i d"], present: Bool[Tensor, "*b i"] | None = None) -> Capsules:
        """Wrap a plain tensor of poses, with its lengths as activity; return capsules unchanged, or masked.

        Poses that are not present may hold anything: their gradient is 0.
        """
        if present is None:
            return poses if isinstance(poses, Capsules) else cls(poses, length(poses))
        if isinstance(poses, Capsules):
            return poses.masked(present)
        _check_present(present, poses.shape[:-1])
        # before their length is taken, whose gradient would be NaN where a pose is
        poses = poses.masked_fill(~present.unsqueeze(-1), 0)
        return cls(poses, length(poses).masked_fill(~present, 0))

    @classmethod
    def scored(cls, poses: Tensor, score: Float[Tensor, "*b i"]) -> Capsules:
        """Wrap poses whose activity is the sigmoid of a score; -inf masks a capsule, +inf makes it certain."""
        _check_scores(poses, score)
        return cls(poses, score.sigmoid(), score)

    def masked(self, present: Bool[Tensor, "*b i"]) -> Capsules:
        """Take out capsules that are not present: pose and activity become 0, a score -inf. Routings leave them out.

        Routing support counts their couplings still.
        """
        _check_present(present, self.activity.shape)
        gone = ~present
        beside = gone[(..., *(None,) * (self.poses.ndim - gone.ndim))]
        score = None if self.score is None else self.score.masked_fill(gone, -INF)
        return Capsules(self.poses.masked_fill(beside, 0), self.activity.masked_fill(gone, 0), score)

    @property
    def logit(self) -> Float[Tensor, "*b i"]:
        """Logit of the activity: the score, where the routing computed one."""
        return self.activity.clamp(NEAR, 1 - NEAR).logit() if self.score is None else self.score

    @property
    def confidence(self) -> Float[Tensor, "*b i"]:
        """Quantity to rank capsules by: the score, which does not saturate, or else the activity."""
        return self.activity if self.score is None else self.score


# torch.export.save writes the names of types that a program returns
_register_namedtuple(Capsules, serialized_type_name="torchcaps.layers.capsules.Capsules")


def _check_present(present: Tensor, shape: torch.Size) -> None:
    """Refuse a mask that is not one bool per capsule."""
    check_tensor("Capsules", "present", present)
    if present.dtype != torch.bool or present.shape != shape:
        raise ValueError(
            f"Capsules expects present as torch.bool of {list(shape)}, true where a capsule is there; "
            f"got {present.dtype} of {list(present.shape)}"
        )


def _check_scores(poses: Tensor, score: Tensor) -> None:
    """Refuse a mask in place of scores, and scores of other capsules."""
    check_tensor("Capsules.scored", "score", score)
    if not score.is_floating_point():
        raise ValueError(
            f"Capsules.scored expects scores in floating point, got {score.dtype}; "
            "for a mask write Capsules.of(poses, present)"
        )
    # asking for their number would fix it in an exported program
    odd = not torch.compiler.is_compiling() and score.shape != poses.shape[: score.ndim]
    if odd or poses.ndim - score.ndim not in (1, 2):
        raise ValueError(
            f"Capsules.scored expects a score for each capsule, [*b i] with poses [*b i d] or [*b i r d]; "
            f"got scores {list(score.shape)} and poses {list(poses.shape)}"
        )


def scores_of(capsules: Capsules | Tensor, poses: Tensor) -> Float[Tensor, "*b i"]:
    """Return the scores of matrix poses: plain ones are certain, and an activity of 0 masks a capsule as -inf does."""
    if not isinstance(capsules, Capsules):
        return poses.new_full(poses.shape[:-2], INF)
    if capsules.score is not None:
        return capsules.score
    return capsules.logit.masked_fill(capsules.activity == 0, -INF)


def check_capsules(layer: str, poses: Tensor, n_in: int | None, d_in: int) -> None:
    """Check the capsules' number (`n_in` None: any) and size, since einsum silently broadcasts an axis of size 1."""
    if poses.ndim < 2 or poses.shape[-1] != d_in or (n_in is not None and poses.shape[-2] != n_in):
        raise ValueError(
            f"{layer} expects [..., {n_in or 'any number of'} capsules, {d_in} dimensions each], "
            f"got {list(poses.shape)}"
        )


def flat_poses(layer: str, capsules: Capsules | Tensor, n_in: int | None, d_in: int) -> Float[Tensor, "*b i d"]:
    """Return checked vector poses; matrices are flattened row by row."""
    poses = capsules.poses if isinstance(capsules, Capsules) else capsules
    check_floating(layer, "poses", poses)
    if not _are_matrices(capsules, n_in, d_in):
        check_capsules(layer, poses, n_in, d_in)
        return poses
    if poses.shape[-2] * poses.shape[-1] != d_in or n_in not in (None, poses.shape[-3]):
        raise ValueError(
            f"{layer} expects [..., {n_in or 'any number of'} capsules, {d_in} dimensions each], or matrices of {d_in} "
            f"dimensions; got {list(poses.shape)}"
        )
    return poses.flatten(-2)


def vectors(layer: str, capsules: Capsules | Tensor, n_in: int | None, d_in: int) -> Float[Tensor, "*b i d"]:
    """Return checked vector poses whose length is the activity: where there is a score, poses are scaled to it."""
    if not isinstance(capsules, Capsules) or capsules.score is None:
        return flat_poses(layer, capsules, n_in, d_in)
    activity, poses = active_poses(layer, capsules, n_in, d_in)
    return direction(poses) * activity.unsqueeze(-1)


def active_poses(
    layer: str, capsules: Capsules | Tensor, n_in: int | None, d_in: int
) -> tuple[Float[Tensor, "*b i"], Float[Tensor, "*b i d"]]:
    """Return activities and checked vector poses; plain poses are all active. A masked pose may hold NaN."""
    poses = flat_poses(layer, capsules, n_in, d_in)
    if not isinstance(capsules, Capsules):
        return poses.new_ones(poses.shape[:-1]), poses
    # 0 · NaN is not 0
    return capsules.activity, poses.masked_fill((capsules.activity == 0).unsqueeze(-1), 0)


def matrices(
    layer: str, capsules: Capsules | Tensor, n_in: int | None, rows: int, d_in: int
) -> Float[Tensor, "*b i r d"]:
    """Return checked matrix poses: vectors of rows · d_in dimensions are read row by row."""
    poses = capsules.poses if isinstance(capsules, Capsules) else capsules
    check_floating(layer, "poses", poses)
    if isinstance(capsules, Capsules):
        are_vectors = poses.ndim == capsules.activity.ndim + 1
    else:
        are_vectors = not _fit(poses, n_in, rows, d_in)  # one row of a plain tensor: matrices rather than vectors
    if are_vectors and poses.shape[-1] == rows * d_in:
        poses = poses.unflatten(-1, (rows, d_in))
    if not _fit(poses, n_in, rows, d_in):
        came = capsules.poses if isinstance(capsules, Capsules) else capsules
        raise ValueError(
            f"{layer} expects [..., {n_in or 'any number of'} capsules, {rows} rows, {d_in} dimensions each], or "
            f"vectors of {rows * d_in}; got {list(came.shape)}"
        )
    return poses


def checked_types(layer: str, n_in: int | None, n_types: int | None) -> int | None:
    """Return over how many inputs or types the weights run: `n_types`, which must divide `n_in`, or all inputs."""
    if n_types is None:
        return n_in
    if n_in is None or n_types < 1 or n_in % n_types:
        raise ValueError(
            f"{layer}: sharing over places needs n_types that divides n_in; got n_types={n_types}, n_in={n_in}"
        )
    return n_types


def _fit(poses: Tensor, n_in: int | None, rows: int, d_in: int) -> bool:
    return poses.ndim > 2 and tuple(poses.shape[-2:]) == (rows, d_in) and n_in in (None, poses.shape[-3])


def _are_matrices(capsules: Capsules | Tensor, n_in: int | None, d: int) -> bool:
    if isinstance(capsules, Capsules):
        return capsules.poses.ndim == capsules.activity.ndim + 2
    # a plain tensor tells by the declared sizes alone
    shape = capsules.shape
    # sizes of poses first: asking about the batch would fix it in an exported program
    return len(shape) > 2 and shape[-2] * shape[-1] == d != shape[-1] and n_in == shape[-3]
