"""A restricted Boltzmann machine: conditionals by enumeration, the update by autograd of the exact likelihood."""

from itertools import product

import pytest
import torch

from torchcaps.ops import rbm
from torchcaps.ops.rbm import Neurons


def bits(n: int) -> torch.Tensor:
    return torch.tensor(list(product([0.0, 1.0], repeat=n)), dtype=torch.float64)


@pytest.fixture
def machine(rng):
    return Neurons(*(torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((3, 2), (3,), (2,))))


def test_conditionals_are_those_of_the_energy(machine):
    """Eq. 1 over all 32 states; the paper's own lines have v_j for v_i, h_i for h_j, and the biases' signs turned."""
    visible, hidden = bits(3), bits(2)
    weight, b, c = machine
    score = visible @ weight @ hidden.T + (visible @ b)[:, None] + (hidden @ c)[None]  # [v h], minus the energy
    given_visible, given_hidden = score.softmax(1), score.softmax(0)
    torch.testing.assert_close(rbm.hidden_probability(visible, machine), given_visible @ hidden)
    torch.testing.assert_close(rbm.visible_mean(hidden, machine, binary=True), given_hidden.T @ visible)
    torch.testing.assert_close(rbm.log_marginal(visible, machine, binary=True), score.logsumexp(1))


def test_the_update_is_the_gradient_of_the_log_likelihood(machine):
    parts = Neurons(*(part.clone().requires_grad_() for part in machine))
    scores = rbm.log_marginal(bits(3), parts, binary=True)
    data = bits(3)[[1, 1, 6]]
    (rbm.log_marginal(data, parts, binary=True).mean() - scores.logsumexp(0)).backward()
    chance = scores.detach().softmax(0)
    each = [rbm.statistics(state[None], machine) for state in bits(3)]
    for name in Neurons._fields:
        model = sum(share * getattr(one, name) for share, one in zip(chance, each, strict=True))
        torch.testing.assert_close(
            getattr(rbm.statistics(data, machine), name) - model, getattr(parts, name).grad, msg=name
        )


def test_gaussian_neurons_have_the_gradient_of_their_free_energy_too(machine, rng):
    parts = Neurons(*(part.clone().requires_grad_() for part in machine))
    visible = torch.randn(5, 3, generator=rng, dtype=torch.float64)
    rbm.log_marginal(visible, parts, binary=False).mean().backward()
    for found, part in zip(rbm.statistics(visible, machine), parts, strict=True):
        torch.testing.assert_close(found, part.grad)


def test_contrast_learns_two_patterns(rng):
    visible = torch.tensor([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]], dtype=torch.float64).repeat(8, 1)
    machine = Neurons(
        0.1 * torch.randn(3, 2, generator=rng, dtype=torch.float64),
        *(torch.zeros(n, dtype=torch.float64) for n in (3, 2)),
    )
    errors = []
    for _ in range(200):
        towards, dreamt = rbm.contrast(
            visible, machine, torch.rand(16, 2, generator=rng, dtype=torch.float64), binary=False
        )
        errors.append((dreamt - visible).square().mean().item())
        machine = Neurons(*(part + 0.1 * step for part, step in zip(machine, towards, strict=True)))
    assert errors[0] > 0.9 and errors[-1] < 0.1, (errors[0], errors[-1])
