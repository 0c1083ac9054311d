"""Restricted Boltzmann machine: products of expert neurons, from which Hauser 2019 (2.1) derives expert capsules.

The paper's conditionals have slips; they are p(h_j = 1 | v) = sigma(sum_i w_ij v_i + c_j) and, for binary v,
sigma(sum_j w_ij h_j + b_i). Visible units that are not binary are Gaussians of unit variance, whose mean is the
argument of that sigma.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

Visible = Float[Tensor, "*b v"]
Hidden = Float[Tensor, "*b h"]


class Neurons(NamedTuple):
    """Parameters, or their update. Paper's symbols: w_ij `weight`, b_i `visible_bias`, c_j `hidden_bias`.

    Example:

        neurons = Neurons(torch.randn(64, 16), torch.zeros(64), torch.zeros(16))
        list(hidden_probability(torch.rand(4, 64), neurons).shape)  # [4, 16]
    """

    weight: Float[Tensor, "v h"]
    visible_bias: Float[Tensor, "v"]
    hidden_bias: Float[Tensor, "h"]


def hidden_probability(visible: Visible, neurons: Neurons) -> Hidden:
    return (visible @ neurons.weight + neurons.hidden_bias).sigmoid()


def visible_mean(hidden: Hidden, neurons: Neurons, *, binary: bool) -> Visible:
    mean = hidden @ neurons.weight.T + neurons.visible_bias
    return mean.sigmoid() if binary else mean


def log_marginal(visible: Visible, neurons: Neurons, *, binary: bool) -> Float[Tensor, "*b"]:
    """Minus the free energy: the logarithm of the sum over all hidden states, without Z."""
    hidden = softplus(visible @ neurons.weight + neurons.hidden_bias).sum(-1) + visible @ neurons.visible_bias
    return hidden if binary else hidden - visible.square().sum(-1) / 2


def statistics(visible: Visible, neurons: Neurons) -> Neurons:
    """Derivative of `log_marginal` by weights and biases, mean over the batch: half of Eq. 2."""
    hidden = hidden_probability(visible, neurons)
    visible, hidden = visible.reshape(-1, visible.shape[-1]), hidden.reshape(-1, hidden.shape[-1])
    return Neurons(visible.T @ hidden / len(visible), visible.mean(0), hidden.mean(0))


def contrast(visible: Visible, neurons: Neurons, uniform: Hidden, *, binary: bool) -> tuple[Neurons, Visible]:
    """CD-1: the update before the learning rate, and the visible units after one sweep with hidden ones drawn."""
    on = (uniform < hidden_probability(visible, neurons)).to(visible.dtype)
    dreamt = visible_mean(on, neurons, binary=binary)
    data, model = statistics(visible, neurons), statistics(dreamt, neurons)
    return Neurons(*(torch.sub(*pair) for pair in zip(data, model, strict=True))), dreamt
