"""A first convolution with its ReLU. What a GPU does around the kernel is plain PyTorch, and runs or is traced here."""

from functools import partial

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import conv2d, relu

from torchcaps.ops import conv_relu, convolution, convolve, convolve_relu
from torchcaps.ops.conv_relu import triton_op

COMPILED = partial(torch.compile, fullgraph=True, backend="aot_eager")
compiled_or_not = pytest.mark.parametrize("wrap", [lambda op: op, COMPILED], ids=["eager", "compiled"])
MAPS = 128 * 256 * 20 * 20  # values of CapsNet's maps at batch 128


def tensors(rng, dtype=torch.float32):
    shapes = (2, 1, 7, 8), (64, 1, 3, 4), (64,)
    return [torch.randn(shape, generator=rng, dtype=dtype).requires_grad_() for shape in shapes]


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


def gradient_in_plain_pytorch(grad, maps, patches):
    return (patches.T.float() @ torch.where(maps <= 0, 0, grad).float()).contiguous()


@pytest.fixture
def as_on_cuda(monkeypatch):
    """A stand-in for CUDA: the way is chosen as there."""
    monkeypatch.setattr(convolution, "_on_cuda", lambda tensor: True)
    for module in (convolution, triton_op):
        monkeypatch.setattr(module, "cannot_multiply", lambda tensor: None)


@compiled_or_not
def test_under_autocast_maps_are_bfloat16_and_gradients_float32(rng, as_on_cuda, monkeypatch, fresh_dynamo, wrap):
    for module in (conv_relu, triton_op):
        monkeypatch.setattr(module, "in_bfloat16", lambda images, weight: True)
    monkeypatch.setattr(triton_op, "conv_relu_backward", gradient_in_plain_pytorch)
    images, *leaves = tensors(rng)
    maps = wrap(partial(convolve_relu, backend="triton"))(images.detach(), *leaves)
    rounded = [x.detach().bfloat16().double().requires_grad_() for x in leaves]
    exact = relu(conv2d(images.detach().bfloat16().double(), *rounded))
    assert maps.dtype == torch.bfloat16 and maps.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(maps.double(), exact, rtol=1e-2, atol=1e-2)
    grad = torch.randn(maps.shape, generator=rng).bfloat16()
    found, wanted = torch.autograd.grad(maps, leaves, grad), torch.autograd.grad(exact, rounded, grad.double())
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.dtype == torch.float32  # and not rounded to bfloat16 on the way
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-4)


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


def test_the_forward_pass_computes_what_the_plain_one_does(as_on_cuda):
    """Then torch.compile makes the same program of it."""
    first = capsnet()[:3]
    found, wanted = (work(partial(convolve_relu, backend=backend), *first) for backend in ("triton", "reference"))
    assert found == wanted and ("aten.relu.default", MAPS) in found


def test_the_gradient_copies_no_maps(as_on_cuda):
    """Nothing as large as the maps is made but by the product, the ReLU and the next layer's gradient."""

    def gradients(images, weight, bias, following):
        maps = convolve(convolve_relu(images, weight, bias, backend="triton"), following, stride=2)
        return torch.autograd.grad(maps.sum(), (weight, bias, following))

    found = work(gradients, *capsnet())
    made_large = [name for name, numel in found if numel >= MAPS]
    assert made_large == ["aten.mm.default", "aten.relu.default", "torchcaps.convolve_strided_backward.default"]
    assert sum("conv_relu_backward" in name for name, _ in found) == 1
