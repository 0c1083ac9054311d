"""EM routing of matrix capsules on a CPU, for a few images at a time.

All votes of a batch take 7.7 million numbers an image in the network of Hinton 2018. Few images take less time too,
since their votes stay nearer to the cache in all iterations.
"""

from functools import partial
from math import prod

from torch import Tensor

from torchcaps.ops.by_images import by_images, cannot_be_cut
from torchcaps.ops.conv_routing import LocalGrid
from torchcaps.ops.matrix_em import reference
from torchcaps.ops.matrix_em.reference import MatrixEMRouted

BLOCK_BYTES = 8 << 20  # votes of a block; as fast from 2 to 16 MiB


def refuses(poses: Tensor, **args) -> str | None:
    """Say why the blocked backend cannot run these arguments, or None."""
    return cannot_be_cut(poses)


def routed(
    scores: Tensor,
    poses: Tensor,
    weight: Tensor,
    beta_use: Tensor,
    beta_activate: Tensor,
    n_iters: int,
    grid: LocalGrid | None,
    coordinates: Tensor | None,
    inverse_temperature: float,
    density_power: float,
    recompute: bool,
) -> MatrixEMRouted:
    """Compute what the reference does, block by block where its votes are more than a block's."""
    settings = {"n_iters": n_iters, "grid": grid}
    settings |= {"inverse_temperature": inverse_temperature, "density_power": density_power}
    parameters = weight, beta_use, beta_activate, coordinates
    batch, n_images = scores.shape[:-1], images_of_a_block(poses, weight, grid)
    if prod(batch) <= n_images:
        return _routed(scores, poses, *parameters, recompute=recompute, **settings)
    of_images = scores.reshape(-1, scores.shape[-1]), poses.reshape(-1, *poses.shape[-3:])
    route = partial(_routed, recompute=False, **settings)  # the backward pass computes a block again anyway
    parts = by_images(route, n_images, of_images, parameters)
    return MatrixEMRouted(*(part.reshape(*batch, *part.shape[1:]) for part in parts))


def _routed(scores, poses, weight, beta_use, beta_activate, coordinates, **settings) -> MatrixEMRouted:
    return reference.routed(scores, poses, weight, beta_use, beta_activate, coordinates=coordinates, **settings)


def images_of_a_block(poses: Tensor, weight: Tensor, grid: LocalGrid | None) -> int:
    """Count the images whose votes fill a block; one at least."""
    n_types, (n_out, _, d_out) = weight.shape[0], weight.shape[-3:]
    seen = poses.shape[-3] // n_types if grid is None else grid.seen.numel()  # children of a type, by every parent
    bytes_per_image = n_types * seen * n_out * poses.shape[-2] * d_out * poses.element_size()
    return max(1, BLOCK_BYTES // max(bytes_per_image, 1))
