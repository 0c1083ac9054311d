"""Sparse latent capsules: rank them by support, mask the others, and boost those that never win.

Rawlinson, Ahmed, Kowadlo 2018, sections 2.2 and 2.3. Paper's symbols: routing support ψ_jk `support`, boost g_j
`boost`, rank r_jk `ranks`, sparsity gamma `sharpness`, ε_j `winning_frequency`, its average μ_j `frequency`, batch
count n `n_batches`. A rank has no gradient, so that a mask is a constant factor of the poses; the boost decides ranks
and scales nothing.
"""

from typing import NamedTuple

import torch
from einops import reduce
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.ops.dynamic.reference import recover_couplings
from torchcaps.ops.votes import Poses, Weight, in_blocks

SHARPNESS = 12.0
FREQUENCIES = (0.04, 0.1)  # range of winning: a capsule below is boosted, one above loses its boost
GROUPS = ("places", "runs")


def fair_frequencies(n: int) -> tuple[float, float]:
    """Scale FREQUENCIES to n capsules: as far around the mean of 1 / n as the paper's are around that of its 16."""
    low, high = FREQUENCIES
    return 16 * low / n, 16 * high / n


class Winning(NamedTuple):
    """State over the batches so far.

    Example:

        before = Winning(torch.zeros(4), torch.ones(4), torch.tensor(0))
        after_batch(before, wins=torch.tensor([8, 0, 0, 0])).frequency.tolist()  # [1.0, 0.0, 0.0, 0.0]
    """

    frequency: Float[Tensor, "j"]  # share of wins, an average over many batches
    boost: Float[Tensor, "j"]  # multiplies the support before it is ranked; never below 1
    n_batches: Int64[Tensor, ""]


def routing_support(couplings: Float[Tensor, "*b i j"], n_types: int, groups: str = "places") -> Float[Tensor, "*b j"]:
    """Sum the largest coupling of each group of `n_types` inputs over the groups (i = n_types · places, type first).

    `places`: a group has the types at one place, as the paper says. `runs`: it has that many neighbours in the row of
    inputs, so mostly one type at several places. The authors' released code comes to that, since it reads the row as if
    places came first.
    """
    if n_types < 1 or couplings.shape[-2] % n_types:
        raise ValueError(
            f"routing_support: {couplings.shape[-2]} input capsules do not fill places of {n_types} types; "
            "give their number"
        )
    if groups not in GROUPS:
        raise ValueError(f"routing_support: groups must be one of {', '.join(GROUPS)}; got {groups!r}")
    axes = "(n p)" if groups == "places" else "(p n)"
    return reduce(couplings, f"... {axes} j -> ... p j", "max", n=n_types).sum(-2)


def recover_support(
    poses: Poses,
    weight: Weight,
    pose_sum: Float[Tensor, "*b j e"],
    n_types: int,
    *,
    prior: Float[Tensor, "i j"] | None = None,
    couplings: str = "softmax",
    groups: str = "places",
) -> Float[Tensor, "*b j"]:
    """Compute the support by the last iteration's couplings, from what `dynamic_routing` returned.

    Neither votes nor the couplings of all images are kept: each block of images is reduced to its support before the
    next.
    """
    rule = {"prior": prior, "couplings": couplings}
    flat, sums = poses.reshape(-1, *poses.shape[-2:]), pose_sum.reshape(-1, *pose_sum.shape[-2:])
    blocks = in_blocks(flat, sums, weight)
    found = [routing_support(recover_couplings(part, weight, total, **rule), n_types, groups) for part, total in blocks]
    return (found[0] if len(found) == 1 else torch.cat(found)).reshape(*poses.shape[:-2], pose_sum.shape[-2])


