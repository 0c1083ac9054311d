"""EM routing of matrix capsules against a plain loop over children and parents, and against what must always hold."""

from functools import partial
from math import exp, log

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck as full_gradcheck

from torchcaps.ops import local_grid, matrix_em_routing, matrix_em_routing_steps
from torchcaps.ops.matrix_em.reference import EPSILON, grid_coordinates

gradcheck = partial(full_gradcheck, fast_mode=True)


def problem(height, width, kernel=None, stride=1, padding=0, batch=(), n=2, m=3, rows=2, d=2, e=3, seed=0):
    """Draw a routing problem; without a kernel every child reaches each of m parents."""
    rng = torch.Generator().manual_seed(seed)
    members = () if kernel is None else (kernel * kernel,)
    i = n * height * width
    shapes = {"scores": (*batch, i), "poses": (*batch, i, rows, d), "weight": (n, *members, m, d, e)}
    shapes |= {"beta_use": (m,), "beta_activate": (m,)}
    args = {name: torch.randn(shape, generator=rng, dtype=torch.float64) for name, shape in shapes.items()}
    grid = None if kernel is None else local_grid(height, width, kernel, stride, padding)
    return args | {"grid": grid, "inverse_temperature": 0.3}


def slow(
    scores, poses, weight, beta_use, beta_activate, height, width, kernel, stride, padding, warmth, power, n_iters=3
):
    """One child and one parent at a time, with no tables and no logs; in the paper's words."""
    n_types, _, n_out = weight.shape[:3]
    rows, columns = ((size + 2 * padding - kernel) // stride + 1 for size in (height, width))
    parents = [(m, row, column) for m in range(n_out) for row in range(rows) for column in range(columns)]
    activity, votes, share = {}, {}, {}
    for n in range(n_types):
        for y in range(height):
            for x in range(width):
                i, child = n * height * width + y * width + x, (n, y, x)
                activity[child] = 1 / (1 + exp(-scores[i]))
                for m, row, column in parents:
                    ky, kx = y - (row * stride - padding), x - (column * stride - padding)
                    if 0 <= ky < kernel and 0 <= kx < kernel:
                        votes[child, (m, row, column)] = (poses[i] @ weight[n, ky * kernel + kx, m]).ravel()
    for child in activity:
        mine = [pair for pair in votes if pair[0] == child]
        share |= dict.fromkeys(mine, 1 / max(len(mine), 1))
    for t in range(n_iters):
        found = {}
        for parent in parents:
            pairs = [pair for pair in votes if pair[1] == parent]
            r = np.array([share[pair] * activity[pair[0]] for pair in pairs])[:, None]
            v = np.stack([votes[pair] for pair in pairs])
            mean = (r * v).sum(0) / r.sum()
            variance = (r * (v - mean) ** 2).sum(0) / r.sum() + EPSILON
            cost = ((beta_use[parent[0]] + np.log(np.sqrt(variance))) * r.sum()).sum()
            found[parent] = warmth * (1 - 0.95 ** (t + 1)) * (beta_activate[parent[0]] - cost), mean, variance
        for child in activity:
            density = {}
            for pair in votes:
                if pair[0] == child:
                    score, mean, variance = found[pair[1]]
                    normal = np.exp(-((votes[pair] - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
                    density[pair] = normal.prod() ** power / (1 + exp(-score))
            share |= {pair: part / sum(density.values()) for pair, part in density.items()}
    return [np.stack([np.asarray(found[parent][part]) for parent in parents]) for part in range(3)]


@pytest.mark.parametrize(("stride", "padding", "power"), [(1, 0, 1), (2, 0, 0.5), (1, 1, 1), (2, 1, 1)])
def test_equals_an_obvious_loop_over_children_and_parents(stride, padding, power):
    height, width, kernel = 3, 4, 3 if padding else 2
    args = problem(height, width, kernel, stride, padding, n=2, m=2)
    routed = matrix_em_routing(**args, density_power=power)
    plain = [args[name].numpy() for name in ("scores", "poses", "weight", "beta_use", "beta_activate")]
    expected = slow(*plain, height, width, kernel, stride, padding, 0.3, power)
    for found, wanted in zip(routed, expected, strict=True):
        torch.testing.assert_close(found.flatten(), torch.from_numpy(wanted).flatten())


def test_two_children_and_two_parents_by_hand():
    """Poses and votes are single numbers: 1 and 3 to the first parent, 1 and 9 to the second; both are present by half.

    First iteration: R = 1/2, times a = 1/2, so the mass of a parent is 1/2; means 2 and 5, variances 1 and 16.
    """
    poses = torch.tensor([1.0, 3.0]).double().view(2, 1, 1)
    weight = torch.tensor([[1.0, 1.0], [1.0, 3.0]]).double().view(2, 2, 1, 1)
    args = torch.zeros(2).double(), poses, weight, torch.tensor([0.5, 0.5]).double(), torch.tensor([1.0, 2.0]).double()
    first, second = matrix_em_routing_steps(*args, n_iters=2, inverse_temperature=2.0)
    assert first.assignments.flatten().tolist() == [0.5] * 4
    torch.testing.assert_close(first.poses.flatten().tolist(), [2.0, 5.0])
    narrow, wide = 1 + EPSILON, 16 + EPSILON
    torch.testing.assert_close(first.variances.flatten().tolist(), [narrow, wide])
    scores = [0.1 * (1 - (0.5 + log(narrow) / 2) / 2), 0.1 * (2 - (0.5 + log(wide) / 2) / 2)]  # 0.1 = 2 · (1 - 0.95)
    torch.testing.assert_close(first.scores.tolist(), scores)

    def claim(score, off, variance):
        return exp(-(off**2) / (2 * variance)) / variance**0.5 / (1 + exp(-score))

    claims = [[claim(scores[0], 1, narrow), claim(scores[1], 4, wide)]] * 2  # both votes are as far from the mean
    shares = [[part / sum(row) for part in row] for row in claims]
    torch.testing.assert_close(second.assignments.view(2, 2).tolist(), shares)
    torch.testing.assert_close(second.poses.flatten().tolist(), [2.0, 5.0])


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 1, 0), (3, 2, 0), (3, 2, 1), (2, 3, 0)])
def test_a_child_assigns_exactly_itself_to_all_parents_borders_included(kernel, stride, padding):
    args = problem(4, 5, kernel, stride, padding, batch=(2,))
    grid = args["grid"]
    for step in matrix_em_routing_steps(**args):
        spent = step.assignments.sum(-1)  # [b n p k]
        for child in range(20):
            here = spent[..., grid.seen == child]
            if here.shape[-1]:
                torch.testing.assert_close(here.sum(-1), torch.ones(2, 2).double())


def test_places_share_their_transforms_and_a_full_kernel_is_dense():
    args = problem(2, 3, batch=(2, 1))
    dense = matrix_em_routing(**args)
    alone = matrix_em_routing(**args | {"weight": args["weight"].repeat_interleave(6, 0)})
    for found, wanted in zip(dense, alone, strict=True):
        torch.testing.assert_close(found, wanted)
    square = problem(3, 3, 3)
    whole = matrix_em_routing(**square | {"grid": None, "weight": square["weight"].flatten(0, 1)})
    torch.testing.assert_close(matrix_em_routing(**square).poses, whole.poses)


def test_coordinates_go_to_the_first_two_numbers_of_the_last_column():
    args = problem(2, 2, n=1, rows=3)
    places = grid_coordinates(2, 2)
    assert places.tolist() == [[0.25, 0.25], [0.25, 0.75], [0.75, 0.25], [0.75, 0.75]]
    # without poses the votes are the coordinates alone, and the mean is that of the places
    routed = matrix_em_routing(**args | {"poses": torch.zeros(4, 3, 2).double(), "n_iters": 1}, coordinates=places)
    weights = args["scores"].sigmoid() / args["scores"].sigmoid().sum()
    wanted = torch.zeros(3, 3, 3).double()
    wanted[:, :2, -1] = weights @ places.double()
    torch.testing.assert_close(routed.poses, wanted)


def test_the_order_of_types_and_of_parents_does_not_matter():
    args = problem(2, 3, n=4, m=3)
    children, parents = torch.tensor([2, 0, 3, 1]), torch.tensor([1, 2, 0])
    moved = args | {"weight": args["weight"][children][:, parents]}
    moved |= {name: args[name][parents] for name in ("beta_use", "beta_activate")}
    moved |= {name: args[name].unflatten(0, (4, 6))[children].flatten(0, 1) for name in ("scores", "poses")}
    for found, wanted in zip(matrix_em_routing(**moved), matrix_em_routing(**args), strict=True):
        torch.testing.assert_close(found, wanted[parents])


@pytest.mark.parametrize("recompute", [False, True])
def test_gradients(recompute):
    args = problem(3, 3, 2, n=1, m=2, d=2, e=2)
    tensors = {name: part.requires_grad_() for name, part in args.items() if isinstance(part, torch.Tensor)}
    rest = {name: part for name, part in args.items() if name not in tensors}

    def route(*given):
        return tuple(matrix_em_routing(**dict(zip(tensors, given, strict=True)), **rest, recompute=recompute))

    assert gradcheck(route, tuple(tensors.values()))


def test_a_masked_child_counts_for_nothing_whatever_it_holds():
    args = problem(2, 3, n=3)
    args["scores"][6:12] = -torch.inf
    kept = [0, 1, 2, 3, 4, 5, 12, 13, 14, 15, 16, 17]
    without = {name: args[name][kept] for name in ("scores", "poses")} | {"weight": args["weight"][[0, 2]]}
    expected = matrix_em_routing(**args | without)
    args["poses"][6:12] = torch.nan
    for found, wanted in zip(matrix_em_routing(**args), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    nobody = matrix_em_routing(**args | {"scores": torch.full((18,), -torch.inf).double()})
    assert all(part.isfinite().all() for part in nobody)


@pytest.mark.parametrize("size", [0.0, 1e-6, 1e6])
def test_poses_of_any_size_stay_finite_with_gradients(size):
    args = {name: x.float() if isinstance(x, torch.Tensor) else x for name, x in problem(4, 4, 3, batch=(2,)).items()}
    poses = (args["poses"] * size).requires_grad_()
    routed = matrix_em_routing(**args | {"poses": poses})
    assert all(part.isfinite().all() for part in routed)
    (routed.poses.sum() + routed.scores.sigmoid().sum()).backward()
    assert poses.grad.isfinite().all()


def test_sums_of_votes_stay_in_float32_under_autocast():
    """Sums over 400 votes in bfloat16 would be wrong in the second digit."""
    args = problem(20, 20, n=1, m=2, rows=4, d=4, e=4)
    exact = matrix_em_routing(**args)
    small = {name: part.float() if isinstance(part, torch.Tensor) else part for name, part in args.items()}
    with torch.autocast("cpu", torch.bfloat16):
        cast = matrix_em_routing(**small)
    assert cast.poses.dtype == torch.float32
    torch.testing.assert_close(cast.variances.double(), exact.variances, rtol=0.01, atol=0.01)
    torch.testing.assert_close(cast.poses.double(), exact.poses, rtol=0.01, atol=0.01)


def test_wrong_shapes_are_refused():
    args = problem(3, 3, 2)
    with pytest.raises(ValueError, match=r"takes 18 capsules with rows of 2 dimensions, got \[9, 2, 2\]"):
        matrix_em_routing(**args | {"poses": args["poses"][:9], "scores": args["scores"][:9]})
    with pytest.raises(ValueError, match="the grid's kernel has 4 members, the weight is for 1"):
        matrix_em_routing(**args | {"weight": args["weight"][:, :1]})
    with pytest.raises(ValueError, match=r"beta_use must be \[3\] for this weight, got \[1\]"):
        matrix_em_routing(**args | {"beta_use": args["beta_use"][:1]})
    for grid, weight, places in [(args["grid"], args["weight"], 4), (None, args["weight"][:, 0], 9)]:
        with pytest.raises(
            ValueError, match=rf"coordinates must be \[{places}, 2\], a row and a column .*, got \[1, 2\]"
        ):
            matrix_em_routing(**args | {"grid": grid, "weight": weight}, coordinates=torch.zeros(1, 2))
    narrow = args | {"poses": args["poses"][:, :1]}
    with pytest.raises(ValueError, match="coordinates go to two rows of a pose, got poses of 1; give two or more"):
        matrix_em_routing(**narrow, coordinates=torch.zeros(4, 2))
    with pytest.raises(ValueError, match="at least one iteration, got n_iters=0"):
        matrix_em_routing(**args, n_iters=0)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [None, 2])
def test_compiles_as_one_graph(kernel):
    args = problem(3, 4, kernel, batch=(2,))
    compiled = torch.compile(matrix_em_routing, fullgraph=True)
    for found, wanted in zip(compiled(**args), matrix_em_routing(**args), strict=True):
        torch.testing.assert_close(found, wanted)
