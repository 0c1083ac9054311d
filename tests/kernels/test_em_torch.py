"""EM routing's kernels as torch sees them: registered, compiled, exported, and refused where they cannot run."""

import pytest
import torch
from problems import em_problem

from torchcaps.ops import em_routing
from torchcaps.ops.em import triton_op


def test_compiles_whole(device, fresh_dynamo):
    def routed(scores, poses, *parameters):
        return em_routing(scores, poses.sin(), *parameters, backend="triton").poses.cos().sum()

    args = tuple(x.requires_grad_() for x in em_problem(device=device, i=2, j=2, r=1).values())
    whole = torch.compile(routed, fullgraph=True, backend="aot_eager")
    for a, b in zip(torch.autograd.grad(whole(*args), args), torch.autograd.grad(routed(*args), args), strict=True):
        torch.testing.assert_close(a, b)


class Routing(torch.nn.Module):
    def __init__(self, **parameters):
        super().__init__()
        for name, x in parameters.items():
            self.register_buffer(name, x)

    def forward(self, scores, poses):
        return em_routing(scores, poses, **dict(self.named_buffers()), backend="triton")


def test_is_exported_as_one_op_for_any_batch_and_any_number_of_inputs(device):
    args = em_problem(device=device, batch=(2,), i=3, r=1, d=1, e=1)
    scores, poses = args.pop("scores"), args.pop("poses")
    batch, count = torch.export.Dim("batch"), torch.export.Dim("count")
    exported = torch.export.export(
        Routing(**args), (scores, poses), dynamic_shapes=({0: batch, 1: count}, {0: batch, 1: count})
    )
    assert "torchcaps.em_routing" in str(exported.graph)
    other = em_problem(device=device, batch=(3,), i=4, r=1, d=1, e=1, seed=1)
    scores, poses = other["scores"], other["poses"]
    torch.testing.assert_close(exported.module()(scores, poses), em_routing(scores, poses, **args, backend="triton"))


def test_auto_takes_it_on_cuda_also_under_autocast(gpu_only, monkeypatch):
    taken = []
    route = triton_op.route
    monkeypatch.setattr(triton_op, "route", lambda *args: taken.append(args[1].dtype) or route(*args))
    args = em_problem(device="cuda")
    plain = em_routing(**args)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cuda", dtype):
            torch.testing.assert_close(em_routing(**args), plain)  # nothing is converted: all arithmetic is float32
    em_routing(**{name: x.double() for name, x in args.items()})
    assert taken == [torch.float32] * 3


def test_a_gradient_of_one_output_alone(device):
    args = {name: x.requires_grad_() for name, x in em_problem(device=device, i=2, j=2, r=1).items()}
    for name in ("scores", "poses", "variances"):
        fast, plain = (
            getattr(em_routing(**args, n_iters=2, backend=backend), name).square().sum()
            for backend in ("triton", "reference")
        )
        for one, other in zip(
            *(torch.autograd.grad(x, list(args.values()), allow_unused=True) for x in (fast, plain)), strict=True
        ):
            torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other, rtol=1e-3, atol=1e-5)


def test_a_second_derivative_is_refused(device):
    args = {name: x.requires_grad_() for name, x in em_problem(device=device, i=2).items()}
    (gradient,) = torch.autograd.grad(
        em_routing(**args, backend="triton").poses.sum(), args["poses"], create_graph=True
    )
    with pytest.raises(
        RuntimeError, match="em_routing: the triton backend has no second derivatives; use backend='reference'"
    ):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"r": 4, "d": 4, "e": 17},
            "keeps poses and transforms in registers: .* got poses 4x4 -> 4x17; make them smaller",
        ),
        ({"r": 1, "d": 64, "e": 3}, "and 128 multiplications of a vote, got poses 1x64 -> 1x3; make them smaller"),
        ({"d": 0}, "needs poses that are not empty, got 2x0 -> 2x2"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(device, sizes, message):
    with pytest.raises(ValueError, match=f"em_routing: backend 'triton' .*{message}"):
        em_routing(**em_problem(device=device, **sizes), backend="triton")


def test_float64_is_refused(device):
    args = {name: x.double() for name, x in em_problem(device=device).items()}
    with pytest.raises(ValueError, match=r"backend 'triton' computes in float32, got torch.float64; convert the input"):
        em_routing(**args, backend="triton")


def test_tensors_on_a_cpu_are_refused(monkeypatch):
    monkeypatch.setattr("torchcaps.ops.backend.INTERPRETED", False)
    with pytest.raises(ValueError, match=r"backend 'triton' needs CUDA tensors, got one on cpu; move the input"):
        em_routing(**em_problem(), backend="triton")
