"""Squash a vector so that its length reads as a probability, and the way back (Sabour 2017, Eq. 1)."""

import torch
from jaxtyping import Float
from torch import Tensor

# Added to a squared length under a root. Small enough to be invisible above a length of 1e-4, large enough that the
# inverse cube of its root stays finite in float32.
EPS = 1e-12
# Squares of float32 overflow beyond a length of 1e19. A longer vector is shortened by a power of two before its length
# is taken, and stays far longer than 1; every other one is multiplied by 1, which leaves its bits alone.
LONG, SHORTER = 1e17, 2.0**-40
VERY_LONG, MUCH_SHORTER = 1e29, 2.0**-80
# The longest vector `unsquash` believes: at length 1 the inverse is infinite.
LONGEST = 1 - 1e-6


def squash(vectors: Float[Tensor, "*b e"], eps: float = EPS) -> Float[Tensor, "*b e"]:
    """Keep the direction, map the length n to n² / (1 + n²). Value and gradient are zero at length 0."""
    wide = _wide(vectors)
    wide = wide * _shortening(wide)
    square = wide.square().sum(-1, keepdim=True)
    # rsqrt(square + eps), not 1 / (sqrt(square) + eps): the latter has a NaN gradient at length 0
    return (wide * (square / (1 + square)) * torch.rsqrt(square + eps)).to(vectors.dtype)


def squash_exponential(vectors: Float[Tensor, "*b e"], eps: float = EPS) -> Float[Tensor, "*b e"]:
    """Keep the direction, map the length n to 1 - exp(-n) (Mazzia 2021, Eq. 2). Linear near 0, where squash is flat."""
    wide = _wide(vectors)
    shortening = _shortening(wide)
    wide = wide * shortening
    n = (wide.square().sum(-1, keepdim=True) + eps).sqrt()
    # expm1, not 1 - exp: at the shortest lengths the difference would round to zero
    return (wide * (-torch.expm1(-n / shortening) / n)).to(vectors.dtype)


def unsquash(vectors: Float[Tensor, "*b e"], eps: float = EPS) -> Float[Tensor, "*b e"]:
    """Undo `squash`: keep the direction, map the length n to sqrt(n / (1 - n)), with n held below 1 - 1e-6."""
    # sqrt(eps) is a length of 1e-6 at the origin, where the true inverse has an infinite slope; here it is 1e3
    wide = _wide(vectors)
    n = (wide.square().sum(-1, keepdim=True) + eps).sqrt().clamp(max=LONGEST)
    return (wide * torch.rsqrt(n * (1 - n))).to(vectors.dtype)


def length(vectors: Float[Tensor, "*b e"], eps: float = EPS) -> Float[Tensor, "*b"]:
    """Euclidean length with a finite gradient at 0, where it reads sqrt(eps) = 1e-6."""
    wide = _wide(vectors)
    shortening = _shortening(wide)
    return ((wide * shortening).square().sum(-1) + eps).sqrt().div(shortening.squeeze(-1)).to(vectors.dtype)


def direction(vectors: Float[Tensor, "*b e"], eps: float = EPS) -> Float[Tensor, "*b e"]:
    """Scale to length 1; a vector of zeros stays zero."""
    return vectors * torch.rsqrt(vectors.square().sum(-1, keepdim=True) + eps)


def _shortening(wide: Float[Tensor, "*b e"]) -> Float[Tensor, "*b 1"]:
    """Factor that keeps the squared length finite: 1, or a small power of two for a huge vector."""
    size = wide.detach().abs().sum(-1, keepdim=True)
    return torch.where(size < LONG, 1.0, torch.where(size < VERY_LONG, SHORTER, MUCH_SHORTER)).to(wide.dtype)


def _wide(vectors: Tensor) -> Tensor:
    """Float32 at least: eight bits of mantissa are too few for a sum of squares."""
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))
