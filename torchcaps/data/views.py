"""Held-out training pictures, shown otherwise than they are trained on: for choices that must not be made on a test set."""

from collections.abc import Callable

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from torchcaps.data import Labelled
from torchcaps.data.sets import affine

N_WARPED = 8  # transforms of every held-out digit
SEED = 41_2017  # no test set's, and no run's


def _middle(images: UInt8[Tensor, "n c h w"]) -> UInt8[Tensor, "n c 28 28"]:
    """The digits of `mnist-40` without the frame around them."""
    inner = images[..., affine.PADDING : -affine.PADDING, affine.PADDING : -affine.PADDING]
    if tuple(images.shape[-2:]) != (affine.FRAME, affine.FRAME) or int(inner.sum(dtype=torch.long)) != int(images.sum(dtype=torch.long)):
        raise ValueError(f"this view is for the training digits of mnist-40, in the middle of 40x40; got {list(images.shape)}")
    return inner


def _placed(held: Labelled) -> tuple[UInt8[Tensor, "n c 40 40"], Int64[Tensor, " n"]]:
    """Each digit at one place, as in the test part of `mnist-40`."""
    return affine.placed(_middle(held.images), torch.Generator().manual_seed(SEED)), held.labels


def _warped(held: Labelled) -> tuple[UInt8[Tensor, "n c 40 40"], Int64[Tensor, " n"]]:
    """Each digit under affine maps, by the rule of `affnist-like`."""
    images = affine.warped(_middle(held.images), torch.Generator().manual_seed(SEED), N_WARPED).images
    return images, held.labels.repeat(N_WARPED)


VIEWS: dict[str, Callable[[Labelled], tuple[Tensor, Tensor]]] = {"placed": _placed, "warped": _warped}


def shown(held: Labelled, view: str) -> Labelled:
    """The same every time: a view has its own seed."""
    if view not in VIEWS:
        raise ValueError(f"no view {view!r} of held-out pictures; there are {', '.join(VIEWS)}")
    return Labelled(*VIEWS[view](held))
