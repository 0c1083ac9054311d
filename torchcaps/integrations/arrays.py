"""Images in NumPy arrays, flat or not, as bytes that a network takes."""

from math import isqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

NEAR_ZERO = 1e-3  # a column whose mean is closer to 0 was standardised
COLOURS = (1, 3, 4)  # usual numbers of channels


def flat_rows(X: Any, image_shape: tuple[int, ...] | None) -> tuple[Any, tuple[int, int, int] | None]:
    """Flatten images to rows; return them with c h w, or None where the array is flat already."""
    if isinstance(X, list) and np.ndim(X[0] if X else 0) > 1:
        X = np.stack(X)  # a list of images
    if not isinstance(X, np.ndarray | Tensor) or X.ndim <= 2:
        return X, None  # lists and tables are flat rows; scikit-learn refuses the rest
    X = np.asarray(X)
    if X.ndim > 4:
        raise ValueError(
            f"CapsNetClassifier expects images [n h w] or [n c h w], or flat rows [n p]; got {list(X.shape)}"
        )
    if X.ndim == 4 and X.shape[3] in COLOURS and X.shape[1] not in COLOURS and image_shape is None:
        raise ValueError(
            f"images {list(X.shape)} look like [n h w c], and CapsNetClassifier expects [n c h w]; "
            "give np.moveaxis(X, -1, 1), "
            f"or image_shape={tuple(X.shape[1:])} if they are {X.shape[1]} channels of {X.shape[2]}x{X.shape[3]}"
        )
    return X.reshape(len(X), int(np.prod(X.shape[1:]))), (X.shape[1:] if X.ndim == 4 else (1, *X.shape[1:]))


def image_shape_of(
    given: Any, found: tuple[int, int, int] | None, n_features: int, fill_square: bool
) -> tuple[int, int, int]:
    """Determine c h w of the network's input from the user's `image_shape` and from the shape of the array."""
    said = None
    if given is not None:
        said = (1, *given) if np.size(given) == 2 else tuple(np.atleast_1d(given).tolist())
        if len(said) != 3 or min(said) < 1 or np.prod(said) != n_features:
            raise ValueError(
                f"image_shape {given} does not hold rows of {n_features} feature(s); give (h, w) or (c, h, w)"
            )
    if found is not None and said is not None and tuple(found) != said:
        raise ValueError(
            f"image_shape {given} is not that of the images, {tuple(found)} (c h w); leave it out, or give flat rows"
        )
    if found is not None or said is not None:
        return tuple(map(int, said if found is None else found))
    side = isqrt(n_features)
    if side**2 != n_features and not fill_square:
        raise ValueError(
            f"rows of {n_features} feature(s) are no square image; "
            "give image_shape=(h, w) or (c, h, w), images [n h w] or [n c h w], "
            "or fill_square=True to have zeros appended"
        )
    side += side**2 != n_features
    return 1, side, side


def as_bytes(X: np.ndarray, extent: tuple[float, float], shape: tuple[int, int, int]) -> Tensor:
    """Convert rows to images as bytes [n c h w]; `extent` is the range of the training set, clipped to 0..255."""
    least, most = extent
    # bytes are scaled too if the training set held other values
    if X.dtype != np.uint8 or extent != (0.0, 255.0):
        # float64, since float32 could round to a different byte
        X = np.clip((X.astype(np.float64) - least) / ((most - least) or 1.0), 0, 1)
        X = np.round(255 * X).astype(np.uint8)
    whole = np.zeros((len(X), int(np.prod(shape))), dtype=np.uint8)
    whole[:, : X.shape[1]] = X
    return torch.from_numpy(whole).unflatten(1, shape)


def about_negative(X: np.ndarray) -> str:
    """Say what is wrong with rows that have negative values."""
    values = f"from {X.min():g} to {X.max():g}"
    if np.abs(X.mean(0)).max() < NEAR_ZERO and X.std() > NEAR_ZERO:
        return (
            f"X has standardised columns, {values}: every pixel has its own scale, and images lose their shape; "
            "fit to the pixels as they are, without StandardScaler"
        )
    return (
        f"X has negative values, {values}: the smallest of the training set becomes black, 0 becomes grey; "
        "give pixels of 0 or more if 0 is black"
    )
