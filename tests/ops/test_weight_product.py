"""A product with a weight: torch.bmm's values, and gradients that autocast has not rounded."""

import pytest
import torch

from torchcaps.ops.weight_product import weight_product


def some_factors(rng, device="cpu", dtype=torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, weight, and the gradient that comes back; all of them numbers that bfloat16 has."""
    shapes = (3, 50, 4), (3, 4, 6), (3, 50, 6)
    found = (torch.randn(*shape, generator=rng).bfloat16().to(device, dtype) for shape in shapes)
    return next(found).requires_grad_(), next(found).requires_grad_(), next(found)


def low(device="cpu"):
    return torch.autocast(device, torch.bfloat16)


def test_outside_autocast_it_is_bmm(rng):
    inputs, weight, back = some_factors(rng)
    found, wanted = weight_product(inputs, weight), torch.bmm(inputs, weight)
    assert torch.equal(found, wanted)
    for ours, theirs in zip(*(torch.autograd.grad(y, (inputs, weight), back) for y in (found, wanted)), strict=True):
        assert torch.equal(ours, theirs)


def test_under_autocast_values_are_bmms_and_the_weights_gradient_is_not_rounded(rng):
    """A sum over 50 rows of what bfloat16 has exactly: float32 is off by 1e-6 or so, autograd's bfloat16 by 1e-3."""
    inputs, weight, back = some_factors(rng)
    with low():
        found, wanted = weight_product(inputs, weight), torch.bmm(inputs, weight)
    assert found.dtype == torch.bfloat16 and torch.equal(found, wanted)
    (to_inputs, to_weight), (theirs, rounded) = (torch.autograd.grad(y, (inputs, weight), back.bfloat16()) for y in (found, wanted))
    exact = inputs.detach().double().mT @ back.double()
    assert to_weight.dtype == to_inputs.dtype == torch.float32 and torch.equal(to_inputs, theirs)
    torch.testing.assert_close(to_weight.double(), exact, rtol=1e-5, atol=1e-5)
    assert (rounded.double() - exact).abs().max() > 1e-3


def test_autocast_leaves_float64_alone(rng):
    inputs, weight, _ = some_factors(rng, dtype=torch.float64)
    with low():
        assert weight_product(inputs, weight).dtype == torch.float64
    assert torch.autograd.gradgradcheck(weight_product, (inputs[:, :3].detach().requires_grad_(), weight))


def test_inputs_that_need_no_gradient_get_none(rng):
    inputs, weight, back = some_factors(rng)
    with low():
        weight_product(inputs.detach(), weight).backward(back.bfloat16())
    assert weight.grad.any()


def test_second_gradients_are_bmms(rng):
    """Of the squared length of the first ones, by inputs and weight."""
    inputs, weight, _ = some_factors(rng)

    def second(product):
        with low():
            first = torch.autograd.grad(product(inputs, weight).float().square().sum(), (inputs, weight), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), (inputs, weight))

    for ours, theirs in zip(second(weight_product), second(torch.bmm), strict=True):
        assert (ours - theirs).norm() < 0.02 * theirs.norm()  # theirs is rounded


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_on_the_device_too(compiled, rng):
    inputs, weight, back = some_factors(rng, "cuda")
    product = torch.compile(weight_product) if compiled else weight_product
    with low("cuda"):
        product(inputs, weight).backward(back.bfloat16())
    exact = inputs.detach().double().mT @ back.double()
    torch.testing.assert_close(weight.grad.double(), exact, rtol=1e-5, atol=1e-5)
