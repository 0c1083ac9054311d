"""Matrix EM routing for a few images at a time: the same numbers, and never all votes."""

import pytest
import torch
from torch.autograd import forward_ad

from torchcaps.ops import by_images, dynamic_routing, local_grid, matrix_em_routing, matrix_em_routing_backend
from torchcaps.ops.dynamic import cpu as dynamic_cpu
from torchcaps.ops.matrix_em import cpu
from torchcaps.ops.matrix_em.reference import grid_coordinates
from torchcaps.ops.testing import compare_routing

N_TYPES, N_OUT, SIZE = 2, 3, 4
VOTES = N_TYPES * N_OUT * 4 * 9 * 4 * 4  # bytes of an image: 3x3 fields, 2x2 parents, poses of two by two


def problem(kernel: int | None = 3, batch: tuple[int, ...] = (5,)) -> dict:
    rng = torch.Generator().manual_seed(0)
    places = SIZE * SIZE
    members = () if kernel is None else (kernel * kernel,)
    shapes = {"scores": (*batch, N_TYPES * places), "poses": (*batch, N_TYPES * places, 2, 2)}
    shapes |= {"weight": (N_TYPES, *members, N_OUT, 2, 2), "beta_use": (N_OUT,), "beta_activate": (N_OUT,)}
    args = {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    grid = None if kernel is None else local_grid(SIZE, SIZE, kernel)
    return args | {"grid": grid, "coordinates": grid_coordinates(SIZE, SIZE) if kernel is None else None}


@pytest.fixture
def two_at_once(monkeypatch):
    monkeypatch.setattr(cpu, "BLOCK_BYTES", 2 * VOTES)


@pytest.fixture
def blocks(monkeypatch):
    """Collect how many images each block was given."""
    found, route = [], cpu.reference.routed
    monkeypatch.setattr(
        cpu.reference, "routed", lambda scores, *args, **more: found.append(len(scores)) or route(scores, *args, **more)
    )
    return found


@pytest.mark.parametrize("kernel", [3, None])
@pytest.mark.parametrize("batch", [(5,), (2, 3)])
def test_blocks_give_what_all_images_at_once_give(two_at_once, kernel, batch):
    args = problem(kernel, batch)
    fixed = {"grid": args.pop("grid"), "inverse_temperature": 0.3, "density_power": 0.5}
    compare_routing(
        lambda backend, **given: matrix_em_routing(**given, **fixed, backend=backend), args, backend="blocked"
    )


def test_a_block_is_as_many_images_as_have_so_many_votes(two_at_once, blocks):
    matrix_em_routing(**problem())
    assert blocks == [2, 2, 1]
    blocks.clear()
    poses = problem()["poses"].requires_grad_()
    matrix_em_routing(**problem() | {"poses": poses}).poses.sum().backward()
    assert blocks == [2, 2, 1] * 2  # once more in the backward pass


def test_few_images_are_one_block_and_any_image_is_one_at_least(two_at_once, blocks, monkeypatch):
    matrix_em_routing(**problem(batch=(2,)))
    matrix_em_routing(**problem(batch=(0,)))
    assert blocks == [2, 0]
    matrix_em_routing(**problem(batch=()))
    assert len(blocks) == 3
    monkeypatch.setattr(cpu, "BLOCK_BYTES", 1)
    matrix_em_routing(**problem(batch=(2,)))
    assert blocks[3:] == [1, 1]


def test_a_masked_child_may_hold_anything(two_at_once):
    args = problem()
    args["scores"][:, 7], args["poses"][:, 7] = -torch.inf, torch.nan
    poses = args.pop("poses").requires_grad_()
    routed = matrix_em_routing(poses=poses, **args)
    (routed.poses.sum() + routed.scores.sum()).backward()
    assert poses.grad.isfinite().all() and (poses.grad[:, 7] == 0).all()


def test_second_derivatives_are_those_of_the_reference(two_at_once):
    def of(backend):
        args = problem()
        poses = args.pop("poses").double().requires_grad_()
        args = {name: x.double() if torch.is_tensor(x) else x for name, x in args.items()}
        routed = matrix_em_routing(poses=poses, **args, backend=backend)
        (first,) = torch.autograd.grad(routed.poses.square().sum(), poses, create_graph=True)
        return torch.autograd.grad(first.square().sum(), poses)[0]

    torch.testing.assert_close(of("blocked"), of("reference"))


def test_only_what_wants_a_gradient_gets_one(two_at_once, monkeypatch):
    wanted = []
    monkeypatch.setattr(
        by_images,
        "zeros_where_wanted",
        lambda inputs, asked, make=by_images.zeros_where_wanted: wanted.append(asked) or make(inputs, asked),
    )
    args = problem()
    args["weight"].requires_grad_()
    matrix_em_routing(**args).scores.sum().backward()
    assert wanted == [(False, False, True, False, False, False)] and args["weight"].grad.abs().sum() > 0


@pytest.mark.filterwarnings("ignore")  # tracing is deprecated, and warns of every `if`
@pytest.mark.parametrize("op", ["matrix", "dynamic"])
def test_auto_takes_the_reference_for_forward_derivatives_and_traces(two_at_once, monkeypatch, op):
    monkeypatch.setattr(dynamic_cpu, "BLOCK_BYTES", 100)
    args = problem() if op == "matrix" else {"weight": torch.randn(6, 40, 4, 50)}
    poses = args.pop("poses") if op == "matrix" else torch.randn(50, 6, 4)

    def route(x):
        return (matrix_em_routing(poses=x, **args) if op == "matrix" else dynamic_routing(x, **args)).poses

    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(route(forward_ad.make_dual(poses, torch.ones_like(poses)))).tangent
    torch.testing.assert_close(found, torch.func.jvp(route, (poses,), (torch.ones_like(poses),))[1])
    assert isinstance(torch.jit.trace(route, poses, check_trace=False).save_to_buffer(), bytes)


def test_auto_takes_blocks_on_a_cpu_and_the_reference_where_they_refuse():
    args = problem()
    assert matrix_em_routing_backend(**args) == "blocked"
    assert matrix_em_routing_backend(**args, compiling=True) == "reference"
    with torch.autocast("cpu", torch.bfloat16):
        assert matrix_em_routing_backend(**args) == "reference"
    with pytest.raises(ValueError, match="'blocked' computes in float32 or float64, got torch"):
        matrix_em_routing(
            **{name: x.bfloat16() if torch.is_tensor(x) else x for name, x in args.items()}, backend="blocked"
        )
