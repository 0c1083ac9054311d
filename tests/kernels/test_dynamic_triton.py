"""The kernels of dynamic routing against float64, in value and every gradient."""

from functools import partial

import pytest
import torch
from problems import DTYPES, WEIGHTS, arguments

from torchcaps.ops import dynamic_routing
from torchcaps.ops.dynamic import triton_launch, triton_op, triton_walks_launch
from torchcaps.ops.dynamic.triton_launch import Sizes
from torchcaps.ops.dynamic.triton_op import route
from torchcaps.ops.dynamic.triton_walks_launch import Walks, walks
from torchcaps.ops.gpus import TABLES, forced_tiles
from torchcaps.ops.testing import compare_routing


def only_real_bfloat16(dtype, device):
    if dtype == torch.bfloat16 and device == "cpu":
        pytest.skip("the interpreter computes it in float32")


@pytest.fixture
def nothing_kept(monkeypatch):
    for launches in (triton_launch, triton_walks_launch):
        monkeypatch.setattr(launches, "KEPT_BYTES", 0)


@pytest.fixture(params=[False, True], ids=["couplings made again", "couplings kept"])
def kept(request):
    if not request.param:
        request.getfixturevalue("nothing_kept")


@pytest.mark.parametrize("weight", WEIGHTS)
def test_value_and_gradients_are_right_for_every_weight(rng, device, kept, weight):
    margins = compare_routing(dynamic_routing, arguments(rng, device, weight), backend="triton")
    assert set(margins) == {"poses", "pose_sum", "grad poses", "grad weight", "grad bias"}


@pytest.mark.parametrize("couplings", ["leaky", "uniform"])
@pytest.mark.parametrize("weight", ["ijde", "jde"])
def test_other_rules(rng, device, weight, couplings):
    compare_routing(partial(dynamic_routing, couplings=couplings), arguments(rng, device, weight), backend="triton")


@pytest.mark.parametrize("n_iters", [1, 4])
def test_any_number_of_passes(rng, device, n_iters):
    compare_routing(partial(dynamic_routing, n_iters=n_iters), arguments(rng, device), backend="triton")


def test_without_a_bias(rng, device):
    compare_routing(dynamic_routing, arguments(rng, device, bias=False), backend="triton")


@pytest.mark.parametrize("weight", ["ijde", "njde"])
def test_several_tiles_of_images_and_chunks_of_inputs(rng, device, weight, monkeypatch):
    """A small problem runs like a large one: tiles of 16 images and 16 columns, two chunks, nothing kept."""
    monkeypatch.setattr(triton_launch, "KEPT_BYTES", 0)
    monkeypatch.setattr(triton_launch, "PROGRAMS", 8)
    tiles = TABLES["227 KB"]._replace(rows_float32=16, narrow_columns=16, multiprocessors=1)
    args = arguments(rng, device, weight, b=18, i=14, n=2, j=2, d=3)
    sizes = Sizes.of(args["poses"], args["weight"], 2, low=False, tiles=tiles)
    assert (sizes.image_tiles, sizes.input_tiles, sizes.blocks, sizes.chunks) == (2, 4, 2, 2)
    with forced_tiles(tiles):
        compare_routing(partial(dynamic_routing, n_iters=2), args, backend="triton")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "sizes", [{"i": 1, "j": 1, "d": 1, "e": 1}, {"b": 1, "i": 7, "d": 8, "e": 16}, {"d": 16, "e": 17}], ids=str
)
def test_odd_sizes(rng, device, sizes, dtype):
    only_real_bfloat16(dtype, device)
    compare_routing(dynamic_routing, arguments(rng, device, **sizes), backend="triton", dtype=dtype)


@pytest.mark.parametrize("batch", [(), (2, 1, 3)], ids=str)
def test_any_leading_axes(rng, device, batch):
    args = arguments(rng, device)
    args["poses"] = torch.randn(*batch, 4, 5, generator=rng).to(device)
    compare_routing(dynamic_routing, args, backend="triton")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.0, 1e4])