def boosted_ranks(support: Float[Tensor, "*b j"], boost: Float[Tensor, "j"]) -> Int64[Tensor, "*b j"]:
    """Rank by boosted support: 0 for the most, 1 for the next; of equals the first in the row comes first."""
    boosted = support * boost
    own, other = boosted.unsqueeze(-1), boosted.unsqueeze(-2)
    n = boosted.shape[-1]
    before = torch.ones(n, n, dtype=torch.bool, device=boosted.device).tril(-1)  # [j k], k < j
    # counted, not sorted: for a few capsules that is one small program, compiled with what surrounds it
    return ((other > own) | ((other == own) & before)).sum(-1)


def rank_mask(
    ranks: Int64[Tensor, "*b j"],
    sharpness: float = SHARPNESS,
    *,
    least: float = 0.01,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*b j"]:
    """Mask by exp(-sharpness · rank / (j - 1)) (Eq. 3), 0 where below `least`. A capsule alone is kept whole."""
    share = ranks.to(dtype) / max(ranks.shape[-1] - 1, 1)
    mask = torch.exp(-sharpness * share)
    return mask.masked_fill(mask < least, 0.0)


def count_wins(ranks: Int64[Tensor, "*b j"]) -> Int64[Tensor, "j"]:
    """Count the samples in which each capsule is first."""
    return (ranks == 0).reshape(-1, ranks.shape[-1]).sum(0)


def winning_frequency(wins: Int64[Tensor, "j"]) -> Float[Tensor, "j"]:
    """Share of samples won: Eq. 5 without its division by the number of capsules, far below 0.04 to 0.1."""
    return wins / wins.sum()  # each sample has one winner


def moving_average(
    average: Float[Tensor, "j"], value: Float[Tensor, "j"], n_batches: Int64[Tensor, ""], decay: float = 0.99
) -> Float[Tensor, "j"]:
    """Average over batches (Eq. 7). The first is copied: from 0 every capsule would seem to win too rarely."""
    value = value.to(average.dtype)
    return torch.where(n_batches == 0, value, decay * average + (1 - decay) * value)


def updated_boost(
    boost: Float[Tensor, "j"],
    frequency: Float[Tensor, "j"],
    step: float = 0.1,
    frequencies: tuple[float, float] = FREQUENCIES,
) -> Float[Tensor, "j"]:
    """Add a step where a capsule wins too rarely, subtract one, to 1 at least, where too often (Algorithm 1)."""
    low, high = frequencies
    raised = torch.where(frequency < low, boost + step, boost)
    return torch.where(frequency > high, boost - step, raised).clamp(min=1)


def steered_boost(boost: Float[Tensor, "j"], frequency: Float[Tensor, "j"], gain: float) -> Float[Tensor, "j"]:
    """Move the logarithms of the boosts by gain · (1 / j - frequency), then divide by the least, which becomes 1.

    A capsule that wins everything falls fast, one that wins about its share hardly moves. A fixed step does either too
    much, where supports differ by less than the step from image to image, or too little, where boosts have grown. Ours:
    no range is left, where the paper's section 4 thinks of one with "online adaptation".
    """
    moved = boost * torch.exp(gain * (1 / boost.shape[-1] - frequency.to(boost.dtype)))
    return moved / moved.min()


def after_batch(
    before: Winning,
    wins: Int64[Tensor, "j"],
    *,
    step: float = 0.1,
    every: int = 50,
    frequencies: tuple[float, float] = FREQUENCIES,
    decay: float = 0.99,
    gain: float = 0.0,
) -> Winning:
    """Update by Eq. 7, then Algorithm 1: the average moves with every batch, the boosts with every fiftieth.

    `gain`, where it is not 0: `steered_boost` instead, with every batch and by its own wins, since an average over a
    hundred would be late.
    """
    now = winning_frequency(wins)
    frequency = moving_average(before.frequency, now, before.n_batches, decay)
    n_batches = before.n_batches + 1
    if gain:
        return Winning(frequency, steered_boost(before.boost, now, gain), n_batches)
    boost = torch.where(n_batches % every == 0, updated_boost(before.boost, frequency, step, frequencies), before.boost)
    return Winning(frequency, boost, n_batches)
