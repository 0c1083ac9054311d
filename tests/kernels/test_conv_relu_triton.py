"""A first convolution with its ReLU, one kernel in each direction, against relu(conv2d)."""

import pytest
import torch
from torch.nn.functional import conv2d, relu

from torchcaps.ops import convolve_relu, without_kernels
from torchcaps.ops.conv_relu import triton_op
from torchcaps.ops.conv_relu.triton_op import conv_relu, conv_relu_backward
from torchcaps.ops.gpus import LARGE, forced_tiles
from torchcaps.ops.testing import compare_routing

# images, channels, height, width, filters, rows, columns, stride, padding
SMALL = [
    (2, 1, 7, 8, 64, 3, 4, 1, 0),
    (3, 2, 6, 9, 128, 3, 3, 2, 1),
    (1, 1, 3, 3, 64, 1, 1, 1, 0),
    (1, 3, 9, 10, 64, 9, 9, 1, 0),  # stripes of 32 values
    (2, 3, 5, 5, 192, 2, 2, 1, 2),  # as many rows as one product has
    (3, 1, 7, 15, 64, 3, 15, 1, 0),  # a stripe without zeros
    (1, 3, 8, 9, 64, 7, 5, 1, 0),  # three rows for the second product
]
LARGE_STRIPES = pytest.param((1, 7, 9, 9, 64, 7, 8, 1, 0), marks=pytest.mark.slow)  # of 64 values


def tensors(rng, device, n, c, h, w, k, rows, columns):
    made = {
        "images": torch.randn(n, c, h, w, generator=rng),
        "weight": torch.randn(k, c, rows, columns, generator=rng) * (c * rows * columns) ** -0.5,
        "bias": torch.randn(k, generator=rng),
    }
    return {name: x.to(device) for name, x in made.items()}


def judge(args, stride, padding, dtype=torch.float32):
    images = args.pop("images").to(dtype)

    def op(weight, bias, backend):
        if backend == "triton":
            return convolve_relu(images, weight, bias, stride, padding, backend=backend)
        return relu(conv2d(images.to(weight.dtype), weight, bias, stride, padding))

    return compare_routing(op, args, backend="triton", dtype=dtype)


@pytest.mark.parametrize("sizes", [*SMALL, LARGE_STRIPES], ids=str)
def test_value_and_gradients_are_right(rng, device, sizes):
    if device == "cuda":
        pytest.skip("float32 products are TF32 on a GPU, where only bfloat16 gets here")
    judge(tensors(rng, device, *sizes[:-2]), *sizes[-2:])


@pytest.mark.parametrize(
    "sizes", [*SMALL, (128, 1, 28, 28, 256, 9, 9, 1, 0), (130, 3, 33, 31, 320, 5, 5, 1, 2)], ids=str
)
def test_value_and_gradients_are_right_in_bfloat16(gpu_only, rng, sizes):
    judge(tensors(rng, "cuda", *sizes[:-2]), *sizes[-2:], dtype=torch.bfloat16)


@pytest.mark.parametrize("compiled", [False, True])
def test_under_autocast_it_is_relu_of_conv2d_with_gradients_in_float32(gpu_only, rng, fresh_dynamo, compiled):
    args = tensors(rng, "cuda", 128, 1, 28, 28, 256, 9, 9)
    images = args.pop("images")
    fast = torch.compile(convolve_relu, fullgraph=True, backend="aot_eager") if compiled else convolve_relu

    def op(weight, bias, backend):
        with torch.autocast("cuda", torch.bfloat16, enabled=weight.dtype == torch.float32):
            if backend == "triton":
                return fast(images, weight, bias)
            return relu(conv2d(images.to(weight.dtype), weight, bias))

    compare_routing(op, args, backend="triton")


def test_many_tiles_of_one_program_and_rows_beyond_the_last(rng, device):
    if device == "cuda":
        pytest.skip("float32 products are TF32 on a GPU, where only bfloat16 gets here")
    with forced_tiles(LARGE._replace(multiprocessors=1)):
        judge(tensors(rng, device, 3, 1, 9, 9, 64, 2, 2), 1, 0)


def low_or_not(args, device):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    return [x.to(dtype) for x in args.values()]


def test_the_weights_gradient_lies_as_the_weight_does(rng, device):
    """Autograd would copy any other layout, in every step."""
    images, weight, bias = low_or_not(tensors(rng, device, 2, 1, 7, 8, 64, 3, 4), device)
    maps = convolve_relu(images, weight.requires_grad_(), bias, backend="triton")
    (grad,) = torch.autograd.grad(maps.sum(), weight)
    assert grad.is_contiguous() and grad.dtype == weight.dtype


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
def test_the_gradient_of_the_maps_may_lie_in_any_order(rng, device, order):
    images, weight, bias = low_or_not(tensors(rng, device, 2, 1, 6, 5, 64, 3, 2), device)
    leaves = weight.requires_grad_(), bias.requires_grad_()
    maps = convolve_relu(images, *leaves, backend="triton")
    grad = torch.randn(maps.shape, generator=rng).to(maps).to(memory_format=order)
    found = torch.autograd.grad(maps, leaves, grad)
    # behind the ReLU of these maps: cuDNN rounds before it adds the bias, and moves values near 0 to the other side
    exact = [x.detach().double().requires_grad_() for x in leaves]
    wanted = torch.autograd.grad(conv2d(images.double(), *exact), exact, grad.double() * (maps > 0))
    for mine, right in zip(found, wanted, strict=True):
        # sums in float32, rounded once to the dtype
        torch.testing.assert_close(mine.double(), right, rtol=torch.finfo(mine.dtype).eps, atol=1e-5)


