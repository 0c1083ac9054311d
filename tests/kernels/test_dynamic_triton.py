"""The kernels of dynamic routing against float64, in value and every gradient."""

from functools import partial

import pytest
import torch

from torchcaps.ops import dynamic_routing, dynamic_routing_backend, dynamic_triton
from torchcaps.ops.dynamic_triton import Sizes, route
from torchcaps.testing import compare_routing

SIZES = {"b": 3, "i": 4, "n": 2, "j": 3, "d": 5, "e": 3}
WEIGHTS = ("ijde", "njde", "jde", "de")
DTYPES = [torch.float32, torch.bfloat16]


def arguments(rng, device, weight="ijde", batch=None, scale=1.0, bias=True, **sizes):
    size = SIZES | sizes
    shapes = {"poses": (*(batch or (size["b"],)), size["i"], size["d"]), "weight": tuple(size[x] for x in weight)}
    shapes |= {"bias": (size["j"], size["e"])} if bias else {}
    made = {name: torch.randn(shape, generator=rng).to(device) for name, shape in shapes.items()}
    # sums of votes of length about one, where squash bends
    made["weight"] *= (size["j"] / (size["i"] * size["d"])) ** 0.5
    made["poses"] *= scale
    return made


@pytest.fixture(params=[0, dynamic_triton.KEPT_BYTES], ids=["couplings made again", "couplings kept"])
def kept(request, monkeypatch):
    monkeypatch.setattr(dynamic_triton, "KEPT_BYTES", request.param)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_value_and_gradients_are_right_for_every_weight(rng, device, kept, weight):
    margins = compare_routing(dynamic_routing, arguments(rng, device, weight), backend="triton")
    assert set(margins) == {"poses", "pose_sum", "grad poses", "grad weight", "grad bias"}


@pytest.mark.parametrize("weight", ["ijde", "jde"])
def test_votes_detached_in_all_passes_but_the_last(rng, device, weight):
    compare_routing(partial(dynamic_routing, detach=True), arguments(rng, device, weight), backend="triton")


@pytest.mark.parametrize("couplings", ["leaky", "uniform"])
@pytest.mark.parametrize("weight", ["ijde", "jde"])
def test_other_rules(rng, device, weight, couplings):
    compare_routing(partial(dynamic_routing, couplings=couplings), arguments(rng, device, weight), backend="triton")


@pytest.mark.parametrize("n_iters", [1, 2, 4])
def test_any_number_of_passes(rng, device, n_iters):
    compare_routing(partial(dynamic_routing, n_iters=n_iters), arguments(rng, device), backend="triton")


def test_without_a_bias(rng, device):
    compare_routing(dynamic_routing, arguments(rng, device, bias=False), backend="triton")


@pytest.mark.parametrize("weight", ["ijde", "njde"])
def test_several_tiles_of_images_and_chunks_of_inputs(rng, device, weight, monkeypatch):
    """What large problems do, forced on a small one: tiles of 16 images and 16 columns, two chunks, nothing kept."""
    monkeypatch.setattr(dynamic_triton, "KEPT_BYTES", 0)
    monkeypatch.setattr(dynamic_triton, "ROWS", 16)
    monkeypatch.setattr(dynamic_triton, "TILE", 16)
    monkeypatch.setattr(dynamic_triton, "NARROW_TILE", 16)
    monkeypatch.setattr(dynamic_triton, "PROGRAMS", 8)
    args = arguments(rng, device, weight, b=18, i=14, n=2, j=2, d=3)
    sizes = Sizes.of(args["poses"], args["weight"], 2, low=False, tile=16)
    assert (sizes.image_tiles, sizes.input_tiles, sizes.blocks, sizes.chunks) == (2, 4, 2, 2)
    compare_routing(dynamic_routing, args, backend="triton")


@pytest.mark.parametrize("sizes", [{"i": 1, "j": 1, "d": 1, "e": 1}, {"b": 1, "i": 7, "d": 8, "e": 16}, {"d": 16, "e": 17}], ids=str)
def test_odd_sizes(rng, device, sizes):
    compare_routing(dynamic_routing, arguments(rng, device, **sizes), backend="triton")


@pytest.mark.parametrize("batch", [(), (2, 1, 3)], ids=str)
def test_any_leading_axes(rng, device, batch):
    args = arguments(rng, device)
    args["poses"] = torch.randn(*batch, 4, 5, generator=rng).to(device)
    compare_routing(dynamic_routing, args, backend="triton")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.0, 1e4])
def test_extreme_poses(rng, device, kept, scale, dtype):
    """At zero nothing may be NaN; at 1e4 the couplings are all or nothing, and a gradient is the difference of two equal numbers."""
    if dtype == torch.bfloat16 and device == "cpu":
        pytest.skip("the interpreter computes it in float32")
    compare_routing(dynamic_routing, arguments(rng, device, scale=scale), backend="triton", dtype=dtype)