def test_extreme_poses(rng, device, kept, scale, dtype):
    """At zero nothing may be NaN; at 1e4 the couplings are all or nothing, and a gradient is the difference of two
    equal numbers.
    """
    only_real_bfloat16(dtype, device)
    compare_routing(dynamic_routing, arguments(rng, device, scale=scale), backend="triton", dtype=dtype)


@pytest.mark.parametrize("scale", [1e19, 1e30])
def test_poses_whose_squares_overflow(rng, device, scale):
    args = arguments(rng, device, scale=scale)
    got = gradients(args)
    assert all(torch.isfinite(one).all() for one in got)
    torch.testing.assert_close(got[0], dynamic_routing(**args, backend="reference").poses, rtol=1e-4, atol=1e-4)


def test_poses_and_weight_that_are_not_contiguous(rng, device):
    args = arguments(rng, device, "ijde", d=4, e=4)
    poses, weight = args["poses"].mT.contiguous().mT, args["weight"].mT.contiguous().mT
    assert not poses.is_contiguous() and not weight.is_contiguous()
    got, wanted = (gradients(args | new) for new in ({"poses": poses, "weight": weight}, {}))
    assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))
    alone = [route(p, w, None, 3, 3, False, False) for p, w in ((poses, weight), (args["poses"], args["weight"]))]
    assert all(torch.equal(one, other) for one, other in zip(*alone, strict=True))  # the registered op by itself


def gradients(args):
    leaves = {name: x.detach().requires_grad_() for name, x in args.items()}
    routed = dynamic_routing(**leaves, backend="triton")
    return [*routed, *torch.autograd.grad(routed.poses.square().sum(), list(leaves.values()))]


@pytest.mark.parametrize("weight", ["ijde", "njde"])
def test_same_inputs_same_bits(gpu_only, rng, weight):
    args = arguments(rng, "cuda", weight, **LARGE["mnist"], n=32)
    assert all(torch.equal(one, two) for one, two in zip(gradients(args), gradients(args), strict=True))


@pytest.fixture
def walked(monkeypatch):
    """Walks in float32: the interpreter's bfloat16 is wrong. Tiles of 16 images, and five chunks of inputs at most."""
    monkeypatch.setattr(triton_walks_launch, "FLOAT32_TOO", True)
    monkeypatch.setattr(triton_walks_launch, "ROWS", 16)
    monkeypatch.setattr(triton_walks_launch, "COUPLE_ROWS", 16)
    monkeypatch.setattr(triton_walks_launch, "PROGRAMS", 10)
    with forced_tiles(TABLES["227 KB"]._replace(multiprocessors=1)):
        yield


SMALL_WALKS = [
    ("ijde", {"b": 18, "i": 21, "d": 8, "e": 16, "j": 10}, {"n_iters": 2}),
    ("ijde", {"b": 17, "i": 19, "d": 5, "e": 12, "j": 3}, {"couplings": "leaky"}),
    ("njde", {"b": 5, "i": 14, "n": 2, "d": 3}, {"n_iters": 4}),
    ("njde", {"b": 2, "i": 9, "n": 3, "d": 16, "e": 17, "j": 5}, {"couplings": "leaky", "n_iters": 2}),
    ("ijde", {"i": 1, "j": 1, "d": 1, "e": 1}, {}),
    ("ijde", {"i": 6}, {"n_iters": 1}),
    ("ijde", {"i": 6}, {"couplings": "uniform"}),
]


@pytest.mark.parametrize(("weight", "sizes", "rule"), SMALL_WALKS, ids=str)
def test_walks_are_right(rng, device, walked, weight, sizes, rule):
    args = arguments(rng, device, weight, **sizes)
    assert walks(args["weight"], sizes.get("j", 3), low=False)
    compare_routing(partial(dynamic_routing, **rule), args, backend="triton")


