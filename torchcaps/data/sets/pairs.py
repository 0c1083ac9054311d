"""Two overlapping digits of different classes in one image (MultiMNIST, Sabour 2017 section 6.1).

Each digit moves by itself, by up to `shift` pixels per axis, on a frame that is larger by MARGIN on each side; the
two are added and clipped at 255. Pairs are never stored as images: 10 million of them are a table of indices and
moves. Training draws new pairs in every epoch (batches/pairs.py); test pairs are drawn once, from a seed that is no
run's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int, Int8, Int64, UInt8
from torch import Tensor
from torch.nn.functional import pad

MARGIN = 4  # 28 -> 36, for both shifts: with 6 the rim of a digit may leave the frame, as in the released generator
SHIFT = 4  # most pixels that a digit moves by, where a set does not say otherwise
N_EACH = 10  # how often each test digit is the base of a pair
SEED = 36_2017


class PairSource(NamedTuple):
    """Digits that pairs are made of on the fly."""

    images: UInt8[Tensor, "m c h w"]
    labels: Int64[Tensor, " m"]
    shift: int


class Pairs(NamedTuple):
    """Fixed pairs: which two digits, and how each is moved."""

    digits: UInt8[Tensor, "m c h w"]
    classes: Int64[Tensor, " m"]
    picks: Int64[Tensor, "n 2"]  # base and partner
    moves: Int8[Tensor, "n 2 2"]  # moves of both images, down and right
    shift: int  # the most that anything may move

    @property
    def labels(self) -> Int64[Tensor, "n 2"]:
        return self.classes[self.picks]


class Overlap(NamedTuple):
    """Share of a digit's box that the other digit's box covers, in percent, mean over digits."""

    nominal: float  # both boxes 20x20 in the middle of their images: what the paper speaks of
    ink: float  # the smallest boxes around the pixels above 0


def overlay(
    digits: UInt8[Tensor, "b 2 c h w"], moves: Int[Tensor, "b 2 2"], shift: int
) -> tuple[UInt8[Tensor, "b c f f"], UInt8[Tensor, "b 2 c f f"]]:
    """Move two digits and add them, clipped at 255; give the sum and each alone. `shift` bounds every move."""
    frame = [size + 2 * MARGIN for size in digits.shape[-2:]]
    padded = pad(digits, [MARGIN + shift] * 4)
    device = digits.device
    b, k = torch.arange(len(digits), device=device)[:, None, None, None], torch.arange(2, device=device)[:, None, None]
    rows, columns = (
        torch.arange(frame[axis], device=device) + shift - moves[..., axis, None].long() for axis in (0, 1)
    )  # [b 2 f]
    alone = rearrange(padded[b, k, :, rows[..., :, None], columns[..., None, :]], "b k h w c -> b k c h w")
    both = alone.short().sum(1).clamp(max=255).to(torch.uint8)  # bytes would wrap around
    return both, alone


def draw_partners(base: Int64[Tensor, " n"], labels: Int64[Tensor, " m"], rng: torch.Generator) -> Int64[Tensor, " n"]:
    """Draw a partner for each base, uniform over all digits of the other classes."""
    by_class = labels.argsort(stable=True)
    sizes = labels.bincount()
    own, start = sizes[labels[base]], (sizes.cumsum(0) - sizes)[labels[base]]
    if (sizes == len(labels)).any():
        raise ValueError(f"pairs need digits of two classes, and all {len(labels)} are of class {int(labels[0])}")
    others = len(labels) - own
    place = (torch.rand(len(base), generator=rng, dtype=torch.float64) * others).long().clamp(max=others - 1)
    return by_class[torch.where(place < start, place, place + own)]  # leap over the base's own class


def draw_moves(n: int, shift: int, rng: torch.Generator) -> Int64[Tensor, "n 2 2"]:
    """Draw how far each of two digits moves down and right, uniform in ±shift."""
    return torch.randint(-shift, shift + 1, (n, 2, 2), generator=rng)


def fixed_pairs(source: PairSource, n_each: int, seed: int = SEED) -> Pairs:
    """Draw pairs with every digit as base `n_each` times; a smaller `n_each` gives the first part of the same pairs."""
    rng, base = torch.Generator().manual_seed(seed), torch.arange(len(source.labels))
    picks, moves = [], []
    for _ in range(n_each):
        picks.append(torch.stack([base, draw_partners(base, source.labels, rng)], dim=1))
        moves.append(draw_moves(len(base), source.shift, rng).to(torch.int8))
    return Pairs(source.images, source.labels, torch.cat(picks), torch.cat(moves), source.shift)


def paired_again(pairs: Pairs, n_each: int) -> Pairs:
    """Pair the same digits more or less often; the fewer pairs are always the first of the more."""
    if not isinstance(pairs, Pairs) or n_each < 1:
        what = f"n_each={n_each}" if isinstance(pairs, Pairs) else type(pairs).__name__
        raise ValueError(f"only fixed pairs can be made more or fewer, each digit at least once; got {what}")
    return fixed_pairs(PairSource(pairs.digits, pairs.classes, pairs.shift), n_each)


def overlap(pairs: Pairs) -> Overlap:
    """Measure how much the two digits of these pairs overlap; the paper says 80 %."""
    height, width = pairs.digits.shape[-2:]
    rows, columns = pairs.digits.amax((1, 3)) > 0, pairs.digits.amax((1, 2)) > 0  # [m h], [m w]
    firsts = torch.stack([rows.byte().argmax(1), columns.byte().argmax(1)], dim=1)
    ends = torch.stack([height - rows.flip(1).byte().argmax(1), width - columns.flip(1).byte().argmax(1)], dim=1)
    middle = torch.tensor([(height - 20) // 2, (width - 20) // 2])
    nominal = _covered(middle.expand(len(pairs.picks), 2, 2), (middle + 20).expand(len(pairs.picks), 2, 2), pairs.moves)
    return Overlap(nominal, _covered(firsts[pairs.picks], ends[pairs.picks], pairs.moves))


def _covered(first: Int64[Tensor, "n 2 2"], end: Int64[Tensor, "n 2 2"], moves: Int8[Tensor, "n 2 2"]) -> float:
    """Measure boxes from `first` to before `end`, both (row, column), of the two digits of each pair."""
    first, end = first + moves, end + moves
    common = (end.amin(1) - first.amax(1)).clamp(min=0).prod(-1, keepdim=True)  # [n 1]
    own: Float[Tensor, "n 2"] = (end - first).prod(-1).double()
    return 100 * (common / own).mean().item()


def about(shift: int) -> str:
    """Say how pairs are made, for the line about a set."""
    return f"moved by up to {shift} pixels; training pairs are drawn anew in every epoch"


def paired(
    split: str, images: UInt8[Tensor, "m c h w"], labels: Int64[Tensor, " m"], shift: int = SHIFT, n_each: int = N_EACH
) -> PairSource | Pairs:
    """Give digits to pair on the fly for training, or fixed pairs of them for the test, `n_each` times as many."""
    source = PairSource(images, labels, shift)
    return source if split == "train" else fixed_pairs(source, n_each)