def test_poses_and_weight_that_are_not_contiguous(rng, device):
    args = arguments(rng, device, "ijde", d=4, e=4)
    poses, weight = args["poses"].mT.contiguous().mT, args["weight"].mT.contiguous().mT
    assert not poses.is_contiguous() and not weight.is_contiguous()
    got, wanted = (dynamic_routing(**args | new, backend="triton") for new in ({"poses": poses, "weight": weight}, {}))
    assert torch.equal(got.poses, wanted.poses)


def gradients(args):
    leaves = {name: x.detach().clone().requires_grad_() for name, x in args.items()}
    routed = dynamic_routing(**leaves, backend="triton")
    return [*routed, *torch.autograd.grad(routed.poses.square().sum(), list(leaves.values()))]


@pytest.mark.parametrize("weight", ["ijde", "njde"])
def test_same_inputs_same_bits(rng, device, weight):
    args = arguments(rng, device, weight, **(LARGE["mnist"] | {"n": 32} if device == "cuda" else {}))
    assert all(torch.equal(one, two) for one, two in zip(gradients(args), gradients(args), strict=True))


def test_registered_as_torch_library_wants_it(rng, device):
    args = [x.requires_grad_() for x in arguments(rng, device).values()]
    torch.library.opcheck(route, (*args, 3, 3, False, False, False))


def test_compile_and_export_see_one_op(rng, device, fresh_dynamo):
    args = arguments(rng, device)

    class Layer(torch.nn.Module):
        def forward(self, poses, weight, bias):
            return dynamic_routing(poses, weight, bias, backend="triton").poses

    wanted = Layer()(**args)
    whole = torch.compile(Layer(), fullgraph=True, backend="aot_eager")
    assert torch.equal(whole(**args), wanted)
    exported = torch.export.export(Layer(), tuple(args.values()))
    assert [node.name for node in exported.graph.nodes].count("dynamic_routing") == 1
    assert torch.equal(exported.module()(*args.values()), wanted)


def test_second_derivatives_are_refused_with_the_way_out(rng, device):
    args = {name: x.requires_grad_() for name, x in arguments(rng, device).items()}
    first = torch.autograd.grad(dynamic_routing(**args, backend="triton").poses.sum(), args["poses"], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="no second derivatives; use backend='reference'"):
        first.sum().backward()


def test_what_it_cannot_do_is_refused(rng, device):
    args = arguments(rng, device)
    for change, message in [
        ({"couplings": "max-min"}, "knows softmax, leaky and uniform couplings without prior logits, got max-min"),
        ({"prior": torch.zeros(4, 3, device=device)}, "without prior logits, got softmax and a prior"),
        ({name: x.double() for name, x in args.items()}, "computes in float32 or bfloat16, got torch.float64"),
        ({"poses": torch.zeros(2, 4, 65), "weight": torch.zeros(4, 3, 65, 3)}, "takes poses of 1 to 64 numbers"),
    ]:
        change = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in change.items()}
        with pytest.raises(ValueError, match=f"dynamic_routing: backend 'triton' .*{message}.* or use backend='reference'"):
            dynamic_routing(**args | change, backend="triton")


LARGE = {
    "mnist": {"b": 128, "i": 1152, "j": 10, "d": 8, "e": 16},
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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_large_sizes_of_shared_weights(gpu_only, rng, weight, dtype):
    args = arguments(rng, "cuda", weight, b=20, i=3072, n=32, j=11, d=8, e=16)
    compare_routing(partial(dynamic_routing, couplings="leaky"), args, backend="triton", dtype=dtype)


@pytest.mark.parametrize("converted", [False, True])
def test_autocast_takes_bfloat16_products_and_gives_float32_gradients(gpu_only, rng, monkeypatch, converted):
    """As near to float64 as the reference is under autocast, whether the weight is converted once or tile by tile."""
    monkeypatch.setattr(dynamic_triton, "NARROW_BYTES", dynamic_triton.NARROW_BYTES * converted)

    def op(backend, **args):
        with torch.autocast("cuda", torch.bfloat16, enabled=args["poses"].dtype == torch.float32):
            return dynamic_routing(**args, backend=backend)

    compare_routing(op, arguments(rng, "cuda", **LARGE["mnist"]), backend="triton")


def test_auto_takes_it_on_cuda_also_inside_compile(gpu_only, rng):
    args = arguments(rng, "cuda")
    assert dynamic_routing_backend(args["poses"], args["weight"]) == "triton"
    assert dynamic_routing_backend(args["poses"], args["weight"], compiling=True) == "triton"
    assert dynamic_routing_backend(args["poses"].double(), args["weight"].double()) == "compiled"


# votes in bfloat16: 47 MB, of 30 that are allowed 6 are gradients; 262 MB, and 64 for the couplings of all passes
@pytest.mark.parametrize(
    ("weight", "sizes", "most"), [("ijde", LARGE["mnist"], 30e6), ("njde", MANY_PLACES, 30e6)], ids=["mnist", "many places"]
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
