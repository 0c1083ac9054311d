from math import exp

import pytest
import torch
from torch.autograd import gradcheck

from torchcaps.ops import length, squash, squash_exponential, unsquash


def of_lengths(lengths, d=3, dtype=torch.float32, seed=0):
    """One vector per length, in a random direction."""
    directions = torch.randn(len(lengths), d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    directions = directions / directions.norm(dim=-1, keepdim=True)
    return (directions * torch.as_tensor(lengths, dtype=torch.float64)[:, None]).to(dtype)


def test_by_hand():
    # a length of 5 becomes 25 / 26, in the direction (0.6, 0.8); a length of 1 becomes 1 / 2
    vectors = torch.tensor([[3.0, 4.0], [0.0, -1.0], [0.0, 0.0]])
    torch.testing.assert_close(squash(vectors), torch.tensor([[0.6 * 25 / 26, 0.8 * 25 / 26], [0.0, -0.5], [0.0, 0.0]]))


def test_exponential_by_hand_and_at_both_ends():
    # a length of 5 becomes 1 - exp(-5), in the direction (0.6, 0.8)
    n = 1 - exp(-5)
    torch.testing.assert_close(squash_exponential(torch.tensor([3.0, 4.0])), torch.tensor([0.6 * n, 0.8 * n]))
    ends = torch.tensor([[0.0, 0.0], [1e-20, 0.0], [0.0, -1e25]], requires_grad=True)
    found = squash_exponential(ends)
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.0], [1e-20, 0.0], [0.0, -1.0]]), atol=0, rtol=1e-5)
    found.sum().backward()
    # the identity near 0, where squash is flat
    torch.testing.assert_close(ends.grad[:2], torch.ones(2, 2), atol=1e-5, rtol=0)
    assert ends.grad.isfinite().all()


def test_back_by_hand():
    # a length of 0.8 comes from sqrt(0.8 / 0.2) = 2, a length of 0.5 from 1
    torch.testing.assert_close(
        unsquash(torch.tensor([[0.8, 0.0], [-0.3, 0.4]])), torch.tensor([[2.0, 0.0], [-0.6, 0.8]])
    )


def test_the_way_there_and_back_is_the_identity():
    squashed = of_lengths(torch.linspace(0.01, 0.99, 99))
    assert (squash(unsquash(squashed)) - squashed).abs().max() <= 1e-6


def test_the_way_back_and_there_is_the_identity_in_float64():
    vectors = of_lengths(torch.linspace(0.1, 10, 100), dtype=torch.float64)
    torch.testing.assert_close(unsquash(squash(vectors)), vectors, rtol=1e-9, atol=1e-9)


def test_direction_is_kept_and_length_reads_as_a_probability():
    vectors = of_lengths([1e-3, 0.1, 1.0, 10.0, 100.0])
    squashed = squash(vectors)
    torch.testing.assert_close(torch.cosine_similarity(squashed, vectors), torch.ones(5))
    n = torch.tensor([1e-3, 0.1, 1.0, 10.0, 100.0])
    torch.testing.assert_close(length(squashed), n**2 / (1 + n**2))


def test_a_longer_vector_stays_longer():
    lengths = length(squash(of_lengths(torch.linspace(0.01, 20, 50), dtype=torch.float64)))
    assert (lengths.diff() > 0).all()
    assert lengths.max() < 1


@pytest.mark.parametrize("op", [squash, squash_exponential, unsquash, length])
@pytest.mark.parametrize("at", [0.0, 1e-30, 1e-6, 1 - 1e-7, 1.0, 1.5, 1e4])
def test_value_and_gradient_are_finite(op, at):
    vectors = of_lengths([at]).requires_grad_()
    result = op(vectors)
    result.sum().backward()
    assert result.isfinite().all()
    assert vectors.grad.isfinite().all()


@pytest.mark.parametrize("op", [squash, length])
@pytest.mark.parametrize("at", [1e16, 1e17, 1e18, 1e19, 1e20, 1e25, 1e29, 1e30, 3e37])
def test_huge_vectors_keep_their_direction_and_length(op, at):
    """Beyond 1e19 the square of a float32 is infinite; squash gives a length of 1 all the same."""
    vectors = of_lengths([at]).requires_grad_()
    result = op(vectors)
    wanted = vectors.double() / at if op is squash else torch.tensor([at]).double()
    torch.testing.assert_close(result.double(), wanted, rtol=1e-5, atol=0.0)
    result.sum().backward()
    assert vectors.grad.isfinite().all()


@pytest.mark.parametrize("op", [squash, squash_exponential])
def test_a_vector_whose_length_is_no_float32_is_squashed_to_length_one(op):
    """squash_exponential gave zeros and a NaN gradient."""
    vectors = torch.full((1, 4), 3e38, requires_grad=True)
    result = op(vectors)
    torch.testing.assert_close(result, torch.full((1, 4), 0.5))
    result.sum().backward()
    assert vectors.grad.isfinite().all()


def test_gradient_at_zero():
    """Squash is flat there; unsquash is steep but not infinitely so: 1 / sqrt(n) at the length n = 1e-6 that zero reads
    as.
    """
    zero = torch.zeros(1, 3, requires_grad=True)
    squash(zero).sum().backward()
    assert (zero.grad == 0).all()
    zero.grad = None
    unsquash(zero).sum().backward()
    torch.testing.assert_close(zero.grad, torch.full((1, 3), 1e3), rtol=1e-3, atol=0.0)


def test_a_zero_upstream_gradient_stays_zero_at_zero():
    zero = torch.zeros(2, 3, requires_grad=True)
    (squash(zero) * 0).sum().backward()
    assert (zero.grad == 0).all()


@pytest.mark.parametrize("op", [squash, squash_exponential, unsquash, length])
def test_gradient_is_the_slope(op):
    assert gradcheck(op, of_lengths([0.05, 0.5, 0.9], dtype=torch.float64).requires_grad_())


@pytest.mark.parametrize("op", [squash, length])
def test_gradient_of_long_vectors_is_the_slope(op):
    assert gradcheck(op, of_lengths([3.0, 30.0], dtype=torch.float64).requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("op", [squash, squash_exponential, unsquash, length])
def test_result_has_the_dtype_of_the_input_and_is_rounded_once(op, dtype):
    vectors = of_lengths(torch.linspace(0.05, 0.95, 20), d=64).to(dtype)
    result, exact = op(vectors), op(vectors.double())
    assert result.dtype == dtype
    # near length 1 unsquash magnifies float32's rounding of the length by up to 1 / (1 - n) = 20
    torch.testing.assert_close(
        result.double(), exact, rtol=max(torch.finfo(dtype).eps, 20 * 2**-23 * (dtype != torch.float64)), atol=1e-12
    )


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 1, 4, 3), (0, 3)])
def test_any_leading_axes(shape, rng):
    vectors = torch.randn(shape, generator=rng)
    assert squash(vectors).shape == unsquash(vectors * 0.1).shape == shape
    assert length(vectors).shape == shape[:-1]


def test_compiles_whole(fresh_dynamo, rng):
    vectors = torch.randn(4, 3, generator=rng, requires_grad=True)
    compiled = torch.compile(
        lambda x: squash(x) + unsquash(squash(x)) * length(x)[:, None], fullgraph=True, backend="aot_eager"
    )
    plain = squash(vectors) + unsquash(squash(vectors)) * length(vectors)[:, None]
    torch.testing.assert_close(compiled(vectors), plain)
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), vectors)[0] for x in (compiled(vectors), plain)))
