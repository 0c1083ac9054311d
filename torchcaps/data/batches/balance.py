"""An order of images in which every class has the same part, however many it has."""

import torch
from jaxtyping import Int64
from torch import Tensor


def members(labels: Int64[Tensor, "n"]) -> list[Int64[Tensor, "m"]]:
    """Which images each class has, for the classes that have any."""
    return [torch.nonzero(labels == label).squeeze(1) for label in labels.unique()]


def balanced_order(by_class: list[Int64[Tensor, "m"]], n: int, rng: torch.Generator) -> Int64[Tensor, "n"]:
    """`n` images, as many of each class as of any other, or one more. No image of a class comes again before all of it have come."""
    first = int(torch.randint(len(by_class), (), generator=rng))  # who gets one more is drawn too
    drawn = []
    for number, indices in enumerate(by_class):
        wanted = n // len(by_class) + ((number - first) % len(by_class) < n % len(by_class))
        rounds = [indices[torch.randperm(len(indices), generator=rng)] for _ in range(-(-wanted // len(indices)))]
        drawn.append(torch.cat([indices[:0], *rounds])[:wanted])
    order = torch.cat(drawn)
    return order[torch.randperm(n, generator=rng)]
