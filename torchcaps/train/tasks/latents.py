"""Measurements of latent capsules: winning frequencies, and support and activity by rank (Rawlinson 2018)."""

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import one_hot

from torchcaps.analysis.routing import evaluating
from torchcaps.data.augment import Batch
from torchcaps.ops import boosted_ranks, count_wins
from torchcaps.ops.sparse import winning_frequency


@runtime_checkable
class HasLatents(Protocol):
    """Model with latent capsules."""

    def latent(self, images: Float[Tensor, "b c h w"]) -> Any: ...


MIDDLE = 8  # rank whose support is reported as a separate number: the middle of 16


def latent_numbers(model: nn.Module, batches: Iterable[Batch]) -> dict[str, Any]:
    """Measure the latent capsules of a model over all batches, without updating its boosts.

    `relative_support`: support before boosting, as a fraction of the image's largest (figure 3).
    `rank_frequency`: how often each capsule has each boosted rank (figure 4). `winning_frequency_in_training`: moving
    average from training. `layers`, `relative_support_8_*`: for several layers, or both readings of support.
    """
    levels, readings = [], {}
    with evaluating(model):
        if hasattr(model, "levels_of"):
            seen = [
                [(level.latent.support.cpu(), level.activity.cpu()) for level in model.levels_of(batch.images)]
                for batch in batches
            ]
            levels = [tuple(map(torch.cat, zip(*parts, strict=True))) for parts in zip(*seen, strict=True)]
            support = levels[-1][0]
        elif hasattr(model, "supports"):
            told = [model.supports(batch.images) for batch in batches]
            readings = {groups: torch.cat([part[groups].cpu() for part in told]) for groups in told[0]}
            support = readings[model.support]
        else:
            support = torch.cat([model.latent(batch.images).support.cpu() for batch in batches])
    mask = getattr(model, "mask", None)
    boost = torch.ones(support.shape[-1]) if mask is None else mask.boost.cpu()
    ranks = boosted_ranks(support, boost)
    wins = winning_frequency(count_wins(ranks))
    relative = by_rank(support)
    return {
        "n_images": len(support),
        "boost": _numbered(boost),
        "winning_frequency": _numbered(wins),
        "winning_frequency_least": wins.min().item(),
        "winning_frequency_most": wins.max().item(),
        "winning_frequency_without_boost": _numbered(
            winning_frequency(count_wins(boosted_ranks(support, torch.ones_like(boost))))
        ),
        "relative_support": _numbered(relative),
        **_told_of_middle("", relative),
        **{
            name: value
            for groups, each in readings.items()
            for name, value in _told_of_middle(f"_{groups}", by_rank(each)).items()
        },
        **({"winning_frequency_in_training": _numbered(mask.frequency)} if hasattr(mask, "frequency") else {}),
        "rank_frequency": {str(number): _numbered(row) for number, row in enumerate(rank_frequency(ranks))},
        **({"layers": {str(n): _of_a_layer(*level) for n, level in enumerate(levels, start=1)}} if levels else {}),
        **{f"layer_{n}_activity_middle": _middle(by_rank(activity)) for n, (_, activity) in enumerate(levels, start=1)},
    }


def by_rank(values: Float[Tensor, "n j"]) -> Float[Tensor, "j"]:
    """Sort every row, divide it by its largest value, and average over rows."""
    ranked = values.double().sort(descending=True).values
    return (ranked / ranked[:, :1]).mean(0)


def rank_frequency(ranks: Int64[Tensor, "n j"]) -> Float[Tensor, "j rank"]:
    """Compute how often each capsule has each rank; every row and every column sums to 1."""
    return one_hot(ranks, ranks.shape[-1]).double().mean(0)


def _told_of_middle(reading: str, relative: Float[Tensor, "j"]) -> dict[str, float]:
    return {f"relative_support_{MIDDLE}{reading}": relative[MIDDLE].item()} if len(relative) > MIDDLE else {}


def _middle(relative: Float[Tensor, "j"]) -> float:
    return relative[len(relative) // 2].item()


def _of_a_layer(support: Float[Tensor, "n j"], activity: Float[Tensor, "n j"]) -> dict[str, dict[str, float]]:
    return {"relative_support": _numbered(by_rank(support)), "relative_activity": _numbered(by_rank(activity))}


def _numbered(values: Float[Tensor, "j"]) -> dict[str, float]:
    """Key values by the index of the capsule or rank, as strings for JSON."""
    return {str(number): value for number, value in enumerate(values.tolist())}
