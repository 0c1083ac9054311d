"""A product with a weight: torch.bmm's values, and gradients that autocast has not rounded."""

from unittest import mock

import pytest
import torch

from torchcaps.ops.weight_product import weight_product

BOTH_WAYS = pytest.mark.parametrize("transposed", [False, True])


def some_factors(
    rng, transposed=False, device="cpu", dtype=torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, weight, and the gradient that comes back; all of them numbers that bfloat16 has."""
    shapes = (3, 50, 4), (3, 6, 4) if transposed else (3, 4, 6), (3, 50, 6)
    found = (torch.randn(*shape, generator=rng).bfloat16().to(device, dtype) for shape in shapes)
    return next(found).requires_grad_(), next(found).requires_grad_(), next(found)


def low(device="cpu"):
    return torch.autocast(device, torch.bfloat16)


def plain(inputs, weight, transposed):
    return torch.bmm(inputs, weight.mT if transposed else weight)


def exactly(inputs, back, transposed) -> torch.Tensor:
    """The gradient of the weight in float64."""
    found = inputs.detach().double().mT @ back.double()
    return found.mT if transposed else found


@BOTH_WAYS
def test_outside_autocast_it_is_bmm(transposed, rng):
    inputs, weight, back = some_factors(rng, transposed)
    found, wanted = weight_product(inputs, weight, transposed=transposed), plain(inputs, weight, transposed)
    assert torch.equal(found, wanted)
    for ours, theirs in zip(*(torch.autograd.grad(y, (inputs, weight), back) for y in (found, wanted)), strict=True):
        assert torch.equal(ours, theirs)


@BOTH_WAYS
@pytest.mark.parametrize("inside", [False, True])
def test_under_autocast_values_are_bmms_and_the_weights_gradient_is_not_rounded(transposed, inside, rng):
    """A sum over 50 rows of what bfloat16 has exactly: float32 is off by 1e-6 or so, autograd's bfloat16 by 1e-3.
    Wherever it is taken.
    """
    inputs, weight, back = some_factors(rng, transposed)
    with low():
        found, wanted = weight_product(inputs, weight, transposed=transposed), plain(inputs, weight, transposed)
    assert found.dtype == torch.bfloat16 and torch.equal(found, wanted)
    with torch.autocast("cpu", torch.bfloat16, enabled=inside):
        ours, theirs = (torch.autograd.grad(y, (inputs, weight), back.bfloat16()) for y in (found, wanted))
    assert {gradient.dtype for gradient in ours} == {torch.float32} and torch.equal(ours[0], theirs[0])
    exact = exactly(inputs, back, transposed)
    torch.testing.assert_close(ours[1].double(), exact, rtol=1e-5, atol=1e-5)
    assert (theirs[1].double() - exact).abs().max() > 1e-3


@pytest.mark.parametrize("around", [False, True])
def test_a_compiled_one_does_the_same(around, rng):
    """With the compiled function inside autocast its backward pass is inside as well."""
    inputs, weight, back = some_factors(rng)

    def product(x, w):
        with torch.autocast("cpu", torch.bfloat16, enabled=True):
            return weight_product(x, w)

    compiled = torch.compile(weight_product if around else product, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16, enabled=around):
        found = compiled(inputs, weight)
    found.backward(back.bfloat16())
    torch.testing.assert_close(weight.grad.double(), exactly(inputs, back, False), rtol=1e-5, atol=1e-5)


def test_autocast_leaves_float64_alone(rng):
    inputs, weight, _ = some_factors(rng, dtype=torch.float64)
    with low():
        assert weight_product(inputs, weight).dtype == torch.float64
        with pytest.raises(RuntimeError, match="dtype"):
            weight_product(inputs, weight.float())


@pytest.mark.parametrize("frozen", [0, 1])
def test_no_product_is_made_for_a_gradient_that_nobody_needs(frozen, rng):
    factors = list(some_factors(rng))
    factors[frozen] = factors[frozen].detach()
    with low():
        found = weight_product(*factors[:2])
    with mock.patch("torch.bmm", side_effect=torch.bmm) as products:
        found.backward(factors[2].bfloat16())
    assert products.call_count == 1
    assert factors[1 - frozen].grad.any()


@BOTH_WAYS
def test_second_gradients_are_those_of_bmm(transposed, rng):
    """The squared length of the first gradients is differentiated by inputs and weight, beside float64."""
    inputs, weight, _ = some_factors(rng, transposed)

    def second(product, *factors):
        first = torch.autograd.grad(product(*factors).to(factors[0].dtype).square().sum(), factors, create_graph=True)
        return torch.autograd.grad(sum(gradient.square().sum() for gradient in first), factors)

    def ours(*factors):
        with low():
            return weight_product(*factors, transposed=transposed)

    exact = second(
        lambda x, w: plain(x, w, transposed), *(t.detach().double().requires_grad_() for t in (inputs, weight))
    )
    for found, wanted in zip(second(ours, inputs, weight), exact, strict=True):
        assert (found - wanted).norm() < 0.02 * wanted.norm()


@BOTH_WAYS
def test_torch_func_goes_through_it(transposed, rng):
    inputs, weight, back = some_factors(rng, transposed)

    def loss(w, x):
        with low():
            return (weight_product(x, w, transposed=transposed) * back).sum()

    found = torch.func.grad(loss)(weight.detach(), inputs.detach())
    torch.testing.assert_close(found.double(), exactly(inputs, back, transposed), rtol=1e-5, atol=1e-5)
    many = torch.stack([inputs.detach(), -inputs.detach()])
    torch.testing.assert_close(
        torch.func.vmap(torch.func.grad(loss), (None, 0))(weight.detach(), many), torch.stack([found, -found])
    )


def test_it_has_shapes_without_numbers():
    found = weight_product(torch.empty(3, 5, 4, device="meta"), torch.empty(3, 4, 6, device="meta"))
    assert found.shape == (3, 5, 6)


@pytest.mark.gpu
@pytest.mark.filterwarnings(
    "ignore:Attempting to run cuBLAS"
)  # PyTorch's own, where a thread's first CUDA call is a product
@BOTH_WAYS
@pytest.mark.parametrize("how", ["eager", "compiled", "graph twice"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_on_the_device_too(transposed, how, dtype, rng):
    inputs, weight, back = some_factors(rng, transposed, "cuda")
    product = torch.compile(weight_product, fullgraph=True) if how == "compiled" else weight_product
    with torch.autocast("cuda", dtype):
        found = product(inputs, weight, transposed=transposed)
        wanted = plain(inputs, weight, transposed)
    (back_wanted,) = torch.autograd.grad(wanted, inputs, back.to(dtype))
    back_found, gradient = torch.autograd.grad(
        found, (inputs, weight), back.to(dtype), create_graph=how == "graph twice"
    )
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(
        back_found, back_wanted, rtol=2e-2, atol=2e-2
    )  # sums of six rounded to 8 bits, in any order
    torch.testing.assert_close(gradient.double(), exactly(inputs, back, transposed), rtol=1e-5, atol=1e-5)
