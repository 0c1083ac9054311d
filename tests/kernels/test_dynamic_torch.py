"""The kernels of dynamic routing as torch sees them: registered, compiled, exported, and refused where they cannot
run.
"""

import pytest
import torch
from problems import arguments

from torchcaps.ops import backend as backends
from torchcaps.ops import dynamic_routing, dynamic_routing_backend, without_kernels
from torchcaps.ops.dynamic import triton_launch
from torchcaps.ops.dynamic.triton_op import refuses


class Layer(torch.nn.Module):
    def forward(self, poses, weight, bias):
        return dynamic_routing(poses, weight, bias, backend="triton").poses


def test_compiled_gradients_are_those_of_the_op(rng, device, fresh_dynamo):
    args = [x.requires_grad_() for x in arguments(rng, device).values()]
    whole = torch.compile(Layer(), fullgraph=True, backend="aot_eager")
    for one, other in zip(
        *(torch.autograd.grad(layer(*args).square().sum(), args) for layer in (whole, Layer())), strict=True
    ):
        assert torch.equal(one, other)


def test_is_exported_as_one_op_for_any_batch_and_any_number_of_inputs(rng, device):
    poses, weight, bias = arguments(rng, device, "jde").values()
    free = {0: torch.export.Dim("batch"), 1: torch.export.Dim("count")}
    exported = torch.export.export(Layer(), (poses, weight, bias), dynamic_shapes=(free, None, None))
    assert [node.name for node in exported.graph.nodes].count("dynamic_routing") == 1
    more = torch.randn(5, 6, poses.shape[-1], generator=rng).to(device)
    assert torch.equal(exported.module()(more, weight, bias), Layer()(more, weight, bias))


def test_a_frozen_weight_gets_no_gradient(rng, device):
    args = arguments(rng, device)
    poses, bias = args["poses"].requires_grad_(), args["bias"].requires_grad_()
    frozen = torch.autograd.grad(Layer()(poses, args["weight"], bias).square().sum(), [poses, bias])
    weight = args["weight"].clone().requires_grad_()
    whole = torch.autograd.grad(Layer()(poses, weight, bias).square().sum(), [poses, bias, weight])
    assert all(torch.equal(one, other) for one, other in zip(frozen, whole, strict=False))


def test_second_derivatives_are_refused_with_the_way_out(rng, device):
    args = {name: x.requires_grad_() for name, x in arguments(rng, device).items()}
    first = torch.autograd.grad(
        dynamic_routing(**args, backend="triton").poses.sum(), args["poses"], create_graph=True
    )[0]
    with pytest.raises(
        RuntimeError, match=r"no second derivatives; use backend='reference', or torchcaps.ops.without_kernels\(\)"
    ):
        first.sum().backward()


def test_without_kernels_there_are_second_derivatives(rng, device, monkeypatch):
    monkeypatch.setitem(backends.AUTO, device, ("triton",))
    args = {name: x.requires_grad_() for name, x in arguments(rng, device).items()}
    assert dynamic_routing_backend(args["poses"], args["weight"]) == "triton"
    with without_kernels():
        assert dynamic_routing_backend(args["poses"], args["weight"]) == "reference"
        (first,) = torch.autograd.grad(dynamic_routing(**args).poses.square().sum(), args["poses"], create_graph=True)
        first.square().sum().backward()
        with pytest.raises(ValueError, match=r"is switched off here by without_kernels\(\)"):
            dynamic_routing(**args, backend="triton")
    assert dynamic_routing_backend(args["poses"], args["weight"]) == "triton"


def test_inside_a_transform_auto_takes_another_also_when_compiled(rng, device, monkeypatch, fresh_dynamo):
    monkeypatch.setitem(backends.AUTO, device, ("triton",))
    poses, weight, bias = arguments(rng, device).values()
    gradient = torch.func.grad(lambda x: dynamic_routing(x, weight, bias).poses.square().sum())
    whole = torch.compile(gradient, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(whole(poses), gradient(poses))


def test_what_it_cannot_do_is_refused(rng, device):
    args = arguments(rng, device)
    for change, message in [
        ({"couplings": "max-min"}, "knows softmax, leaky and uniform couplings without prior logits, got max-min"),
        ({"prior": torch.zeros(4, 3, device=device)}, "without prior logits, got softmax and a prior"),
        ({"detach": True}, "passes gradients through every iteration; leave out detach=True"),
        ({name: x.double() for name, x in args.items()}, "computes in float32 or bfloat16, got torch.float64"),
        ({"poses": torch.zeros(2, 4, 65), "weight": torch.zeros(4, 3, 65, 3)}, "takes poses of 1 to 64 dimensions"),
        (
            {"poses": args["poses"].bfloat16()},
            "needs poses and weight of one type outside autocast, got torch.bfloat16 and torch.float32",
        ),
    ]:
        change = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in change.items()}
        with pytest.raises(
            ValueError, match=f"dynamic_routing: backend 'triton' .*{message}.* or use backend='reference'"
        ):
            dynamic_routing(**args | change, backend="triton")


def test_what_no_launch_could_hold_is_refused(rng, device, monkeypatch):
    """Asked without making anything that large."""
    args = arguments(rng, device) | {"n_iters": 3, "prior": None, "couplings": "softmax", "detach": False}
    monkeypatch.setattr(triton_launch, "LARGEST_GRID", 2)
    with pytest.raises(ValueError, match="takes up to 32 images, got 33; cut them"):
        dynamic_routing(**arguments(rng, device, b=33, j=2, e=64), backend="triton")
    monkeypatch.undo()
    wide = args["weight"][:, :1].expand(-1, 65_536, -1, -1)
    assert "takes up to 65,535 outputs, got 65,536; use fewer" in refuses(**args | {"weight": wide})
    assert "needs all tensors on one device" in refuses(**args | {"weight": args["weight"].to("meta")})
    assert refuses(**args) is None


def test_auto_takes_it_on_cuda_also_inside_compile(gpu_only, rng):
    args = arguments(rng, "cuda")
    assert dynamic_routing_backend(args["poses"], args["weight"]) == "triton"
    assert dynamic_routing_backend(args["poses"], args["weight"], compiling=True) == "triton"
    assert dynamic_routing_backend(args["poses"].double(), args["weight"].double()) == "compiled"
