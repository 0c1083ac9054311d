"""A first convolution with its ReLU. What a GPU does around the kernels is traced here."""

from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import conv2d, relu

from torchcaps.ops import conv_relu, convolution, convolve, convolve_relu
from torchcaps.ops.conv_relu import triton_op

SHAPES = (2, 1, 7, 8), (64, 1, 3, 4), (64,)
MAPS = 128 * 256 * 20 * 20  # values of CapsNet's maps at batch 128


def tensors(rng, dtype=torch.float32):
    return [torch.randn(shape, generator=rng, dtype=dtype).requires_grad_() for shape in SHAPES]


def test_on_a_cpu_it_is_the_relu_of_conv2d_to_the_bit(rng):
    images, weight, bias = tensors(rng)
    found, wanted = convolve_relu(images, weight, bias, 2, 1), relu(conv2d(images, weight, bias, 2, 1))
    assert torch.equal(found, wanted)
    for mine, theirs in zip(
        *(torch.autograd.grad(x.sum(), (images, weight, bias)) for x in (found, wanted)), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_a_kernel_that_cannot_run_is_refused_with_the_reason(rng):
    with pytest.raises(ValueError, match=r"convolve_relu: backend 'triton' .*; "):
        convolve_relu(*tensors(rng, torch.float64), backend="triton")


@pytest.mark.parametrize(("channels", "columns", "stride"), [(1, 4, 1), (3, 2, 2), (2, 7, 3)])
def test_stripes_times_filters_added_over_rows_are_the_convolution(rng, channels, columns, stride):
    images, bias = torch.randn(2, channels, 9, 10, generator=rng), torch.randn(64, generator=rng)
    weight = torch.randn(64, channels, 3, columns, generator=rng)
    stripes = triton_op.stripes_of(images, columns, stride, torch.float32)
    filters = triton_op.filters_of(weight, bias, stripes.shape[-1])
    rows = stripes.unfold(1, len(filters), stride)  # [b p q wide y]
    found = torch.einsum("bpqwy,ywk->bkpq", rows, filters)
    torch.testing.assert_close(found, conv2d(images, weight, bias, stride), rtol=1e-4, atol=1e-4)


@pytest.fixture
def as_on_cuda(monkeypatch):
    """A stand-in for CUDA: the way is chosen as there."""
    monkeypatch.setattr(convolution, "_on_cuda", lambda tensor: True)
    for module in (convolution, triton_op):
        monkeypatch.setattr(module, "cannot_multiply", lambda tensor: None)


def test_under_autocast_maps_are_bfloat16_and_gradients_float32(as_on_cuda, monkeypatch):
    """Traced: the kernels' own values are tested where they run."""
    for module in (conv_relu, triton_op):
        monkeypatch.setattr(module, "in_bfloat16", lambda images, weight: True)
    with FakeTensorMode():
        images, *leaves = (torch.empty(shape, requires_grad=i > 0) for i, shape in enumerate(SHAPES))
        maps = convolve_relu(images, *leaves, 2, 1, backend="triton")
        assert maps.dtype == torch.bfloat16 and maps.shape == relu(conv2d(images, *leaves, 2, 1)).shape
        assert maps.is_contiguous(memory_format=torch.channels_last)
        for leaf, grad in zip(leaves, torch.autograd.grad(maps.sum(), leaves), strict=True):
            assert grad.dtype == torch.float32 and grad.shape == leaf.shape  # not rounded on the way
            assert grad.is_contiguous()  # autograd would copy any other layout, in every step


def work(function, *args) -> list[tuple[str, int]]:
    """List what is computed, and how many values come out. Views cost nothing."""
    found = [node for node in make_fx(function, tracing_mode="fake")(*args).graph.nodes if node.op == "call_function"]
    free = torch.ops.aten._unsafe_view.default
    return sorted((str(x.target), x.meta["val"].numel()) for x in found if not (x.target.is_view or x.target is free))


def capsnet():
    """Tensors of CapsNet's two convolutions at batch 128; they are traced, not computed."""
    shapes = (128, 1, 28, 28), (256, 1, 9, 9), (256,), (256, 256, 9, 9)
    images, *weights = (torch.empty(shape, dtype=torch.bfloat16) for shape in shapes)
    return images, *(weight.requires_grad_() for weight in weights)


def test_beside_the_maps_stripes_are_the_most_that_is_written(as_on_cuda):
    found = work(partial(convolve_relu, backend="triton"), *capsnet()[:3])
    *others, (name, numel) = sorted(found, key=lambda made: made[1])
    assert (name, numel) == ("torchcaps.conv_relu.default", MAPS)
    assert others[-1][1] == 128 * 28 * 20 * 16  # images, rows, columns of the maps, values; patches have 4.5 million


def test_the_gradient_copies_no_maps(as_on_cuda):
    """Nothing as large as the maps is made but by the first layer and the next layer's gradient."""

    def gradients(images, weight, bias, following):
        maps = convolve(convolve_relu(images, weight, bias, backend="triton"), following, stride=2)
        return torch.autograd.grad(maps.sum(), (weight, bias, following))

    found = work(gradients, *capsnet())
    made_large = [name for name, numel in found if numel >= MAPS]
    assert made_large == ["torchcaps.conv_relu.default", "torchcaps.convolve_strided_backward.default"]
    assert sum("conv_relu_backward" in name for name, _ in found) == 1
