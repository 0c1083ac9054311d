"""Proves that self-attention, self- and inverted routing are their papers' equations: NumPy loops, values and slopes.

Matrix EM routing has such a loop, one child and one parent at a time, in tests/ops/test_matrix_em.py.
"""

from math import exp, sqrt

import numpy as np
import pytest
from slopes import assert_same, draw

from torchcaps.ops import inverted_routing, self_attention_routing, self_routing


def softmax(numbers):
    parts = [exp(number) for number in numbers]
    return [part / sum(parts) for part in parts]


def votes_for(image, weight):
    n_in, n_out = weight.shape[:2]
    return [[image[i] @ weight[i, j] for j in range(n_out)] for i in range(n_in)]


def self_attention(poses, weight, prior):
    """Mazzia 2021: attention between all pairs of inputs, for each output; squash by 1 - exp(-length)."""
    n_in, n_out, _, d_out = weight.shape
    outputs = []
    for image in poses:
        votes = votes_for(image, weight)
        logits = np.zeros((n_in, n_out))
        for i, other, j in np.ndindex(n_in, n_in, n_out):
            logits[i, j] += votes[i][j] @ votes[other][j] / sqrt(d_out)
        couplings = [softmax(logits[i]) for i in range(n_in)]
        sums = [sum((couplings[i][j] + prior[i, j]) * votes[i][j] for i in range(n_in)) for j in range(n_out)]
        outputs.append([(1 - exp(-np.linalg.norm(s))) * s / np.linalg.norm(s) for s in sums])
    return (np.array(outputs),)


def alone(activity, poses, weight, route, bias):
    """Hahn 2019: an input's own pose says where it goes; poses, and logarithms of activities.

    The paper has no bias, its authors' code does.
    """
    n_in, n_out = weight.shape[:2]
    found = []
    for image, present in zip(poses, activity, strict=True):
        votes = votes_for(image, weight)
        couplings = [softmax(image[i] @ route[i] + bias[i]) for i in range(n_in)]
        arriving = [sum(couplings[i][j] * present[i] for i in range(n_in)) for j in range(n_out)]
        sums = [sum(couplings[i][j] * present[i] * votes[i][j] for i in range(n_in)) for j in range(n_out)]
        parents = [sums[j] / arriving[j] for j in range(n_out)]
        found.append((parents, [np.log(part / sum(present)) for part in arriving]))
    return tuple(np.array(part) for part in zip(*found, strict=True))


def inverted(poses, weight, scale, bias, n_iters):
    """Tsai 2020: outputs compete for an input; layer norm in place of squash, uniform couplings first."""
    n_in, n_out = weight.shape[:2]
    outputs = []
    for image in poses:
        votes, parents = votes_for(image, weight), None
        for _ in range(n_iters):
            agreed = [[0.0 if parents is None else parents[j] @ votes[i][j] for j in range(n_out)] for i in range(n_in)]
            couplings = [softmax(row) for row in agreed]
            sums = [sum(couplings[i][j] * votes[i][j] for i in range(n_in)) for j in range(n_out)]
            # 1e-5 is layer norm's own in PyTorch, which the authors use
            parents = [(s - s.mean()) / sqrt(((s - s.mean()) ** 2).mean() + 1e-5) * scale + bias for s in sums]
        outputs.append(parents)
    return (np.array(outputs),)


def test_self_attention_routing_is_the_paper_s():
    arrays = draw(poses=(2, 3, 2), weight=(3, 3, 2, 3), prior=(3, 3))
    assert_same(lambda **args: (self_attention_routing(**args),), self_attention, arrays)


def test_self_routing_is_the_paper_s():
    arrays = draw(poses=(2, 3, 2), weight=(3, 3, 2, 3), route=(3, 2, 3), bias=(3, 3))
    arrays["activity"] = np.random.default_rng(2).uniform(0.1, 1, (2, 3))
    assert_same(self_routing, alone, arrays)


@pytest.mark.parametrize("n_iters", [1, 3])
def test_inverted_routing_is_the_paper_s(n_iters):
    arrays = draw(poses=(2, 3, 2), weight=(3, 3, 2, 3), scale=(3,), bias=(3,))

    def ours(poses, weight, scale, bias):
        return (inverted_routing(poses, weight, n_iters, scale=scale, bias=bias),)

    assert_same(ours, lambda **arrays: inverted(**arrays, n_iters=n_iters), arrays)


def test_the_comparison_sees_a_prior_inside_the_softmax():
    arrays = draw(poses=(2, 3, 2), weight=(3, 3, 2, 3), prior=(3, 3))

    def inside(poses, weight, prior):
        votes = np.einsum("bid,ijde->bije", poses, weight)
        logits = np.einsum("bije,bje->bij", votes, votes.sum(1)) / sqrt(3) + prior
        couplings = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        sums = np.einsum("bij,bije->bje", couplings, votes)
        length = np.linalg.norm(sums, axis=-1, keepdims=True)
        return ((1 - np.exp(-length)) * sums / length,)

    with pytest.raises(AssertionError, match="output 0: off by"):
        assert_same(lambda **args: (self_attention_routing(**args),), inside, arrays)
