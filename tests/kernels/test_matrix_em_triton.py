"""Kernels of matrix EM routing against the reference: value and every gradient, on a GPU or under the interpreter."""

from functools import partial

import pytest
import torch
from problems import INF, ON_GPU, judge, matrix_problem

from torchcaps.models import MatrixCapsNet
from torchcaps.ops import matrix_em_routing, without_kernels
from torchcaps.ops.matrix_em import triton_launch, triton_op
from torchcaps.ops.matrix_em.reference import grid_coordinates


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Under the interpreter a sum over three votes is one of two chunks."""
    if not ON_GPU:
        monkeypatch.setattr(triton_launch, "LEAST_VOTES", 2)


def judged(device, sizes, change=lambda args: args, dtype=torch.float32, n_iters=2, **settings):
    """Compare with float64 within the budget."""
    _, grid = matrix_problem(device, **sizes)
    op = partial(matrix_em_routing, grid=grid, **{"inverse_temperature": 0.3} | settings)
    judge(lambda seed: change(matrix_problem(device, seed=seed, **sizes)[0]), n_iters, dtype, op=op)


def gradients(args, grid=None, backend="triton", **settings):
    leaves = {name: x.clone().requires_grad_() for name, x in args.items()}
    routed = matrix_em_routing(**leaves, grid=grid, backend=backend, **settings)
    return [*routed, *torch.autograd.grad(sum(x.sin().sum() for x in routed), list(leaves.values()))]


PROBLEMS = {
    "matrices of 4x4": {"size": (1, 1), "n": 3, "m": 2, "batch": (1,), "poses": (4, 4, 4)},
    "places share transforms": {},
    "a transform for each child": {"size": (1, 1), "n": 3, "m": 2, "poses": (1, 2, 1)},
    "no batch": {"size": (2, 2), "n": 1, "kernel": 2, "batch": (), "poses": (1, 1, 2)},
    "more output types than warps": {"size": (1, 1), "n": 2, "m": 5, "batch": (1, 1), "poses": (1, 1, 1)},
    "more parents than lanes": {"size": (1, 1), "n": 3, "m": 1, "batch": (33,), "poses": (1, 1, 1)},
    "a grid": {"size": (3, 2), "n": 1, "kernel": 2, "m": 2, "poses": (2, 1, 1)},
    "stride and padding": {"size": (3, 3), "kernel": 2, "stride": 2, "padding": 1, "n": 1, "m": 2, "poses": (1, 1, 1)},
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_form(device, name):
    judged(device, PROBLEMS[name])


@pytest.mark.parametrize("n_iters", [1, 2, 3, 4] if ON_GPU else [1, 3])
def test_every_number_of_iterations(device, n_iters):
    judged(device, {"m": 2}, n_iters=n_iters)


@pytest.mark.parametrize(("rows", "power"), [(3, 1.0), (2, 0.5), (1, 1.0)] if ON_GPU else [(3, 0.5)])
def test_coordinates_and_soft_densities(device, rows, power):
    sizes = {"size": (2, 1), "m": 2, "poses": (rows, 1, 2)}
    judged(device, sizes, coordinates=grid_coordinates(2, 1).to(device), density_power=power)


@pytest.mark.parametrize("image", ["some", "all"])
def test_masked_children_do_not_count_whatever_they_hold(device, image):
    def masked(args):
        args["scores"][0, 1 if image == "some" else slice(None)] = -INF
        args["scores"][1, 2] = INF
        args["poses"][0, 1] = float("nan")
        return args

    # every parent sees several children: the variance of one alone is the least one, which would multiply roundings
    sizes = {"size": (2, 2), "n": 2, "kernel": 3, "padding": 1, "m": 2, "poses": (1, 1, 1)}
    judged(device, sizes, masked)


def test_a_common_offset_of_the_votes_does_not_cancel(device):
    """Votes of 100 with a spread of 0.1."""

    def far(args):
        return args | {"poses": args["poses"] * 0.001 + 1, "weight": args["weight"] * 0.1 + 100}

    judged(device, {"size": (6, 1), "n": 2, "m": 2, "poses": (1, 1, 1)}, far)


def test_parents_that_fill_up_a_group_reach_no_gradient(device):
    """Their votes are all alike, so their densities, to such a power, overflowed, and gradients of weights were NaN."""
    args, _ = matrix_problem(device, size=(1, 1), n=2, m=1, batch=(1,), poses=(2, 1, 2))
    for found in gradients(args, n_iters=2, density_power=6.0):
        assert found.isfinite().all()


def test_inputs_need_not_be_contiguous(device):
    args, _ = matrix_problem(device, size=(1, 1), m=2, poses=(1, 2, 1))
    turned = {name: x.transpose(0, -1).contiguous().transpose(0, -1) for name, x in args.items()}
    assert not turned["poses"].is_contiguous()
    for plain, other in zip(gradients(args, n_iters=2), gradients(turned, n_iters=2), strict=True):
        assert torch.equal(plain, other)


def test_recomputing_changes_nothing(device):
    args, _ = matrix_problem(device, size=(1, 1), m=2, poses=(1, 1, 1))
    plain, again = (gradients(args, n_iters=2, recompute=recompute) for recompute in (False, True))
    for one, other in zip(plain, again, strict=True):
        assert torch.equal(one, other)


def test_compiles_whole(device, fresh_dynamo):
    args, grid = matrix_problem(device, size=(2, 2), n=1, kernel=2, m=2, poses=(1, 1, 1))
    leaves = {name: x.requires_grad_() for name, x in args.items()}

    def routed(**leaves):
        found = matrix_em_routing(**leaves, grid=grid, n_iters=2, backend="triton")
        return found.poses.cos().sum() + found.scores.sum()

    whole = torch.compile(routed, fullgraph=True, backend="aot_eager")
    found, wanted = (torch.autograd.grad(op(**leaves), list(leaves.values())) for op in (whole, routed))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_a_compiled_gradient_has_the_same_bits_every_time(gpu_only, fresh_dynamo):
    """What is gathered around the kernels, too: a scatter by atomics would differ."""
    args, grid = matrix_problem("cuda", size=(7, 7), n=8, kernel=3, m=8, batch=(64,), poses=(4, 4, 4))
    leaves = {name: x.requires_grad_() for name, x in args.items()}

    def routed(**leaves):
        found = matrix_em_routing(**leaves, grid=grid, n_iters=2)
        return found.poses.cos().sum() + found.scores.sum()

    whole = torch.compile(routed, dynamic=False)
    first, *others = (torch.autograd.grad(whole(**leaves), list(leaves.values())) for _ in range(5))
    for found in others:
        assert all(torch.equal(one, other) for one, other in zip(first, found, strict=True))


def test_a_second_derivative_is_refused(device):
    args, _ = matrix_problem(device, size=(1, 1), m=1, poses=(1, 1, 1))
    poses = args["poses"].requires_grad_()
    routed = matrix_em_routing(**args, n_iters=1, backend="triton")
    (gradient,) = torch.autograd.grad(routed.poses.square().sum(), poses, create_graph=True)
    with pytest.raises(RuntimeError, match="matrix_em_routing: the triton backend has no second derivatives"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda args: args | {"poses": args["poses"].double()}, "computes in float32, got torch.float64"),
        (
            lambda args: args | {"poses": args["poses"].new_zeros(2, 4, 5, 4), "weight": args["weight"].new_zeros(2, 3, 4, 4)},
            "keeps poses and transforms in registers, at most 16 numbers each, got poses 5x4 -> 5x4",
        ),
        (lambda args: args | {"poses": args["poses"][:0], "scores": args["scores"][:0]}, "needs capsules, got poses"),
        (lambda args: args | {"coordinates": torch.zeros(2, 2, requires_grad=True).to(args["poses"])}, "detach them"),
    ],
    ids=["float64", "5x4", "empty", "coordinates"],
)  # fmt: skip
def test_what_does_not_fit_is_refused(device, change, message):
    args = change(matrix_problem(device)[0])
    with pytest.raises(ValueError, match=f"matrix_em_routing: backend 'triton' .*{message}"):
        matrix_em_routing(**args, backend="triton")


def test_an_exported_program_has_the_reference(device, monkeypatch):
    monkeypatch.setattr(triton_op, "is_exporting", lambda: True)
    with pytest.raises(ValueError, match=r"'triton' does not run inside torch.export; leave the choice"):
        matrix_em_routing(**matrix_problem(device)[0], backend="triton")


def test_kernels_can_be_switched_off(device):
    with (
        without_kernels(),
        pytest.raises(ValueError, match=r"'triton' is switched off here by without_kernels\(\); leave the region"),
    ):
        matrix_em_routing(**matrix_problem(device)[0], backend="triton")


PAPER = {"size": (14, 14), "kernel": 3, "stride": 2, "n": 32, "m": 32, "poses": (4, 4, 4)}


def as_in_a_network(args):
    """Make votes of size 1."""
    return args | {"weight": args["weight"] / 2, "beta_use": args["beta_use"] * 0.1}


def test_the_first_layer_of_the_paper(gpu_only):
    judged("cuda", PAPER | {"batch": (64,)}, as_in_a_network, n_iters=3, density_power=0.2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_first_layer_of_the_paper_with_few_images(gpu_only, dtype):
    judged("cuda", PAPER | {"batch": (3,)}, as_in_a_network, dtype, n_iters=3, density_power=0.2)


def test_the_class_layer_of_the_paper(gpu_only):
    sizes = {"size": (4, 4), "n": 32, "m": 5, "batch": (64,), "poses": (4, 4, 4)}
    places = grid_coordinates(4, 4).cuda()
    judged("cuda", sizes, as_in_a_network, n_iters=3, coordinates=places, density_power=0.2)


def test_the_same_inputs_give_the_same_bits(gpu_only):
    args, grid = matrix_problem("cuda", **PAPER, batch=(8,))
    for once, again in zip(gradients(args, grid), gradients(args, grid), strict=True):
        assert torch.equal(once, again)


def test_auto_takes_the_kernels_on_cuda_but_not_in_float64(gpu_only, monkeypatch):
    taken = []
    fit = triton_op.fit
    monkeypatch.setattr(triton_op, "fit", lambda *args: taken.append(args[1].dtype) or fit(*args))
    args, _ = matrix_problem("cuda")
    matrix_em_routing(**args, n_iters=1)
    with torch.autocast("cuda", torch.bfloat16):
        matrix_em_routing(**args, n_iters=1)
    matrix_em_routing(**{name: x.double() for name, x in args.items()}, n_iters=1)
    with without_kernels():
        matrix_em_routing(**args, n_iters=1)
    assert taken == [torch.float32] * 2


@pytest.mark.parametrize("compiled", [False, True])
def test_a_cuda_graph_repeats_the_gradients_of_a_network(gpu_only, fresh_dynamo, compiled):
    torch.manual_seed(0)
    model = MatrixCapsNet((1, 20, 20), n_types=(4, 4, 4)).cuda()
    images = torch.rand(8, 1, 20, 20, device="cuda")
    forward = torch.compile(model) if compiled else model

    def step():
        model.zero_grad(set_to_none=False)
        forward(images).poses.square().mean().backward()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    wanted = [x.grad.clone() for x in model.parameters() if x.grad is not None]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for x in model.parameters():
        x.grad.fill_(7.0)
    graph.replay()
    for x, grad in zip((x for x in model.parameters() if x.grad is not None), wanted, strict=True):
        torch.testing.assert_close(x.grad, grad, rtol=1e-3, atol=1e-6)


def test_launch_and_kernels_agree_on_the_lanes_of_a_group():
    from torchcaps.ops.matrix_em import triton_forward  # needs triton, which this file's imports do not

    assert triton_forward.LANES.value == triton_launch.LANES
