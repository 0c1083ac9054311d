"""Initialisation of routed capsules that stay alive in stacks of any width and depth.

An output sums votes with couplings of about 1 / n_out and squashes the sum, which squares what is short. So votes must
be long, but not too long: agreement lengthens a sum further, by a factor that grows with n_out / d_out. A random bias
gives every output some length whatever it receives. `alive_lengths` follows a sum's length through the iterations and
solves for both, so that a layer maps lengths of 0.3 to 0.9 into this range, and so does every layer after it.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

INITS = {
    "alive": "random bias, votes scaled to the sizes: median activity of 0.15 to 0.8 for inputs of length 0.3 to 0.9",
    "paper": "zero bias, variance n_out / (n_in · d_in): what the papers' presets start from",
}
LENGTH = 0.6  # typical length of an input
# Activities for short and for long inputs. Higher ones would exceed 0.8 where outputs are few; with lower ones the
# gradients of six layers vanish.
SHORT, LEAST, LONG, MOST = 0.3, 0.38, 0.9, 0.77
ASSUMED = 64  # number of inputs that a layer for any number of them starts with
# for capsules with scores: typical activity of an input; deviation of a score if inputs came and went at random, and if
# they changed outputs; share of votes that depends on the inputs, times the dimensions of a pose
GATE, SCORE, CHANGE, SIGNAL = 0.5, 1.4, 0.4, 2.0


class Lengths(NamedTuple):
    """Lengths in an alive layer."""

    sum: float  # length of the first sum of votes, per length of an input
    bias: float


def check_init(layer: str, init: str) -> None:
    """Refuse an unknown initialisation."""
    if init not in INITS:
        raise ValueError(f"{layer}: init must be one of {', '.join(INITS)}; got {init!r}")


@lru_cache(maxsize=256)
def alive_lengths(
    n_in: int | float, n_out: int | float, d_out: int, n_iters: int, couplings: str, bias: bool = True
) -> Lengths:
    """Solve for the lengths that turn inputs of length SHORT and LONG into activities of LEAST and MOST.

    Without a bias only MOST is met, and short inputs of many outputs stay dead until `calibrate`.
    """
    # per squared length of a first sum, agreement adds this much along the pose (Stein's lemma, votes being normal)
    agreement = (n_out - 1) / d_out if couplings in ("softmax", "leaky") else 0.0
    # a vote that counts for more also turns the pose towards itself
    echo = n_out / n_in if agreement else 0.0
    # biases that decide the couplings lie at about 60 degrees to the sum
    aligned = 0.5 if is_aligned(n_out, n_iters, couplings) else 0.0

    def activity(sum_length: float, bias_length: float, length: float) -> float:
        square = (sum_length * length) ** 2
        first = math.sqrt(square + bias_length**2 + 2 * aligned * sum_length * length * bias_length)
        poses = 0.0
        for _ in range(max(n_iters, 1)):
            total = first + agreement * square * poses
            pose = total**2 / (1 + total**2)
            poses += pose + pose / total * square * echo * poses
        return total**2 / (1 + total**2)

    def longest(bias_length: float) -> float:
        return _bisect(lambda sum_length: activity(sum_length, bias_length, LONG) - MOST, 0.0, 4.0)

    if not bias:
        return Lengths(longest(0.0), 0.0)
    bias_length = _bisect(lambda found: activity(longest(found), found, SHORT) - LEAST, 0.0, 1.0)
    return Lengths(longest(bias_length), bias_length)


def alive_std(
    n_in: int | float, n_out: int | float, d_out: int, n_iters: int, couplings: str, bias: bool = True
) -> float:
    """Return the standard deviation of transforms, for `n_in` inputs that each divide themselves among `n_out`."""
    squares = n_in * _mean_square_coupling(n_out, couplings)
    if is_aligned(n_out, n_iters, couplings):
        # couplings rise from 0 to 1 over the range of agreements: half of every vote, more of those that agree
        spread = 1 / _normal_range(n_out)
        squares = n_in * spread**2 + (n_in**0.5 / 2 + n_in * (1 - 1 / n_out) * spread / d_out**0.5) ** 2
    return alive_lengths(n_in, n_out, d_out, n_iters, couplings, bias).sum / math.sqrt(squares * d_out)


def alive_betas(*betas: Float[Tensor, "i j"]) -> None:
    """Draw benefits and costs that sum to zero over the inputs, so that every output starts even."""
    n_in, n_out = betas[0].shape
    # an input that gives all of itself to one output changes the scores of few outputs most
    size = min(SCORE, CHANGE * n_out / (2 * max(n_out - 1, 1)) ** 0.5) / (GATE * n_in**0.5)
    for beta in betas:
        nn.init.normal_(beta, std=size)
        with torch.no_grad():
            beta.sub_(beta.mean(0) if n_in > 1 else 0.0)


def alive_bias(n_out: int, d_out: int, length: float) -> Float[Tensor, "j e"]:
    """Draw biases of one length in random directions."""
    return nn.functional.normalize(torch.randn(n_out, d_out), dim=-1) * length


def is_aligned(n_out: int | float, n_iters: int, couplings: str) -> bool:
    """Say whether couplings follow agreement however small it is, so that sums point along the first poses."""
    return couplings == "max-min" and n_iters > 1 and n_out > 1


def _mean_square_coupling(n_out: int | float, couplings: str) -> float:
    if couplings == "random":
        return math.e / (n_out * (n_out + math.e - 1))  # softmax of normal logits
    return 1 / n_out**2


def _normal_range(n: int | float) -> float:
    """Return the expected range of n standard normal numbers (Blom's approximation)."""
    return 2 * NormalDist().inv_cdf((n - 0.375) / (n + 0.25))


def _bisect(rising: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2
