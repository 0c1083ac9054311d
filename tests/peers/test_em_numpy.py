"""Proves that EM routing is Heinsen 2019's Algorithm 1: NumPy loops in float64 over every index, values and slopes.

Line by line from the paper, with densities as they are printed, factor 2 pi included, and no logarithms. The author's
released code adds 1e-5 to the data that an output uses, where it divides by them, and to variances: `epsilon`.
"""

from math import exp, pi, prod, sqrt

import numpy as np
import pytest
import torch
from slopes import assert_same, draw

from torchcaps.ops import em_routing

RELEASED = 1e-5


def logistic(x):
    return 1 / (1 + exp(-x))


def maximize(used, ignored, votes, betas, j, epsilon):
    """Lines 16 to 18 for one output: score, mean, variance."""
    n_in, (n_rows, n_columns) = len(used), votes[0][j].shape
    score = sum(betas[0][i][j] * used[i][j] - betas[1][i][j] * ignored[i][j] for i in range(n_in))
    total = sum(used[i][j] for i in range(n_in)) + epsilon
    mean, variance = np.zeros((n_rows, n_columns)), np.zeros((n_rows, n_columns))
    for c, h in np.ndindex(mean.shape):
        mean[c, h] = sum(used[i][j] * votes[i][j][c, h] for i in range(n_in)) / total
        squares = sum(used[i][j] * (votes[i][j][c, h] - mean[c, h]) ** 2 for i in range(n_in))
        variance[c, h] = squares / total + epsilon
    return score, mean, variance


def density(vote, mean, variance):
    """Line 7."""
    exponent = sum((vote[p] - mean[p]) ** 2 / (2 * variance[p]) for p in np.ndindex(vote.shape))
    return exp(-exponent) / sqrt(prod(2 * pi * variance[p] for p in np.ndindex(vote.shape)))


def algorithm(scores, votes, betas, n_iters, epsilon):
    """One sample, lines 2 to 20."""
    n_in, n_out = len(votes), len(votes[0])
    gates = [logistic(score) for score in scores]
    share = [[1 / n_out] * n_out for _ in range(n_in)]
    for t in range(n_iters):
        if t > 0:
            for i in range(n_in):
                joint = [logistic(found[j][0]) * density(votes[i][j], *found[j][1:]) for j in range(n_out)]
                share[i] = [part / sum(joint) for part in joint]
        used = [[gates[i] * share[i][j] for j in range(n_out)] for i in range(n_in)]
        ignored = [[gates[i] - used[i][j] for j in range(n_out)] for i in range(n_in)]
        found = [maximize(used, ignored, votes, betas, j, epsilon) for j in range(n_out)]
    return found


def routed(scores, poses, weight, bias, beta_use, beta_ignore, n_iters=3, epsilon=RELEASED):
    """Line 1, then the rest for each sample; without an axis i all inputs share the parameters."""
    fixed = weight.ndim == 4
    outputs = []
    for sample, one in zip(poses, scores, strict=True):
        n_in, n_out = len(sample), weight.shape[-3]
        of = lambda parameter, i: parameter[i] if fixed else parameter  # noqa: E731
        votes = [[sample[i] @ of(weight, i)[j] + of(bias, i)[j] for j in range(n_out)] for i in range(n_in)]
        betas = [[of(beta, i) for i in range(n_in)] for beta in (beta_use, beta_ignore)]
        outputs.append(algorithm(one, votes, betas, n_iters, epsilon))
    return tuple(np.stack([[parent[part] for parent in sample] for sample in outputs]) for part in range(3))


def problem(fixed, batch=1, n_in=4, n_out=2, rows=2, d=2, e=2):
    inputs = (n_in,) if fixed else ()
    shapes = {"scores": (batch, n_in), "poses": (batch, n_in, rows, d), "weight": (*inputs, n_out, d, e)}
    shapes |= {"bias": (*inputs, n_out, rows, e), "beta_use": (*inputs, n_out), "beta_ignore": (*inputs, n_out)}
    return draw(**shapes)


@pytest.mark.parametrize("fixed", [True, False], ids=["W_ijdh", "W_jdh"])
@pytest.mark.parametrize("n_iters", [1, 3])
def test_scores_poses_variances_and_gradients_are_the_author_s(n_iters, fixed):
    arrays = problem(fixed)
    arrays["scores"][0, :2] = -np.inf, np.inf  # a mask, and an input that is there for certain

    def ours(**leaves):
        return em_routing(**leaves, n_iters=n_iters)

    assert_same(ours, lambda **arrays: routed(**arrays, n_iters=n_iters), arrays)


def test_the_paper_without_epsilons_is_within_their_size():
    arrays = problem(fixed=True, batch=2)
    found = em_routing(**{name: torch.from_numpy(array) for name, array in arrays.items()})
    for got, exact in zip(found, routed(**arrays, epsilon=0.0), strict=True):
        off = np.abs(got.numpy() - exact).max() / np.abs(exact).max()
        assert 0 < off < 1e-3


def test_the_comparison_sees_betas_that_change_places():
    arrays = problem(fixed=False)
    swapped = {"beta_use": "beta_ignore", "beta_ignore": "beta_use"}

    def wrong(**leaves):
        return em_routing(**{name: leaves[swapped.get(name, name)] for name in leaves})

    with pytest.raises(AssertionError, match="output 0: off by"):
        assert_same(wrong, routed, arrays)
