"""Convolutions: every way gives conv2d's result. The way a GPU takes for few channels is plain PyTorch and runs here
too.
"""

import pytest
import torch
from torch.nn.functional import conv2d
from torch.profiler import ProfilerActivity, profile

from torchcaps.ops import convolution, convolve
from torchcaps.ops.convolution import _by_patches


def tensors(rng, c=1, k=5, rows=3, columns=4, dtype=torch.float64):
    shapes = (2, c, 7, 8), (k, c, rows, columns), (k,)
    return [torch.randn(shape, generator=rng, dtype=dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("c", [1, 3])
def test_a_product_over_patches_is_the_convolution(rng, c, stride):
    images, weight, bias = tensors(rng, c)
    got, wanted = _by_patches(images, weight, bias, stride), conv2d(images, weight, bias, stride)
    torch.testing.assert_close(got, wanted)
    direction = torch.randn(wanted.shape, generator=rng, dtype=wanted.dtype)
    for mine, theirs in zip(
        *(torch.autograd.grad(x, (images, weight, bias), direction) for x in (got, wanted)), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_patches_of_any_number_of_numbers(rng):
    """12, 8 and 1 numbers a patch: padded to a multiple of eight, exact, and padded from one."""
    for rows, columns in ((3, 4), (2, 4), (1, 1)):
        images, weight, bias = tensors(rng, 1, 5, rows, columns)
        torch.testing.assert_close(_by_patches(images, weight, bias, 1), conv2d(images, weight, bias))


def test_a_bias_beside_a_padded_patch_needs_no_sum_over_all_maps(rng):
    """It is one more column of the weight; where the patch needs no zeros, it is added as usual."""
    for columns, sums in ((4, 0), (8, 1)):  # 12 and 24 values a patch
        images, weight, bias = tensors(rng, 1, 5, 3, columns)
        maps = _by_patches(images, weight, bias, 1)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            torch.autograd.grad(maps, (weight, bias), torch.ones_like(maps))
        assert sum(event.name == "aten::sum" for event in seen.events()) == sums


def test_the_maps_lie_channels_last_as_the_next_convolution_wants_them(rng):
    assert _by_patches(*tensors(rng), 1).is_contiguous(memory_format=torch.channels_last)


def test_on_a_cpu_it_is_conv2d_to_the_bit(rng):
    images, weight, bias = tensors(rng, dtype=torch.float32)
    assert torch.equal(convolve(images, weight, bias, 2), conv2d(images, weight, bias, 2))
    assert torch.equal(convolve(images, weight), conv2d(images, weight))
    assert torch.equal(convolve(images, weight, padding=2), conv2d(images, weight, padding=2))


@pytest.mark.parametrize("most", [64 << 20, 1])
def test_zeros_around_by_patches_or_where_there_would_be_too_many(rng, monkeypatch, most):
    """On a stand-in for CUDA: the way is chosen by shapes alone."""
    monkeypatch.setattr(convolution, "_on_cuda", lambda tensor: True)
    monkeypatch.setattr(convolution, "MOST", most)
    taken = []
    monkeypatch.setattr(convolution, "_by_patches", lambda *args: taken.append(1) or _by_patches(*args))
    images, weight, bias = tensors(rng, c=2)
    torch.testing.assert_close(convolve(images, weight, bias, 2, 3), conv2d(images, weight, bias, 2, 3))
    assert bool(taken) == (most > 1)


@pytest.mark.parametrize(
    ("n", "grad", "taken"), [(1, False, True), (4, False, True), (5, False, False), (1, True, False)]
)
def test_a_cpu_multiplies_the_patches_of_few_images_without_gradients(rng, monkeypatch, n, grad, taken):
    monkeypatch.setattr(convolution, "LARGE_WEIGHT", 1)
    made = []
    monkeypatch.setattr(convolution, "_by_patches", lambda *args: made.append(1) or _by_patches(*args))
    images, weight = torch.randn(n, 8, 9, 9, generator=rng), torch.randn(6, 8, 5, 5, generator=rng)
    wanted = conv2d(images, weight, stride=2, padding=1)
    got = convolve(images, weight.requires_grad_(grad), stride=2, padding=1)
    torch.testing.assert_close(got, wanted)
    assert bool(made) == taken
    assert taken or torch.equal(got, wanted)


@pytest.mark.parametrize("shape", [(2, 8, 4, 9), (2, 8, 9, 4), (2, 7, 9, 9), (7, 9, 9), (9, 9)], ids=str)
def test_what_conv2d_refuses_is_refused_in_its_words(monkeypatch, shape):
    monkeypatch.setattr(convolution, "LARGE_WEIGHT", 1)
    images, weight = torch.zeros(shape), torch.zeros(6, 8, 5, 5)
    told = []
    for op in (conv2d, convolve):
        with pytest.raises(RuntimeError) as caught:
            op(images, weight, stride=2)
        told.append(str(caught.value))
    assert told[0] == told[1]


def test_one_image_without_an_axis_for_images_and_one_that_padding_makes_large_enough(rng, monkeypatch):
    monkeypatch.setattr(convolution, "LARGE_WEIGHT", 1)
    weight = torch.randn(6, 3, 5, 5, generator=rng)
    for shape in ((3, 9, 9), (1, 3, 4, 4)):
        images = torch.randn(shape, generator=rng)
        wanted = conv2d(images, weight, stride=2, padding=1)
        torch.testing.assert_close(convolve(images, weight, stride=2, padding=1), wanted)


def test_a_subclass_of_tensors_compiles_and_stays_one(rng, fresh_dynamo):
    class Own(torch.Tensor):
        pass

    images, weight, bias = (x.detach() for x in tensors(rng))
    compiled = torch.compile(convolve, fullgraph=True, backend="eager")(images.as_subclass(Own), weight, bias)
    assert type(compiled) is type(convolve(images.as_subclass(Own), weight, bias)) is Own
    torch.testing.assert_close(compiled.as_subclass(torch.Tensor), convolve(images, weight, bias))
