"""Proves that dynamic routing is the authors' TensorFlow layer: NumPy loops in float64, values and slopes.

Written from what their code does, and with nothing of ours: squash has no epsilon, the bias is added in every
iteration, logits start at zero for each image, leaky routing has one more logit of zero, and primary capsules are one
iteration of routing among the types of a place.
"""

from math import exp, sqrt

import numpy as np
import pytest
import torch
from slopes import assert_same, draw

from torchcaps.models import CapsNet
from torchcaps.ops import dynamic_routing, margin_loss


def squashed(vector):
    norm = sqrt(sum(number * number for number in vector))
    return np.array([number / norm * (norm * norm / (1 + norm * norm)) for number in vector])


def shares(logits, leaky):
    parts = [exp(logit) for logit in logits]
    total = sum(parts) + (exp(0.0) if leaky else 0.0)
    return [part / total for part in parts]


def route_votes(votes, bias, n_iters, leaky):
    """One image: votes[i][j] and bias[j] are vectors; returns one vector for each j."""
    n_in, n_out = len(votes), len(bias)
    logits = [[0.0] * n_out for _ in range(n_in)]
    for _ in range(n_iters):
        given = [shares(logits[i], leaky) for i in range(n_in)]
        parents = []
        for j in range(n_out):
            total = bias[j].copy()
            for i in range(n_in):
                total = total + given[i][j] * votes[i][j]
            parents.append(squashed(total))
        for i in range(n_in):
            for j in range(n_out):
                logits[i][j] += float(votes[i][j] @ parents[j])
    return np.stack(parents)


def class_capsules(poses, weight, bias, n_iters=3, leaky=False):
    """Weight [i j d e]: every pair of capsules has its own transform."""
    found = []
    for image in poses:
        votes = [[image[i] @ weight[i, j] for j in range(weight.shape[1])] for i in range(weight.shape[0])]
        found.append(route_votes(votes, bias, n_iters, leaky))
    return np.stack(found)


def convolved(image, weight, stride):
    """Without padding and bias; [c h w], [k c y x] -> [k p q]."""
    n_out, _, side, _ = weight.shape
    rows, columns = ((size - side) // stride + 1 for size in image.shape[1:])
    maps = np.zeros((n_out, rows, columns))
    for k, row, column in np.ndindex(maps.shape):
        seen = image[:, row * stride : row * stride + side, column * stride : column * stride + side]
        maps[k, row, column] = (seen * weight[k]).sum()
    return maps


def primary_capsules(maps, bias, n_types, leaky):
    """Route once at every place, from one capsule that votes for all types; order (type, row, column)."""
    by_type = maps.reshape(n_types, -1, *maps.shape[1:])
    biases = bias.reshape(n_types, -1)
    poses = np.zeros((n_types, *maps.shape[1:], by_type.shape[1]))
    for row, column in np.ndindex(maps.shape[1:]):
        votes = [[by_type[n, :, row, column] for n in range(n_types)]]
        poses[:, row, column] = route_votes(votes, biases, 1, leaky)
    return poses.reshape(-1, poses.shape[-1])


@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("n_iters", [1, 3])
def test_poses_and_gradients_are_the_authors(n_iters, leaky):
    arrays = draw(poses=(2, 3, 2), weight=(3, 3, 2, 3), bias=(3, 3))
    rule = {"n_iters": n_iters, "couplings": "leaky" if leaky else "softmax"}

    def ours(**args):
        return tuple(dynamic_routing(**args, **rule, backend=backend).poses for backend in ("reference", "blocked"))

    def theirs(**arrays):
        return (class_capsules(**arrays, n_iters=n_iters, leaky=leaky),) * 2

    assert_same(ours, theirs, arrays)


def test_the_comparison_sees_a_bias_that_is_added_once():
    """As the paper's text might be read: the last iteration alone has it."""
    arrays = draw(poses=(1, 3, 2), weight=(3, 2, 2, 2), bias=(2, 2))

    def once(poses, weight, bias):
        before = dynamic_routing(poses, weight, None, 3).pose_sum
        logits = torch.einsum("bid,ijde,bje->bij", poses, weight, before)
        return (dynamic_routing(poses, weight, bias, 1, prior=logits[0]).poses,)

    with pytest.raises(AssertionError, match="output 0: off by"):
        assert_same(once, lambda **arrays: (class_capsules(**arrays),), arrays)


@pytest.mark.parametrize("couplings", ["softmax", "leaky"])
def test_a_whole_network_of_the_official_preset_is_the_authors(couplings):
    """Convolution, primary and class capsules in float64, with the authors' initialisation."""
    sizes = {"channels": 4, "kernel": 3, "n_types": 3, "d_primary": 2, "primary_kernel": 3, "d_class": 4}
    model = CapsNet((2, 9, 8), 3, **sizes, couplings=couplings, reconstruction=False).double()
    images = draw(images=(2, 2, 9, 8))["images"]
    weights = {name: tensor.detach().numpy() for name, tensor in model.named_parameters()}
    assert (weights["classes.bias"] == np.float32(0.1)).all()
    leaky, poses = couplings == "leaky", []
    for image in images:
        features = np.maximum(convolved(image, weights["conv.weight"], 1) + weights["conv.bias"][:, None, None], 0)
        maps = convolved(features, weights["primary.weight"], 2)
        poses.append(primary_capsules(maps, weights["primary.bias"], 3, leaky))
    wanted = class_capsules(np.stack(poses), weights["classes.weight"], weights["classes.bias"], leaky=leaky)
    with torch.no_grad():
        capsules = model(torch.from_numpy(images))
    np.testing.assert_allclose(capsules.poses.numpy(), wanted, rtol=1e-8)
    np.testing.assert_allclose(capsules.activity.numpy(), np.sqrt((wanted**2).sum(-1)), rtol=1e-8)


def test_the_official_margin_loss_is_half_the_mean_over_images_and_classes():
    rng = np.random.default_rng(0)
    lengths, labels = rng.random((5, 3)), rng.integers(0, 3, 5)
    total = 0.0
    for image, label in zip(lengths, labels, strict=True):
        for j, length in enumerate(image):
            total += max(0.0, 0.9 - length) ** 2 if j == label else 0.5 * max(0.0, length - 0.1) ** 2
    model = CapsNet((1, 9, 9), 3, channels=2, kernel=3, n_types=2, d_primary=2, primary_kernel=3, reconstruction=False)
    loss = margin_loss(torch.from_numpy(lengths), torch.eye(3).double()[labels]) * model.margin_weight()
    assert loss.mean().item() == pytest.approx(0.5 * total / lengths.size, rel=1e-12)
