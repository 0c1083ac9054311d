"""Diagnostics of a trained model's routing: coupling entropy, accuracy by number of iterations, dead capsules.

Letters beyond the usual: `n` types of primary capsules, `k` classes in one image. The paper's b_ij are `logits`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import log
from typing import Any, NamedTuple

import torch
from einops import reduce
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.analysis.metrics import dead_capsules, exact_match_error_percent
from torchcaps.data import Labelled
from torchcaps.data.augment import Augmentation, Batch
from torchcaps.data.batches.images import in_order
from torchcaps.data.batches.pairs import PairBatch, pairs_in_order
from torchcaps.data.sets.pairs import Pairs, PairSource, fixed_pairs
from torchcaps.layers import RoutedCapsules
from torchcaps.layers.routings import by_agreement
from torchcaps.ops import length

BATCH = 50  # images: all routing iterations are read, so the votes are in memory
DEAD = 0.01  # a capsule that is never longer is dead
N_BINS = 10  # bins of lengths from 0 to 1
LEAST_PASSES = 5  # accuracy is measured up to this many iterations, or two more than in training if that is more


class _Seen(NamedTuple):
    """Statistics of images after each routing iteration, which does not depend on how many follow."""

    lengths: Float[Tensor, "b t j"]  # lengths of the class capsules
    entropy: Float[Tensor, "b t"]  # entropy of an input's couplings in nats, mean over the inputs
    entropy_by_length: Float[Tensor, "b t"]  # entropy in nats, each input weighted by its length
    longest: Float[Tensor, "b n"]  # length of the longest primary capsule of each type, over all places
    primary: Int64[Tensor, "batches bins"]  # histogram of the lengths of primary capsules
    labels: Int64[Tensor, "b k"]


def diagnose(
    model: nn.Module,
    data: Labelled | Pairs | PairSource,
    device: torch.device,
    *,
    augment: Sequence[Augmentation] = (),
    most: int = 2000,
) -> dict[str, Any]:
    """Compute routing diagnostics of a model on `device`; {} for a model without routed class capsules.

    `passes` has a row for each number of routing iterations, with the weights unchanged: the accuracy if routing ended
    there, and the entropy of that iteration's couplings. Uses at most `most` images, spread evenly over the data.
    """
    routed = by_agreement(getattr(model, "classes", None))
    if routed is None or not hasattr(model, "primary_capsules"):
        return {}
    trained = routed.n_iters
    with evaluating(model), _routed(routed, max(LEAST_PASSES, trained + 2)):
        parts = [_watch(model, batch) for batch in _batches(data, most, device, augment)]
    seen = _Seen(*map(torch.cat, zip(*parts, strict=True)))
    lengths = seen.lengths[:, trained - 1]  # [b j]
    ranked, n_present = lengths.sort(-1, descending=True).values, seen.labels.shape[1]
    return {
        "n_images": len(lengths),
        "n_iters": trained,
        "passes": [_row(seen, t) for t in range(seen.lengths.shape[1])],
        "dead": {
            "threshold": DEAD,
            "primary_types": dead_capsules(seen.longest, DEAD).nonzero().flatten().tolist(),
            "n_primary_types": seen.longest.shape[1],
            "class_capsules": dead_capsules(lengths, DEAD).nonzero().flatten().tolist(),
            "n_class_capsules": lengths.shape[1],
        },
        "lengths": {
            "edges": [step / N_BINS for step in range(N_BINS + 1)],
            "winning": histogram(ranked[:, :n_present]).tolist(),
            "other": histogram(ranked[:, n_present:]).tolist(),
            "primary": seen.primary.sum(0).tolist(),
        },
    }


def lines(found: dict[str, Any]) -> list[str]:
    """Format the diagnostics as a few lines of text; no lines for a model without routing."""
    if not found:
        return []
    rows, dead, own = found["passes"], found["dead"], found["n_iters"]
    marks = {own: " (as trained)"}
    accuracy = ", ".join(
        f"{row['n_iters']}{marks.get(row['n_iters'], '')}: {row['accuracy_percent']:.2f}" for row in rows
    )
    entropy = ", ".join(f"{row['entropy_share_by_length']:.3f}" for row in rows[:own])
    winning, other = (_above_half(found["lengths"][name]) for name in ("winning", "other"))
    return [
        f"accuracy in % by number of routing iterations, on {found['n_images']:,} images: {accuracy}",
        "entropy of the couplings by iteration (1: an input goes to all classes alike, 0: to one of them): " + entropy,
        f"dead capsules (never longer than {dead['threshold']:g}): {len(dead['primary_types'])} of "
        f"{dead['n_primary_types']} primary types, {len(dead['class_capsules'])} of {dead['n_class_capsules']} classes",
        f"class capsules longer than 0.5: {winning:.1f} % of the predicted ones, {other:.1f} % of the others",
    ]


def logit_changes(model: nn.Module, images: Float[Tensor, "b c h w"]) -> dict[str, float]:
    """Compute the mean |change| of a routing logit between iterations: `logit_change_2` to `logit_change_5` for five.

    `logit_change_t` compares the logits behind the couplings of iterations t and t - 1. Computed in float32, also
    under autocast. The votes of all images are formed: give a batch, not a data set.
    """
    with evaluating(model), torch.autocast(images.device.type, enabled=False):
        logits = [step.logits for step in model.steps(images.float())]
    changes = [(after - before).abs().mean().item() for before, after in pairwise(logits)]
    return {f"logit_change_{number}": change for number, change in enumerate(changes, start=2)}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Set evaluation mode and disable gradients inside the block; restore the mode on exit."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield model
    finally:
        model.train(was_training)


def histogram(lengths: Float[Tensor, "*b"]) -> Int64[Tensor, "bins"]:
    """Count lengths in each tenth of 0..1; longer ones count as 1."""
    return torch.bincount((lengths.flatten() * N_BINS).long().clamp(max=N_BINS - 1), minlength=N_BINS).cpu()


def entropies(couplings: Float[Tensor, "*b i j"]) -> Float[Tensor, "*b i"]:
    """Compute the entropy of each input's couplings in nats: log j if uniform, 0 if one-hot."""
    shares = couplings / couplings.sum(-1, keepdim=True)  # leaky couplings sum to less than 1
    return torch.special.entr(shares).sum(-1)


