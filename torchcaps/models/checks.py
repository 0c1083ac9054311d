"""Checks at the entrance of every model: sizes when it is built, shape and dtype of each input."""

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import torch
from torch import Tensor

from torchcaps.layers.inputs import check_dtype, check_tensor

MANY = 8  # channels that hardly any image has


def checked_image(model: str, image: Any) -> tuple[int, int, int]:
    """Return an image shape as a tuple of channels, height and width, or refuse it."""
    try:
        sizes = tuple(index(size) for size in image)
    except TypeError:
        sizes = ()
    if len(sizes) == 3 and min(sizes) >= 1:
        if sizes[2] in (1, 3) and min(sizes[:2]) >= MANY:  # so narrow, and so many channels: the axes were mixed up
            raise ValueError(
                f"{model}: image must be (channels, height, width), got {image!r}; "
                f"channels come first: give {(sizes[2], *sizes[:2])}, and images.permute(0, 3, 1, 2)"
            )
        return sizes
    hint = f"{(1, *sizes)} for grey images" if len(sizes) == 2 else "(1, 28, 28) for MNIST"
    raise ValueError(f"{model}: image must be (channels, height, width), got {image!r}; give {hint}")


def checked_classes(model: str, n_classes: Any) -> int:
    """Return a number of classes as an int, or refuse it."""
    try:
        number = index(n_classes)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"{model}: n_classes must be a whole number of at least 1, got {n_classes!r}")
    return number


def check_swap(model: str, routing: Any, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse arguments of the default routing beside another routing, where they would be ignored."""
    for name, value in given.items():
        if value != defaults[name]:
            other = "give options such as routing=Dynamic(n_iters=1)"
            if name == "sharing":
                other = "build a network of your own, of CapsuleLayer(..., n_types=...)"
            raise ValueError(
                f"{model}: {name}={value!r} is for routing=None, and routing={routing!r} has options of its own; "
                f"leave {name} out, or {other}"
            )


def check_images(
    model: str, images: Tensor, image: Sequence[int], dtype: torch.dtype, *, any_size: bool = False
) -> None:
    """Refuse images of another shape than the model was built for, or of another dtype than its weights.

    `any_size`: only the number of channels must match.
    """
    check_tensor(model, "images", images)
    shape = tuple(images.shape)
    fits = len(shape) == 4 and (shape[1] == image[0] if any_size else shape[1:] == tuple(image))
    if not fits:
        wanted = f"{image[0]}, height, width" if any_size else ", ".join(map(str, image))
        raise ValueError(
            f"{model} expects images [b, {wanted}], got {list(shape)}; {_advice(model, shape, tuple(image), any_size)}"
        )
    check_dtype(model, "images", images, dtype)


def _advice(model: str, shape: tuple[int, ...], image: tuple[int, ...], any_size: bool) -> str:
    """Say how images of this shape can be made to fit."""
    if any_size and len(shape) == 3:
        image = (image[0], *shape[1:])
    if len(shape) == 3 and shape == image:
        return "add the batch axis: images.unsqueeze(0)"
    if len(shape) == 3 and (1, *shape[1:]) == image:
        return "add the channel axis: images.unsqueeze(1)"
    if len(shape) != 4:
        return "give a batch of images with channels, height and width"
    if shape[3] == image[0] and shape[1] != image[0]:
        return "channels come first: images.permute(0, 3, 1, 2)"
    return f"convert the images, or build {model}({shape[1:]}, ...) for such ones"