def test_compiled_the_gradients_are_the_same(rng, device, fresh_dynamo):
    """TorchInductor's partition chooses what is kept for the backward pass."""
    images, weight, bias = low_or_not(tensors(rng, device, 2, 1, 6, 5, 64, 3, 2), device)
    leaves = weight.requires_grad_(), bias.requires_grad_()

    def op(weight, bias):
        return convolve_relu(images, weight, bias, backend="triton")

    whole = torch.compile(op, fullgraph=True, backend="aot_eager_decomp_partition")
    found, wanted = whole(*leaves), op(*leaves)
    assert torch.equal(found, wanted) and found.stride() == wanted.stride()
    for mine, theirs in zip(*(torch.autograd.grad(x.square().sum(), leaves) for x in (found, wanted)), strict=True):
        assert torch.equal(mine, theirs)


def test_values_that_are_not_finite_stay(device):
    """A run stops at its first loss that is not finite. ReLU passes the gradient of a NaN."""
    maps = torch.tensor([-1.0, 0.0, torch.nan, 1.0], device=device)[None, None, :, None].expand(1, 1, 4, 64)
    stripes, filters = torch.ones(1, 1, 4, 16, device=device), torch.ones(1, 16, 64, device=device)
    assert conv_relu_backward(torch.ones_like(maps), maps, stripes, 1, 16, 1).eq(2.0).all()
    assert conv_relu_backward(maps, maps, stripes, 1, 16, 1).isnan().all()
    values = maps.new_tensor([-1.0, 1.0, torch.nan, torch.inf])[None, None, :, None]
    found = conv_relu(values.expand_as(stripes).contiguous(), filters, 1)
    assert found[0, 0, :2].tolist() == [[0.0] * 64, [16.0] * 64]
    assert found[0, 0, 2].isnan().all() and found[0, 0, 3].isinf().all()


def test_second_derivatives_are_refused_with_the_way_out(rng, device):
    images, weight, bias = low_or_not(tensors(rng, device, 1, 1, 4, 4, 64, 2, 2), device)
    maps = convolve_relu(images, weight.requires_grad_(), bias, backend="triton")
    (slope,) = torch.autograd.grad(maps.float().square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no second derivatives; leave it out with torchcaps\.ops\.without_kernels"):
        slope.sum().backward()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"weight": (60, 1, 2, 2)}, "a multiple of 64 filters"),
        ({"images": (1, 1, 32, 32), "weight": (64, 1, 32, 2)}, "at most 31 rows"),
        ({"images": (1, 4, 16, 16), "weight": (64, 4, 2, 16)}, "at most 63 values in a row"),
        ({"images": (17, 1, 4, 4)}, "at most 2,000 values together"),
        ({"weight": (64, 1, 5, 5)}, "one image or more, as large as the kernel"),
        ({"weight": (64, 2, 2, 2)}, "a weight .* of as many channels"),
        ({"images": (0, 1, 4, 4)}, "one image or more"),
        ({"bias": (63,)}, r"a bias \[k\], got \[1, 1, 4, 4\], \[64, 1, 2, 2\], \[63\]; "),
        ({"stride": 0}, "one stride of at least 1 for both axes, got 0; "),
        ({"stride": (1, 1)}, r"one stride of at least 1 for both axes, got \(1, 1\); "),
    ],
    ids=str,
)
def test_what_the_kernels_cannot_take_is_refused_with_the_reason(monkeypatch, device, change, reason):
    monkeypatch.setattr(triton_op, "MOST", 2_000)
    shapes = {"images": (1, 1, 4, 4), "weight": (64, 1, 2, 2), "stride": 1} | change
    stride, bias = shapes.pop("stride"), shapes.pop("bias", shapes["weight"][:1])
    args = low_or_not({name: torch.zeros(shape, device=device) for name, shape in shapes.items()}, device)
    with pytest.raises(ValueError, match=reason):
        convolve_relu(*args, torch.zeros(bias, device=device), stride, backend="triton")


def test_programs_to_export_are_refused_with_the_way_out(rng, monkeypatch, device):
    monkeypatch.setattr(triton_op, "is_exporting", lambda: True)
    images, weight, bias = low_or_not(tensors(rng, device, 1, 1, 4, 4, 64, 2, 2), device)
    with pytest.raises(ValueError, match=r"is for training, .*; leave out backend='triton'"):
        convolve_relu(images, weight, bias, backend="triton")


def test_images_that_want_a_gradient_and_regions_without_kernels_take_the_plain_way(rng, device):
    images, weight, bias = low_or_not(tensors(rng, device, 1, 1, 4, 4, 64, 2, 2), device)
    with pytest.raises(ValueError, match="no gradient of the images"):
        convolve_relu(images.requires_grad_(), weight, bias, backend="triton")
    with pytest.raises(ValueError, match="switched off"), without_kernels():
        convolve_relu(images.detach(), weight, bias, backend="triton")
    maps = convolve_relu(images, weight, bias)
    torch.testing.assert_close(maps, relu(conv2d(images, weight, bias)), rtol=2e-2, atol=2e-2)
    assert torch.autograd.grad(maps.sum(), images)[0].any()
