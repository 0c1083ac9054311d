"""Initialisation of routed capsules that stay alive in stacks of any width and depth.

An output sums votes with couplings of about 1 / n_out and squashes the sum, which squares what is short. So votes must
be long, but not too long: agreement lengthens a sum further, by a factor that grows with n_out / d_out. A random bias
gives every output some length whatever it receives.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

INITS = {
    "alive": "random bias, votes scaled to the sizes: median activity of 0.3 to 0.8 for inputs of length 0.3 to 0.9",
    "paper": "zero bias, variance n_out / (n_in · d_in): what the papers' presets start from",
}
BIAS = 0.68  # length of a bias: squashed, an activity of 0.3
LENGTH = 0.6  # length of an input that the scales below are made for
# Length of the sum of votes per length of an input, without agreement; and how fast agreement shortens it. Fitted so
# that inputs of length 0.9 give a median activity just below 0.8, from 2 to 1000 outputs of 4 to 64 dimensions.
SUM, AGREEMENT = 1.4, 1.75

# of capsules with scores: typical activity of an input, and standard deviation of an output's score
GATE, SCORE = 0.5, 0.7


def check_init(layer: str, init: str) -> None:
    """Refuse an unknown initialisation."""
    if init not in INITS:
        raise ValueError(f"{layer}: init must be one of {', '.join(INITS)}; got {init!r}")


def sum_length(n_out: int | float, d_out: int, n_iters: int, couplings: str) -> float:
    """Return the wanted length of the first sum of votes, per length of an input."""
    feedback = (n_iters - 1) / 2 * n_out / d_out if couplings in ("softmax", "leaky") else 0.0
    return (SUM**-2 + feedback / AGREEMENT) ** -0.5


def alive_std(n_in: int | float, n_out: int | float, d_out: int, n_iters: int, couplings: str) -> float:
    """Return the standard deviation of transforms, for `n_in` inputs that each divide themselves among `n_out`."""
    squares = n_in * _mean_square_coupling(n_out, n_iters, couplings)
    if couplings == "max-min" and n_iters > 1:
        # couplings between 0 and 1 follow the agreement, so the votes that agree add up
        squares += n_in**2 / (12 * d_out)
    return sum_length(n_out, d_out, n_iters, couplings) / math.sqrt(squares * d_out)


def alive_bias(n_out: int, d_out: int) -> Float[Tensor, "j e"]:
    """Draw biases of one length in random directions."""
    return nn.functional.normalize(torch.randn(n_out, d_out), dim=-1) * BIAS


def _mean_square_coupling(n_out: int | float, n_iters: int, couplings: str) -> float:
    if couplings == "max-min" and n_iters > 1:
        return 1 / 3
    if couplings == "random":
        return min(1.0, math.e / n_out**2)  # softmax of normal logits
    return 1 / (n_out + (couplings == "leaky")) ** 2