def test_walks_have_several_tiles_of_images_and_chunks_of_inputs(rng, device, walked):
    args = arguments(rng, device, b=18, i=21, d=8, e=16, j=10, n=2)
    problem = Walks(args["poses"], args["weight"], 10, leaky=False, low=False)
    assert (problem.walk_tiles, problem.walk_counts[-1], problem.walk_grid) == (6, 2, (2, 3))


@pytest.mark.parametrize("scale", [0.0, 1e4])
@pytest.mark.parametrize("couplings", ["softmax", "leaky"])
def test_extreme_poses_in_walks(rng, device, walked, scale, couplings):
    compare_routing(
        partial(dynamic_routing, couplings=couplings), arguments(rng, device, scale=scale, i=6), backend="triton"
    )


def test_walks_without_a_bias(rng, device, walked):
    compare_routing(dynamic_routing, arguments(rng, device, bias=False), backend="triton")


@pytest.fixture
def bounds_found(monkeypatch):
    """Shapes of the bounds that a backward pass finds again."""
    found, whole = [], Walks.denominators

    def spied(problem, pose_sum, bounds, leaky):
        found.append(tuple(bounds.shape))
        whole(problem, pose_sum, bounds, leaky)

    monkeypatch.setattr(Walks, "denominators", spied)
    return found


def test_walks_forward_and_other_kernels_backward(rng, device, walked, nothing_kept, bounds_found):
    """Where couplings are too many to keep; the bounds of the softmax are then found again."""
    args = arguments(rng, device, scale=1e4)
    compare_routing(dynamic_routing, args, backend="triton")
    assert set(bounds_found) == {(2, *args["poses"].shape[:2])}


def test_walks_find_no_bounds_again(rng, device, walked, bounds_found):
    gradients(arguments(rng, device))
    assert bounds_found == []


@pytest.mark.parametrize(("n_images", "wanted"), [(128, True), (153, True), (154, False)])
def test_walks_keep_the_couplings_of_capsnet_on_photographs(n_images, wanted):
    """Of CIFAR-10: 4096 inputs, ten outputs, three iterations. 153 images have 47.8 MiB."""
    poses, weight = torch.empty(n_images, 4096, 8, device="meta"), torch.empty(4096, 10, 8, 16, device="meta")
    with forced_tiles(TABLES["227 KB"]):
        problem = Walks(poses, weight, 10, leaky=True, low=True)
    assert problem.keeps(3, torch.bfloat16) == wanted


def test_walks_repeat_to_the_bit(rng, device, walked):
    args = arguments(rng, device, b=17, i=6)  # two tiles of images and two chunks of inputs
    problem = Walks(args["poses"], args["weight"], 3, leaky=False, low=False)
    assert min(problem.walk_grid) == 2
    assert all(torch.equal(one, two) for one, two in zip(gradients(args), gradients(args), strict=True))


@pytest.mark.parametrize(
    ("shape", "low", "wanted"),
    [
        ((1152, 10, 8, 16), True, True),
        ((32, 5, 16, 32), True, True),
        ((1152, 10, 8, 16), False, False),  # float32 products
        ((10, 8, 16), True, False),  # one transform for all inputs
        ((1152, 11, 8, 16), True, False),  # too many outputs
        ((1152, 5, 17, 16), True, False),  # too wide inputs
    ],
    ids=str,
)
def test_which_problems_take_walks(shape, low, wanted):
    assert walks(torch.empty(shape), shape[-3], low) == wanted


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize(("b", "j", "e"), [(128, 10, 16), (77, 5, 32), (1, 10, 12)])
def test_large_walks_with_small_and_huge_logits(gpu_only, rng, scale, b, j, e):
    args = arguments(rng, "cuda", scale=scale, b=b, i=1151, j=j, d=8, e=e)
    for couplings in ("softmax", "leaky"):
        op = partial(dynamic_routing, couplings=couplings)
        compare_routing(op, args, backend="triton", dtype=torch.bfloat16)


