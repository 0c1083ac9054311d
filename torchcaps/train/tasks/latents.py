"""What latent capsules do, in numbers: who wins how often, and how support and activity fall from rank to rank (Rawlinson 2018)."""

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
    """A model whose capsules can be looked at as latent ones."""

    def latent(self, images: Float[Tensor, "b c h w"]) -> Any: ...


MIDDLE = 8  # the rank whose support is told as a number of its own: the middle of 16


def latent_numbers(model: nn.Module, batches: Iterable[Batch]) -> dict[str, Any]:
    """Of a model with `latent(images)`, with its boosts as they are: nothing is counted here.

    Ranks are the boosted ones where a model boosts; `relative_support` is of the support before any boost, as a share of the largest
    of the same picture (figure 3). `rank_frequency` has a row for each capsule (figure 4). `winning_frequency_in_training` is the moving
    average that training left. A model of several layers tells of each; one that knows both readings of support, of each.
    """
    levels, readings = [], {}
    with evaluating(model):
        if hasattr(model, "levels_of"):
            seen = [[(level.latent.support.cpu(), level.activity.cpu()) for level in model.levels_of(batch.images)] for batch in batches]
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
        "winning_frequency_without_boost": _numbered(winning_frequency(count_wins(boosted_ranks(support, torch.ones_like(boost))))),
        "relative_support": _numbered(relative),
        **_told_of_middle("", relative),
        **{name: value for groups, each in readings.items() for name, value in _told_of_middle(f"_{groups}", by_rank(each)).items()},
        **({"winning_frequency_in_training": _numbered(mask.frequency)} if hasattr(mask, "frequency") else {}),
        "rank_frequency": {str(number): _numbered(row) for number, row in enumerate(rank_frequency(ranks))},
        **({"layers": {str(n): _of_a_layer(*level) for n, level in enumerate(levels, start=1)}} if levels else {}),
        **{f"layer_{n}_activity_middle": _middle(by_rank(activity)) for n, (_, activity) in enumerate(levels, start=1)},
    }


def by_rank(values: Float[Tensor, "n j"]) -> Float[Tensor, "j"]:
    """Sorted in every row and divided by the largest of the row; then the mean over the rows."""
    ranked = values.double().sort(descending=True).values
    return (ranked / ranked[:, :1]).mean(0)


def rank_frequency(ranks: Int64[Tensor, "n j"]) -> Float[Tensor, "j rank"]:
    """How often each capsule has each rank: every row and every column sums to 1."""
    return one_hot(ranks, ranks.shape[-1]).double().mean(0)


def _told_of_middle(reading: str, relative: Float[Tensor, "j"]) -> dict[str, float]:
    return {f"relative_support_{MIDDLE}{reading}": relative[MIDDLE].item()} if len(relative) > MIDDLE else {}


def _middle(relative: Float[Tensor, "j"]) -> float:
    return relative[len(relative) // 2].item()


def _of_a_layer(support: Float[Tensor, "n j"], activity: Float[Tensor, "n j"]) -> dict[str, dict[str, float]]:
    return {"relative_support": _numbered(by_rank(support)), "relative_activity": _numbered(by_rank(activity))}


def _numbered(values: Float[Tensor, "j"]) -> dict[str, float]:
    """By the number of the capsule, or of the rank."""
    return {str(number): value for number, value in enumerate(values.tolist())}
