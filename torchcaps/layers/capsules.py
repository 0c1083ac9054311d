"""What capsule layers hand to each other, whatever the routing."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from torchcaps.ops import length


class Capsules(NamedTuple):
    """Capsules in one row: i runs over (type, row, column) where they stand on a grid."""

    poses: Float[Tensor, "*b i d"] | Float[Tensor, "*b i r d"]  # r rows where a pose is a matrix
    activity: Float[Tensor, "*b i"]  # how much each is there: its length, score or ladder activity

    @classmethod
    def of(cls, poses: "Capsules | Float[Tensor, '*b i d']") -> "Capsules":
        """Capsules as they are; a plain tensor of poses gets its lengths as activity."""
        return poses if isinstance(poses, Capsules) else cls(poses, length(poses))


def check_capsules(layer: str, poses: Tensor, n_in: int | None, d_in: int) -> None:
    """einsum would broadcast a capsule axis of size 1 without a word. `n_in` None: any number of capsules."""
    if poses.ndim < 2 or poses.shape[-1] != d_in or n_in not in (None, poses.shape[-2]):
        raise ValueError(f"{layer} expects [..., {n_in or 'any number of'} capsules, {d_in} numbers each], got {list(poses.shape)}")