@pytest.mark.parametrize("weight", ["ijde", "njde"])
def test_walks_in_bfloat16_repeat_to_the_bit(gpu_only, rng, weight):
    args = arguments(rng, "cuda", weight, **LARGE["mnist"], n=32)
    args = {name: x.bfloat16() for name, x in args.items()}
    assert all(torch.equal(one, two) for one, two in zip(gradients(args), gradients(args), strict=True))


LARGE = {
    "mnist": {"b": 128, "i": 1152, "j": 10, "d": 8, "e": 16},
    "photographs": {"b": 128, "i": 4096, "j": 10, "d": 8, "e": 16},  # CapsNet on CIFAR-10
    "1153 inputs": {"b": 5, "i": 1153, "j": 3, "d": 5, "e": 5},
    "wide poses": {"b": 70, "i": 33, "j": 7, "d": 64, "e": 64},
    "many outputs": {"b": 9, "i": 40, "j": 1000, "d": 8, "e": 16},
    "one image": {"b": 1, "i": 1152, "j": 10, "d": 8, "e": 16},
}
MANY_PLACES = {"b": 8, "i": 20_480, "n": 32, "j": 50, "d": 8, "e": 16}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", LARGE)
def test_large_sizes(gpu_only, rng, kept, name, dtype):
    compare_routing(dynamic_routing, arguments(rng, "cuda", **LARGE[name]), backend="triton", dtype=dtype)


RULES = [{"couplings": "uniform"}, {"n_iters": 1}, {"n_iters": 5}, {"couplings": "leaky", "n_iters": 2}]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_every_rule_in_bfloat16(gpu_only, rng, weight, rule):
    compare_routing(
        partial(dynamic_routing, **rule),
        arguments(rng, "cuda", weight, b=20, i=36, j=5),
        backend="triton",
        dtype=torch.bfloat16,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_never_seen_before(gpu_only, fresh, dtype):
    """Ten times the budget is what no equally good method needs, so that chance does not decide."""
    args = arguments(torch.Generator().manual_seed(fresh), "cuda", b=37, i=211, j=7)
    compare_routing(dynamic_routing, args, backend="triton", dtype=dtype, times=10)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_large_sizes_of_shared_weights(gpu_only, rng, weight, dtype):
    args = arguments(rng, "cuda", weight, b=20, i=3072, n=32, j=11, d=8, e=16)
    compare_routing(partial(dynamic_routing, couplings="leaky"), args, backend="triton", dtype=dtype)


@pytest.mark.parametrize("converted", [False, True])
def test_autocast_takes_bfloat16_products_and_gives_float32_gradients(gpu_only, rng, monkeypatch, converted):
    """As near to float64 as the reference is under autocast, whether the weight is converted once or tile by tile."""
    monkeypatch.setattr(triton_op, "NARROW_BYTES", triton_op.NARROW_BYTES if converted else 0)

    def op(backend, **args):
        with torch.autocast("cuda", torch.bfloat16, enabled=args["poses"].dtype == torch.float32):
            return dynamic_routing(**args, backend=backend)

    compare_routing(op, arguments(rng, "cuda", **LARGE["mnist"]), backend="triton")


# votes in bfloat16: 47 MB, of 30 that are allowed 6 are gradients; 262 MB, and 64 for the couplings of all passes
@pytest.mark.parametrize(
    ("weight", "sizes", "most"),
    [("ijde", LARGE["mnist"], 30e6), ("njde", MANY_PLACES, 30e6)],
    ids=["mnist", "many places"],
)
def test_votes_are_never_in_memory(gpu_only, rng, weight, sizes, most):
    args = {name: x.bfloat16().requires_grad_() for name, x in arguments(rng, "cuda", weight, **sizes).items()}
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        routed = dynamic_routing(**args, backend="triton").poses
        grads = torch.autograd.grad(routed.sum(), list(args.values()))
        peak = torch.cuda.max_memory_allocated() - before
        del routed, grads
    assert peak < most
