"""An order of images in which every class has the same share, however many images it has."""

import torch
from jaxtyping import Int64
from torch import Tensor


def members(labels: Int64[Tensor, "n"]) -> list[Int64[Tensor, "m"]]:
    """List the images of each class, for the classes that have any."""
    return [torch.nonzero(labels == label).squeeze(1) for label in labels.unique()]


def balanced_order(by_class: list[Int64[Tensor, "m"]], n: int, rng: torch.Generator) -> Int64[Tensor, "n"]:
    """Draw `n` images, as many of each class as of any other, or one more.

    No image is drawn again before all others of its class are.
    """
    first = int(torch.randint(len(by_class), (), generator=rng))  # who gets one more is drawn too
    drawn = []
    for number, indices in enumerate(by_class):
        wanted = n // len(by_class) + ((number - first) % len(by_class) < n % len(by_class))
        rounds = [indices[torch.randperm(len(indices), generator=rng)] for _ in range(-(-wanted // len(indices)))]
        drawn.append(torch.cat([indices[:0], *rounds])[:wanted])
    order = torch.cat(drawn)
    return order[torch.randperm(n, generator=rng)]
