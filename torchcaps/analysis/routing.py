"""What the routing of a trained model does, in numbers: how decided it is, what more passes would bring, which capsules are dead.

Letters beyond the usual: `n` the types of primary capsules, `k` the classes in one picture. The paper's b_ij are `logits`.
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
from torchcaps.ops import length

BATCH = 50  # images: every pass is watched, so their votes lie in memory
DEAD = 0.01  # a capsule that is nowhere longer says nothing
N_BINS = 10  # of lengths from 0 to 1
LEAST_PASSES = 5  # that accuracy is measured after, and two more than the model was trained with


class _Seen(NamedTuple):
    """What images are remembered by. Pass t does not depend on how many follow, so one routing tells all of them."""

    lengths: Float[Tensor, "b t j"]  # of the class capsules
    entropy: Float[Tensor, "b t"]  # of an input capsule's couplings in nats, mean over the inputs
    entropy_by_length: Float[Tensor, "b t"]  # the same, each input weighted by its length
    longest: Float[Tensor, "b n"]  # the longest primary capsule of each type, over all places
    primary: Int64[Tensor, "batches bins"]  # how many primary capsules have which length
    labels: Int64[Tensor, "b k"]


def diagnose(
    model: nn.Module,
    data: Labelled | Pairs | PairSource,
    device: torch.device,
    *,
    augment: Sequence[Augmentation] = (),
    most: int = 2000,
) -> dict[str, Any]:
    """Plain numbers about a model like CapsNet, which lies on `device`; {} for one that has no routed class capsules.

    `passes` has a row for each number of routing passes from 1 on, with the weights as they are: the accuracy if routing ended
    there, and the entropy of that pass's couplings. At most `most` images are shown, spread evenly over the data.
    """
    if not (isinstance(getattr(model, "classes", None), RoutedCapsules) and hasattr(model, "primary_capsules")):
        return {}
    trained = model.classes.n_iters
    with evaluating(model), _routed(model.classes, max(LEAST_PASSES, trained + 2)):
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
    """The same in a few lines for people; none for a model without routing."""
    if not found:
        return []
    rows, dead, own = found["passes"], found["dead"], found["n_iters"]
    accuracy = ", ".join(f"{row['accuracy_percent']:.2f}" + "*" * (row["n_iters"] == own) for row in rows)
    entropy, by_length = (", ".join(f"{row[name]:.4f}" for row in rows[:own]) for name in ("entropy_share", "entropy_share_by_length"))
    lengths = "; ".join(f"{name} {_percents(found['lengths'][name])}" for name in ("winning", "other", "primary"))
    return [
        f"accuracy after 1 to {len(rows)} passes: {accuracy} % of {found['n_images']:,} images (* as trained)",
        f"entropy of the couplings, 1 if uniform, pass by pass: {entropy}; inputs weighted by length: {by_length}",
        f"never as long as {dead['threshold']:g}: {len(dead['primary_types'])} of {dead['n_primary_types']} primary types, "
        f"{len(dead['class_capsules'])} of {dead['n_class_capsules']} class capsules",
        f"lengths by tenths, % of the capsules: {lengths}",
    ]


def logit_changes(model: nn.Module, images: Float[Tensor, "b c h w"]) -> dict[str, float]:
    """Mean |change| of a routing logit from pass to pass: `logit_change_2` to `logit_change_5` for a model of five passes.

    `logit_change_t` compares the logits that pass t shares votes by with those of pass t - 1; pass 1 has nothing before it.
    Float32 whatever surrounds the call. The votes of all images are formed: give a batch, not a data set.
    """
    with evaluating(model), torch.autocast(images.device.type, enabled=False):
        logits = [step.logits for step in model.steps(images.float())]
    changes = [(after - before).abs().mean().item() for before, after in pairwise(logits)]
    return {f"logit_change_{number}": change for number, change in enumerate(changes, start=2)}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Evaluation mode and no gradients inside; put back afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield model
    finally:
        model.train(was_training)


def histogram(lengths: Float[Tensor, "*b"]) -> Int64[Tensor, "bins"]:
    """How many of them are in each tenth of 0..1; what is longer counts as 1."""
    return torch.bincount((lengths.flatten() * N_BINS).long().clamp(max=N_BINS - 1), minlength=N_BINS).cpu()


def entropies(couplings: Float[Tensor, "*b i j"]) -> Float[Tensor, "*b i"]:
    """How undecided each input capsule is, in nats: log j if its couplings are uniform, 0 if one output has all."""
    shares = couplings / couplings.sum(-1, keepdim=True)  # leaky couplings leave a part to nobody
    return torch.special.entr(shares).sum(-1)


@contextmanager
def _routed(layer: RoutedCapsules, n_iters: int) -> Iterator[None]:
    """So many passes inside; put back afterwards."""
    before = layer.n_iters
    layer.n_iters = n_iters
    try:
        yield
    finally:
        layer.n_iters = before


def _batches(
    data: Labelled | Pairs | PairSource, most: int, device: torch.device, augment: Sequence[Augmentation]
) -> Iterator[Batch | PairBatch]:
    """The images as evaluation shows them."""
    pairs = fixed_pairs(data, 1) if isinstance(data, PairSource) else data  # training digits: each the base once
    n = min(len(pairs.labels), most)
    which = torch.arange(n) * len(pairs.labels) // n  # the first ones may be easier: MNIST's are
    if isinstance(pairs, Pairs):
        return pairs_in_order(pairs._replace(picks=pairs.picks[which], moves=pairs.moves[which]), BATCH, device)
    return in_order(Labelled(pairs.images[which], pairs.labels[which]), BATCH, device, augment)


def _watch(model: nn.Module, batch: Batch | PairBatch) -> _Seen:
    primary = model.primary_capsules(batch.images)
    weights = primary.activity / primary.activity.sum(-1, keepdim=True)
    lengths, plain, weighted = [], [], []
    for step in model.classes.steps(primary):  # one pass at a time: the couplings of all of them need not be kept
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
    said = seen.lengths[:, t].topk(seen.labels.shape[1]).indices  # one class or two: the longest are the answer
    nats, by_length = (part[:, t].mean().item() for part in (seen.entropy, seen.entropy_by_length))
    largest = log(max(seen.lengths.shape[-1], 2))  # of one output the entropy is 0
    return {
        "n_iters": t + 1,
        "accuracy_percent": 100 - exact_match_error_percent(said, seen.labels),
        "entropy_nats": nats,
        "entropy_share": nats / largest,
        "entropy_nats_by_length": by_length,
        "entropy_share_by_length": by_length / largest,
    }


def _percents(counts: list[int]) -> str:
    return " ".join(f"{100 * count / max(sum(counts), 1):.0f}" for count in counts)
