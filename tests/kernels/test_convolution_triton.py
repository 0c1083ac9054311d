"""The strided convolution against conv2d."""

import pytest
import torch
from torch.nn.functional import conv2d

from torchcaps.ops import convolution, convolve
from torchcaps.ops.convolution.triton_op import convolve_strided, convolve_strided_weight_backward
from torchcaps.ops.testing import compare_routing

# images, channels, height, width, filters, rows, columns, stride
SMALL = [
    (3, 64, 7, 8, 64, 3, 3, 2),
    (17, 64, 6, 7, 128, 4, 2, 1),
    (2, 128, 9, 10, 64, 5, 5, 3),
    (1, 64, 3, 3, 64, 3, 3, 2),
]


def tensors(rng, device, n, c, h, w, k, rows, columns, dtype=torch.float32):
    images = torch.randn(n, h, w, c, generator=rng).to(device, dtype)
    weight = (torch.randn(k, rows, columns, c, generator=rng) * (rows * columns * c) ** -0.5).to(device, dtype)
    return {"images": images, "weight": weight}


def op(stride, images, weight, backend):
    if backend == "triton":
        return convolve_strided(images, weight, stride)
    return conv2d(images.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2), stride=stride).permute(0, 2, 3, 1)


@pytest.mark.parametrize("sizes", SMALL[1:], ids=str)
def test_value_and_gradients_are_right(rng, device, sizes):
    if device == "cuda":
        pytest.skip("float32 products are TF32 on a GPU, where only bfloat16 gets here")
    compare_routing(lambda **args: op(sizes[-1], **args), tensors(rng, device, *sizes[:-1]), backend="triton")


@pytest.mark.parametrize("sizes", [*SMALL, (128, 256, 20, 20, 256, 9, 9, 2), (130, 64, 12, 13, 320, 5, 5, 2)], ids=str)
def test_value_and_gradients_are_right_in_bfloat16(gpu_only, rng, sizes):
    args = tensors(rng, "cuda", *sizes[:-1])
    compare_routing(lambda **args: op(sizes[-1], **args), args, backend="triton", dtype=torch.bfloat16)


def test_the_weights_gradient_lies_as_the_weight_does_however_the_others_lie(rng):
    """Else autograd copies it to the weight's layout, in every step. It is plain PyTorch and runs anywhere."""
    args = tensors(rng, "cpu", *SMALL[0][:-1])
    grad = torch.randn(3, 64, 3, 3, generator=rng).permute(0, 2, 3, 1)  # channels first in memory
    wanted = torch.nn.grad.conv2d_weight(
        args["images"].permute(0, 3, 1, 2), (64, 64, 3, 3), grad.permute(0, 3, 1, 2), stride=2
    )
    found = convolve_strided_weight_backward(grad, args["images"], args["weight"], 2)
    assert found.is_contiguous()
    torch.testing.assert_close(found.permute(0, 3, 1, 2), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("images", "most", "taken"), [(4, 64 << 20, True), (4, 1, False)])
def test_many_patches_are_not_written_out(rng, monkeypatch, images, most, taken):
    """On a stand-in for CUDA: the way is chosen by shapes alone."""
    monkeypatch.setattr(convolution, "MOST", most)
    made = []
    monkeypatch.setattr(convolution, "_by_patches", lambda *args: made.append(1) or conv2d(*args))
    x = torch.randn(images, 3, 12, 12, generator=rng)
    monkeypatch.setattr(convolution, "_on_cuda", lambda tensor: True)
    convolve(x, torch.randn(8, 3, 9, 9, generator=rng), torch.zeros(8), 1)
    assert bool(made) == taken


@pytest.mark.parametrize(
    "sizes", [(5, 1, 28, 28, 256, 9, 9, 1), (5, 3, 16, 18, 64, 5, 5, 2), (8, 64, 12, 12, 64, 5, 5, 2)], ids=str
)
def test_convolve_takes_the_fast_way_and_agrees_with_conv2d(gpu_only, rng, sizes, monkeypatch):
    *sizes, stride = sizes
    taken, name = [], "_by_patches" if sizes[1] < 64 else "convolve_strided"
    way = getattr(convolution, name)
    monkeypatch.setattr(convolution, name, lambda *args: taken.append(name) or way(*args))
    args = tensors(rng, "cuda", *sizes) | {"bias": torch.randn(sizes[4], generator=rng).cuda()}

    def either(backend, images, weight, bias):
        images, weight = images.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2)
        with torch.autocast("cuda", torch.bfloat16, enabled=images.dtype == torch.float32):
            return (convolve if backend == "fast" else conv2d)(images, weight, bias, stride)

    compare_routing(either, args, backend="fast")
    assert taken == [name]
    plain = convolve(*(x.permute(0, 3, 1, 2) for x in (args["images"], args["weight"])), args["bias"], stride)
    assert plain.dtype == torch.float32
