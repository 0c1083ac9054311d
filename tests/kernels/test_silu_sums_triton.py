"""SiLU with sums against its reference, alone and behind a first convolution, and the stem that is fused with it against the plain one."""

import copy
from functools import partial

import pytest
import torch
from problems import DTYPES

from torchcaps.layers import conv_stem
from torchcaps.models.em_images import stem, with_coordinates
from torchcaps.ops import conv_silu_with_sums, silu_with_sums, without_kernels
from torchcaps.ops.silu_sums.triton_conv_op import conv_silu_sums
from torchcaps.ops.silu_sums.triton_op import silu_sums
from torchcaps.ops.testing import assert_within_budget, compare_routing

SHAPES = [(2, 3, 7, 5), (1, 64), (7, 9, 3, 64), (1, 1, 1, 1), (5, 11, 96), (300, 17)]


def tensors(rng, device, *shape):
    made = {"maps": torch.randn(shape, generator=rng), "bias": torch.randn(shape[-1], generator=rng)}
    return {name: x.to(device) for name, x in made.items()}


def centred(maps, bias, backend):
    """Run the op in the dtype of the maps; bias and centre are never rounded to less than float32."""
    wide = torch.promote_types(maps.dtype, torch.float32)
    centre = torch.linspace(-0.3, 0.7, len(bias), device=bias.device, dtype=wide)
    return silu_with_sums(maps, bias.to(wide), centre, backend=backend)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_value_sums_and_gradients_are_right(rng, device, shape):
    compare_routing(centred, tensors(rng, device, *shape), backend="triton")