@contextmanager
def _routed(layer: RoutedCapsules, n_iters: int) -> Iterator[None]:
    """Set the number of routing iterations inside the block; restore it on exit."""
    before = layer.n_iters
    layer.n_iters = n_iters
    try:
        yield
    finally:
        layer.n_iters = before


def _batches(
    data: Labelled | Pairs | PairSource, most: int, device: torch.device, augment: Sequence[Augmentation]
) -> Iterator[Batch | PairBatch]:
    """Return the images in batches, as evaluation shows them."""
    pairs = fixed_pairs(data, 1) if isinstance(data, PairSource) else data  # each training digit is the base once
    n = min(len(pairs.labels), most)
    which = torch.arange(n) * len(pairs.labels) // n  # the first ones may be easier: MNIST's are
    if isinstance(pairs, Pairs):
        return pairs_in_order(pairs._replace(picks=pairs.picks[which], moves=pairs.moves[which]), BATCH, device)
    return in_order(Labelled(pairs.images[which], pairs.labels[which]), BATCH, device, augment)


def _watch(model: nn.Module, batch: Batch | PairBatch) -> _Seen:
    primary = model.primary_capsules(batch.images)
    weights = primary.activity / primary.activity.sum(-1, keepdim=True)
    lengths, plain, weighted = [], [], []
    for step in model.classes.steps(primary):  # one iteration at a time, so that only one's couplings are in memory
        nats = entropies(step.couplings)
        lengths.append(length(step.poses))
        plain.append(nats.mean(-1))
        weighted.append((weights * nats).sum(-1))
    return _Seen(
        *(torch.stack(part, dim=1).cpu() for part in (lengths, plain, weighted)),
        longest=reduce(primary.activity, "b (n places) -> b n", "max", n=model.primary.n_types).cpu(),
        primary=histogram(primary.activity).unsqueeze(0),
        labels=batch.labels.view(len(batch.labels), -1).cpu(),
    )


def _row(seen: _Seen, t: int) -> dict[str, int | float]:
    said = seen.lengths[:, t].topk(seen.labels.shape[1]).indices  # the longest one or two are predicted
    nats, by_length = (part[:, t].mean().item() for part in (seen.entropy, seen.entropy_by_length))
    largest = log(max(seen.lengths.shape[-1], 2))  # the entropy of one output is 0
    return {
        "n_iters": t + 1,
        "accuracy_percent": 100 - exact_match_error_percent(said, seen.labels),
        "entropy_nats": nats,
        "entropy_share": nats / largest,
        "entropy_nats_by_length": by_length,
        "entropy_share_by_length": by_length / largest,
    }


def _above_half(counts: list[int]) -> float:
    """Compute the percentage of lengths of 0.5 or more in a histogram."""
    return 100 * sum(counts[N_BINS // 2 :]) / max(sum(counts), 1)
