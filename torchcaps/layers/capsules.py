"""Common interface between capsule layers: poses and activities."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from torchcaps.ops import length


class Capsules(NamedTuple):
    """Poses and activities of capsules. On a grid, i runs over (type, row, column)."""

    poses: Float[Tensor, "*b i d"] | Float[Tensor, "*b i r d"]  # r rows if a pose is a matrix
    activity: Float[Tensor, "*b i"]  # length, score or ladder activity

    @classmethod
    def of(cls, poses: "Capsules | Float[Tensor, '*b i d']") -> "Capsules":
        """Wrap a plain tensor of poses, with its lengths as activity; return capsules unchanged."""
        return poses if isinstance(poses, Capsules) else cls(poses, length(poses))


def check_capsules(layer: str, poses: Tensor, n_in: int | None, d_in: int) -> None:
    """Check the capsules' number (`n_in` None: any) and size, since einsum silently broadcasts an axis of size 1."""
    if poses.ndim < 2 or poses.shape[-1] != d_in or n_in not in (None, poses.shape[-2]):
        raise ValueError(
            f"{layer} expects [..., {n_in or 'any number of'} capsules, {d_in} numbers each], got {list(poses.shape)}"
        )