@pytest.mark.parametrize("shape", [*SHAPES, (20, 94, 94, 64), (64, 44, 44, 64), (3, 21, 21, 256)], ids=str)
def test_value_sums_and_gradients_are_right_in_bfloat16(gpu_only, rng, shape):
    compare_routing(centred, tensors(rng, "cuda", *shape), backend="triton", dtype=torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_tiles_of_one_program(gpu_only, rng, dtype):
    compare_routing(centred, tensors(rng, "cuda", 200_003, 64), backend="triton", dtype=dtype)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # the interpreter's; the quotient is zero
def test_huge_and_tiny_values_stay_finite(device):
    maps = torch.tensor([[-3e38, -200.0, -88.0, 0.0, 88.0, 200.0, 1e18]], device=device).requires_grad_()
    zeros = torch.zeros(7, device=device)
    out, sums = silu_sums(maps, zeros, zeros)
    out.sum().backward()
    wanted = torch.nn.functional.silu(maps.detach())
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(sums[0], wanted[0])
    torch.testing.assert_close(maps.grad[0, 1:], torch.tensor([0, 0, 0.5, 1, 1, 1], device=device), atol=1e-6, rtol=0)
    assert maps.grad.isfinite().all()


def test_second_derivatives_are_refused_with_the_way_out(rng, device):
    args = {name: x.requires_grad_() for name, x in tensors(rng, device, 3, 5).items()}
    out, _ = silu_sums(*args.values(), torch.zeros(5, device=device))
    (slope,) = torch.autograd.grad(out.sum(), args["maps"], create_graph=True)
    with pytest.raises(RuntimeError, match=r"no second derivatives; leave it out with torchcaps\.ops\.without_kernels"):
        slope.sum().backward()


@pytest.mark.parametrize(
    ("maps", "reason"),
    [
        (torch.zeros(2, 300), r"1 to 256 channels and one place at least, got \[2, 300\]"),
        (torch.zeros(0, 4), r"1 to 256 channels and one place at least, got \[0, 4\]"),
        (torch.zeros(2, 4, dtype=torch.float64), r"float32 or bfloat16, .*, got torch.float64"),
    ],
    ids=["channels", "empty", "float64"],
)
def test_what_the_kernels_cannot_take_is_refused_with_the_reason(device, maps, reason):
    zeros = torch.zeros(maps.shape[-1], device=device)
    with pytest.raises(ValueError, match=reason):
        silu_with_sums(maps.to(device), zeros, zeros, backend="triton")


# images, channels, height, width, filters, rows, columns, stride
FIRST = [(2, 3, 9, 8, 16, 3, 3, 1), (3, 4, 7, 11, 64, 3, 3, 2), (1, 1, 5, 5, 32, 5, 5, 1), (1, 2, 4, 3, 16, 2, 3, 1)]


def first_layer(rng, device, n, c, h, w, k, rows, columns):
    shapes = {"images": (n, c, h, w), "weight": (k, c, rows, columns), "bias": (k,)}
    made = {name: torch.randn(shape, generator=rng).to(device) for name, shape in shapes.items()}
    made["weight"] *= (c * rows * columns) ** -0.5
    return made


def as_here(args, device):
    """Round to what the kernel takes here: bfloat16 on a GPU, float32 by the interpreter."""
    low = {name: x.to(torch.bfloat16 if device == "cuda" else torch.float32) for name, x in args.items()}
    return low | {"bias": args["bias"]}


def convolved(images, stride, weight, bias, backend):
    """Run the op on images that want no gradient, in the dtype of the weight."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    centre = torch.linspace(-0.3, 0.7, len(bias), device=bias.device, dtype=wide)
    return conv_silu_with_sums(images.to(weight.dtype), weight, bias.to(wide), centre, stride, backend=backend)


def judge_first(args, stride, dtype=torch.float32):
    images = args.pop("images").to(dtype)
    compare_routing(lambda **args: convolved(images, stride, **args), args, backend="triton", dtype=dtype)


@pytest.mark.parametrize("sizes", FIRST, ids=str)
def test_a_first_layer_is_right(rng, device, sizes):
    if device == "cuda":
        pytest.skip("float32 products are TF32 on a GPU, where only bfloat16 gets here")
    judge_first(first_layer(rng, device, *sizes[:-1]), sizes[-1])


@pytest.mark.parametrize("sizes", [*FIRST, (20, 4, 96, 96, 64, 3, 3, 1), (64, 4, 50, 51, 64, 3, 3, 2)], ids=str)
def test_a_first_layer_is_right_in_bfloat16(gpu_only, rng, sizes):
    judge_first(first_layer(rng, "cuda", *sizes[:-1]), sizes[-1], torch.bfloat16)


def test_a_first_layer_has_neither_a_gradient_of_images_nor_second_derivatives(rng, device):
    args = as_here(first_layer(rng, device, *FIRST[0][:-1]), device)
    args = {name: x.requires_grad_() for name, x in args.items()}
    with pytest.raises(ValueError, match="has no gradient of the images, and they want one; detach them"):
        conv_silu_with_sums(*args.values(), torch.zeros(16, device=device), backend="triton")
    out, _ = conv_silu_sums(args["images"].detach(), args["weight"], args["bias"], torch.zeros(16, device=device), 1)
    (slope,) = torch.autograd.grad(out.sum(), args["weight"], create_graph=True)
    with pytest.raises(RuntimeError, match=r"no second derivatives; leave it out with torchcaps\.ops\.without_kernels"):
        slope.sum().backward()


def test_images_smaller_than_the_kernel_are_refused_by_conv2d_as_ever(rng, device):
    args = as_here(first_layer(rng, device, 2, 3, 2, 9, 16, 3, 3), device)
    with pytest.raises(ValueError, match=r"as large as the kernel at least, got \[2, 3, 2, 9\]"):
        conv_silu_with_sums(*args.values(), args["bias"], backend="triton")
    with pytest.raises(RuntimeError):
        conv_silu_with_sums(*args.values(), args["bias"])


@pytest.mark.parametrize(
    ("shape", "reason"), [((16, 8, 3, 3), "at most 64 values"), ((24, 2, 3, 3), r"\(16, 32, 64\) channels")], ids=str
)
def test_a_first_layer_of_another_shape_is_refused_and_computed_in_two_steps(rng, device, shape, reason):
    images, weight = torch.randn(2, shape[1], 5, 5, generator=rng).to(device), torch.randn(shape, generator=rng)
    weight, zeros = weight.to(device, torch.bfloat16), torch.zeros(shape[0], device=device)
    images = images.to(torch.bfloat16)
    with pytest.raises(ValueError, match=reason):
        conv_silu_with_sums(images, weight, zeros, zeros, backend="triton")
    assert conv_silu_with_sums(images, weight, zeros, zeros).maps.shape == (2, 3, 3, shape[0])


def network(device="cuda"):
    """A stem away from its initialisation: no scale is one and no shift zero."""
    model = stem(4, 64, (1, 2, 1, 2))
    for norm, convolution, _ in model:
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
        torch.nn.init.normal_(norm.bias, std=0.3)
        torch.nn.init.normal_(convolution.bias, std=0.3)
    return model.to(device, memory_format=torch.channels_last)


def trained(model, images, direction):
    model = copy.deepcopy(model)
    with torch.autocast("cuda", torch.bfloat16, enabled=images.dtype == torch.float32):
        out = model(images)
    (out * direction.to(out)).sum().backward()
    found = {"maps": out} | {name: parameter.grad for name, parameter in model.named_parameters()}
    return found | dict(model.named_buffers())


def test_the_fused_stem_errs_no_more_than_the_plain_one(gpu_only, rng, monkeypatch):
    model, images = network(), with_coordinates(torch.rand(8, 2, 37, 41, generator=rng).cuda())
    direction = torch.randn(model(images).shape, generator=rng).cuda()
    taken = []
    fused = conv_stem.fused
    monkeypatch.setattr(conv_stem, "fused", lambda *args: taken.append(1) or fused(*args))
    fast = trained(model, images, direction)
    assert taken == [1]
    exact = trained(copy.deepcopy(model).double(), images.double(), direction)
    with without_kernels():
        plain = trained(model, images, direction)
    assert taken == [1]
    for name, wanted in exact.items():
        if name.endswith("num_batches_tracked"):
            assert torch.equal(fast[name], wanted)
        else:
            assert_within_budget(name, fast[name], plain[name], wanted)


def test_a_compiled_step_is_one_graph_and_repeats_to_the_bit(gpu_only, rng, fresh_dynamo):
    model, images = network(), with_coordinates(torch.rand(6, 2, 30, 33, generator=rng).cuda())
    program = torch.compile(lambda model, images: model(images), fullgraph=True, dynamic=False)
    for norm, *_ in model:  # the backward pass must see the running mean from before the step
        norm.running_mean.fill_(1.0)
        norm.momentum = 1.0
    found = []
    for run in (program, program, lambda model, images: model(images)):
        own = copy.deepcopy(model)
        with torch.autocast("cuda", torch.bfloat16):
            out = run(own, images)
        assert out.dtype == torch.bfloat16
        out.float().square().sum().backward()
        found.append([out, *(parameter.grad for parameter in own.parameters()), *own.buffers()])
    assert all(torch.equal(one, other) for one, other in zip(*found[:2], strict=True))
    for one, eager in zip(*found[1:], strict=True):
        torch.testing.assert_close(one, eager, rtol=0.05, atol=0.05 * eager.abs().max().item())


def test_a_compiled_gradient_sees_the_running_mean_from_before_the_step(rng, device, monkeypatch, fresh_dynamo):
    """Compiled as by TorchInductor, which chooses what is kept for the backward pass; float32 by the interpreter."""
    if device == "cuda":
        pytest.skip("float32 products would be TF32 on a GPU, and are refused")
    for op in (silu_with_sums, conv_silu_with_sums):
        monkeypatch.setattr(conv_stem, op.__name__, partial(op, backend="triton"))
    model, images = stem(2, 16, (1, 2)), torch.rand(2, 2, 9, 8, generator=rng)
    for norm, *_ in model:
        norm.running_mean.fill_(1.0)
        norm.momentum = 1.0
    exact, found = copy.deepcopy(model).double(), copy.deepcopy(model)
    run = torch.compile(
        lambda model, images: conv_stem.fused(model, images, torch.float32),
        fullgraph=True,
        backend="aot_eager_decomp_partition",
    )
    for out in (exact(images.double()), run(found, images)):
        out.square().sum().backward()
    for (name, mine), theirs in zip(found.named_parameters(), exact.parameters(), strict=True):
        wanted = theirs.grad.float()
        torch.testing.assert_close(mine.grad, wanted, rtol=1e-3, atol=1e-3 * wanted.abs().max().item(), msg=name)


def test_images_that_want_a_gradient_get_it_by_the_plain_way(gpu_only, rng):
    images = torch.rand(2, 4, 20, 20, generator=rng).cuda().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):
        assert "want no gradient" in conv_stem.refuses(network(), images)
        network()(images).float().sum().backward()
    assert images.grad.any()
