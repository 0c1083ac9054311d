"""The strided convolution against conv2d."""

import warnings
from threading import get_ident

import pytest
import torch
from torch.nn.functional import conv2d

from torchcaps.ops import convolution, convolve
from torchcaps.ops.convolution import triton_op
from torchcaps.ops.convolution.triton_op import (
    convolve_strided,
    convolve_strided_backward,
    convolve_strided_weight_backward,
    longest_first,
    splits_of,
)
from torchcaps.ops.testing import compare_routing

# images, channels, height, width, filters, rows, columns, stride
SMALL = [
    (3, 64, 7, 8, 64, 3, 3, 2),
    (17, 64, 6, 7, 128, 4, 2, 1),
    (2, 128, 9, 10, 64, 5, 5, 3),
    (1, 64, 3, 3, 64, 3, 3, 2),
]
PHOTOS = (128, 256, 24, 24, 512, 9, 9, 2)  # CapsNet on CIFAR-10: on an H200 no programs share a sum


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


@pytest.mark.parametrize("splits", [1, 2, 3])
def test_a_sum_is_right_however_many_programs_share_it(rng, device, splits, monkeypatch):
    monkeypatch.setattr(triton_op, "splits_of", lambda *_: splits)
    sizes, dtype = SMALL[1], torch.bfloat16 if device == "cuda" else torch.float32
    args = tensors(rng, device, *sizes[:-1])
    compare_routing(lambda **args: op(sizes[-1], **args), args, backend="triton", dtype=dtype)


@pytest.mark.parametrize(
    ("n_programs", "steps", "wanted"),
    [
        (36, 324, 3),  # CapsNet on MNIST, 128 images
        (36, 2, 2),  # no more programs than steps
        (128, 324, 1),  # on CIFAR-10: all run at once
        (72, 324, 3),  # 216 in two turns of a third each
        (144, 324, 3),  # alone, a second turn would run twelve
        (144, 2, 2),
        (784, 324, 1),  # at most a few wait for the last turn
    ],
)
def test_programs_share_a_sum_where_multiprocessors_would_wait(n_programs, steps, wanted):
    assert splits_of(n_programs, steps, 132) == wanted


@pytest.mark.parametrize(
    "sizes", [*SMALL, (128, 256, 20, 20, 256, 9, 9, 2), (130, 64, 12, 13, 320, 5, 5, 2), PHOTOS], ids=str
)
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


@pytest.mark.parametrize("sizes", [*SMALL, (1, 1, 20, 20, 1, 9, 9, 2), (1, 1, 7, 4, 1, 2, 3, 3)], ids=str)
def test_pixels_that_most_of_the_output_saw_come_first(sizes):
    _, _, h, w, _, rows, columns, stride = sizes
    images = torch.zeros(1, 1, h, w, requires_grad=True)
    maps = conv2d(images, torch.ones(1, 1, rows, columns), stride=stride)
    (seen,) = torch.autograd.grad(maps.sum(), images)
    order = longest_first((h, w), tuple(maps.shape[2:]), (rows, columns), stride)
    assert sorted(order) == list(range(h * w))
    assert seen.flatten()[order].diff().le(0).all()


def test_a_capture_takes_the_order_that_was_made_before_it(monkeypatch):
    shape = (7, 9), (3, 4), (3, 3), 2
    monkeypatch.setattr(triton_op, "_ORDERS", {})
    for captured, wanted in ((True, list(range(63))), (False, longest_first(*shape)), (True, longest_first(*shape))):
        monkeypatch.setattr(triton_op, "_is_captured", lambda device, captured=captured: captured)
        assert triton_op.order_of_pixels(*shape, torch.device("cpu")).tolist() == wanted


def test_a_captured_call_without_one_before_is_right(gpu_only, rng, monkeypatch):
    """The order of the pixels comes from the host, which a capture cannot wait for."""
    args = {name: x.cuda().bfloat16() for name, x in tensors(rng, "cpu", 3, 64, 7, 9, 64, 3, 3).items()}
    grad = torch.randn(3, 3, 4, 64, generator=rng).cuda().bfloat16()
    wanted = convolve_strided_backward(grad, args["weight"], args["images"], 2)
    monkeypatch.setattr(triton_op, "_ORDERS", {})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = convolve_strided_backward(grad, args["weight"], args["images"], 2)
    graph.replay()
    assert torch.equal(found, wanted) and triton_op._ORDERS == {}


def test_an_order_that_stays_is_not_made_in_this_thread(monkeypatch):
    """This thread's memory may be that of a graph that PyTorch warms up for."""
    makers, make = [], torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda *args, **how: makers.append(get_ident()) or make(*args, **how))
    monkeypatch.setattr(triton_op, "_ORDERS", {})
    for _ in range(2):
        triton_op.order_of_pixels((7, 9), (3, 4), (3, 3), 2, torch.device("cpu"))
    assert len(makers) == 1 and makers != [get_ident()]


def test_pytorchs_own_graphs_train_through_it(gpu_only, rng, fresh_dynamo, monkeypatch):
    """Mode "reduce-overhead" refuses whatever stays in the memory of a graph."""
    args = {name: x.cuda().bfloat16() for name, x in tensors(rng, "cpu", 3, 64, 7, 9, 64, 3, 3).items()}
    leaves = [x.requires_grad_() for x in args.values()]
    (wanted, *_) = torch.autograd.grad(convolve_strided(*leaves, 2).float().square().sum(), leaves)
    monkeypatch.setattr(triton_op, "_ORDERS", {})
    whole = torch.compile(lambda images, weight: convolve_strided(images, weight, 2), mode="reduce-overhead")

    def gradient():
        torch.compiler.cudagraph_mark_step_begin()
        return torch.autograd.grad(whole(*leaves).float().square().sum(), leaves)[0]

    with warnings.catch_warnings():
        # before it warms up PyTorch captures nothing on purpose, to have a pool of memory; later ours would be empty
        warnings.filterwarnings("ignore", "The CUDA Graph is empty", UserWarning)
        assert torch.equal(gradient(), wanted)
    for _ in range(3):  # record, replay
        assert torch.equal(gradient(), wanted)


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
