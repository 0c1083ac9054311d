from functools import partial
from math import exp

import pytest
import torch
from einops import rearrange
from torch.autograd import gradcheck as full_gradcheck
from torch.nn.functional import pad
from torch.utils._python_dispatch import TorchDispatchMode

from torchcaps.ops import dynamic_routing, local_grid, local_routing, matrix_em_routing, squash, unsquash
from torchcaps.ops.couplings import coupling_rule

gradcheck = partial(full_gradcheck, fast_mode=True)
RULES = ["softmax", "leaky", "max-min", "uniform"]  # random needs a prior, which a convolutional layer has not


def problem(height, width, kernel, stride=1, padding=0, batch=(), n=2, m=3, d=2, e=3, seed=0):
    rng = torch.Generator().manual_seed(seed)
    shapes = {"poses": (*batch, n * height * width, d), "weight": (n, kernel * kernel, m, d, e), "bias": (m, e)}
    args = {name: torch.randn(shape, generator=rng, dtype=torch.float64) for name, shape in shapes.items()}
    return args | {"grid": local_grid(height, width, kernel, stride, padding)}


def slow(poses, weight, bias, height, width, kernel, stride, padding, n_iters, couplings):
    """One child at a time, with no tables: which parents does it reach, and how does it share itself among them?"""
    n_types, _, n_out = weight.shape[:3]
    rows, columns = ((size + 2 * padding - kernel) // stride + 1 for size in (height, width))
    family = {}  # child (n, y, x) -> its votes, by parent (m, row, column)
    for n in range(n_types):
        for y in range(height):
            for x in range(width):
                family[n, y, x] = votes = {}
                for row in range(rows):
                    for column in range(columns):
                        ky, kx = y - (row * stride - padding), x - (column * stride - padding)
                        if 0 <= ky < kernel and 0 <= kx < kernel:
                            for m in range(n_out):
                                pose = poses[n * height * width + y * width + x]
                                votes[m, row, column] = pose @ weight[n, ky * kernel + kx, m]
    logits = {child: {parent: torch.tensor(0.0).double() for parent in votes} for child, votes in family.items()}
    for _t in range(n_iters):
        total = {(m, row, column): bias[m] for m in range(n_out) for row in range(rows) for column in range(columns)}
        for child, votes in family.items():
            if votes:
                shares = coupling_rule(couplings).share(torch.stack(list(logits[child].values())))
                for share, parent in zip(shares, votes, strict=True):
                    total[parent] = total[parent] + share * votes[parent]
        parents = {parent: squash(s) for parent, s in total.items()}
        for child, votes in family.items():
            for parent, vote in votes.items():
                logits[child][parent] = logits[child][parent] + vote @ parents[parent]
    return torch.stack(list(parents.values()))  # (type, row, column): the order in which `total` was made


@pytest.mark.parametrize("couplings", RULES)
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("stride", [1, 2])
def test_equals_an_obvious_loop_over_children(stride, padding, couplings):
    height, width, kernel = 3, 4, 3 if padding else 2
    args = problem(height, width, kernel, stride, padding, n=2, m=2)
    expected = slow(args["poses"], args["weight"], args["bias"], height, width, kernel, stride, padding, 3, couplings)
    torch.testing.assert_close(local_routing(**args, couplings=couplings).poses, expected)


def test_a_3x3_grid_by_hand():
    """A 3x3 grid of ones, kernel 2: the centre reaches 4 parents, an edge 2, a corner 1. Votes are all 1.

    Pass 1: parent 0 gets 1 (corner) + 1/2 + 1/2 (edges) + 1/4 (centre) = 9/4, and so do all four by symmetry, so that
    agreement changes nothing in pass 2.
    """
    grid = local_grid(3, 3, 2)
    assert grid.shape == (2, 2)
    assert grid.places == 9
    assert grid.seen.tolist() == [[0, 1, 3, 4], [1, 2, 4, 5], [3, 4, 6, 7], [4, 5, 7, 8]]
    ones = torch.ones(9, 1, dtype=torch.float64)
    routed = local_routing(
        ones, torch.ones(1, 4, 1, 1, 1, dtype=torch.float64), torch.zeros(1, 1).double(), grid, n_iters=2
    )
    squashed = (9 / 4) ** 2 / (1 + (9 / 4) ** 2)
    torch.testing.assert_close(routed.poses, torch.full((4, 1), squashed).double())
    torch.testing.assert_close(routed.pose_sum, torch.full((4, 1), squashed).double())


def test_a_3x3_grid_by_hand_where_agreement_counts():
    """Only the edge child 1 votes: 2 to parent 0 (as its member 1) and 1 to parent 1 (as its member 0)."""
    poses = torch.zeros(9, 1, dtype=torch.float64)
    poses[1] = 1.0
    weight = torch.tensor([1.0, 2.0, 0.0, 0.0], dtype=torch.float64).view(1, 4, 1, 1, 1)
    first = (1**2 / (1 + 1**2), 0.5**2 / (1 + 0.5**2))  # half of each vote, squashed
    a, b = exp(2 * first[0]), exp(1 * first[1])
    s = (2 * a / (a + b), 1 * b / (a + b))
    routed = local_routing(poses, weight, torch.zeros(1, 1).double(), local_grid(3, 3, 2), n_iters=2)
    torch.testing.assert_close(
        routed.poses[:, 0].tolist(), [s[0] ** 2 / (1 + s[0] ** 2), s[1] ** 2 / (1 + s[1] ** 2), 0.0, 0.0]
    )


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 1, 0), (3, 1, 1), (3, 2, 1), (3, 2, 0), (2, 2, 0)])
def test_a_child_spends_exactly_one_vote_borders_included(kernel, stride, padding, rng):
    """In row q of the batch only child q is there, so that each parent's total is coupling times vote, and the vote is
    known.
    """
    height, width, n_out = 4, 5, 3
    grid = local_grid(height, width, kernel, stride, padding)
    weight = torch.rand(1, kernel * kernel, n_out, 1, 1, generator=rng, dtype=torch.float64) + 0.5
    poses = torch.eye(height * width, dtype=torch.float64).unsqueeze(-1)  # [b i 1]
    parents = local_routing(poses, weight, torch.zeros(n_out, 1, dtype=torch.float64), grid).poses
    totals = rearrange(unsquash(parents), "b (m p) 1 -> b p m", m=n_out)
    for child in range(height * width):
        reached = (grid.seen == child).nonzero().tolist()  # (parent's place, member of its kernel)
        spent = sum((totals[child, p] / weight[0, k, :, 0, 0]).sum() for p, k in reached)
        torch.testing.assert_close(float(spent), 1.0 if reached else 0.0, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("couplings", RULES)
def test_a_kernel_that_covers_the_grid_is_dense_routing(couplings):
    args = problem(3, 3, 3, batch=(2,))
    dense = dynamic_routing(
        args["poses"], rearrange(args["weight"], "n k m d e -> (n k) m d e"), args["bias"], couplings=couplings
    )
    torch.testing.assert_close(local_routing(**args, couplings=couplings), dense)


def test_the_pattern_may_stand_anywhere():
    """One step to the right at the input is one step to the right at the output, away from the borders."""
    args = problem(3, 6, 3, n=1)
    poses = torch.zeros(3, 6, 2, dtype=torch.float64)
    poses[:, 2] = args["poses"][:3]
    here, there = (
        rearrange(
            local_routing(rearrange(x, "h w d -> (h w) d"), *list(args.values())[1:]).poses, "(m w) e -> m w e", m=3
        )
        for x in (poses, poses.roll(1, dims=1))
    )
    torch.testing.assert_close(here[:, :3], there[:, 1:])


@pytest.mark.parametrize("batch", [(), (1,), (2, 3)])
def test_any_leading_batch_axes(batch):
    args = problem(3, 3, 2, batch=batch)
    routed = local_routing(**args)
    assert routed.poses.shape == routed.pose_sum.shape == (*batch, 3 * 4, 3)
    rows = [local_routing(**args | {"poses": row}).poses for row in args["poses"].reshape(-1, 18, 2)]
    torch.testing.assert_close(routed.poses.reshape(-1, 12, 3), torch.stack(rows))


@pytest.mark.parametrize("couplings", RULES)
def test_gradient_is_the_slope(couplings):
    args = problem(3, 3, 2, stride=1, padding=1, batch=(1,), n=1, m=2)
    grid = args.pop("grid")
    assert gradcheck(
        lambda p, w, b: local_routing(p, w, b, grid, couplings=couplings),
        tuple(x.requires_grad_() for x in args.values()),
    )


def test_a_child_that_no_parent_sees_gets_no_gradient_and_no_nan():
    """Stride 3, kernel 2 on 5x5: the middle row and column are skipped."""
    args = problem(5, 5, 2, stride=3, n=1)
    poses = args["poses"].requires_grad_()
    local_routing(**args).poses.sum().backward()
    reached = poses.grad.abs().sum(-1).view(5, 5) > 0
    assert poses.grad.isfinite().all()
    assert reached.tolist() == [[y != 2 and x != 2 for x in range(5)] for y in range(5)]


def test_passes_and_their_sum():
    args = problem(3, 3, 2)
    passes = [local_routing(**args, n_iters=n) for n in (1, 2, 3)]
    torch.testing.assert_close(passes[2].pose_sum, passes[0].poses + passes[1].poses)
    assert (passes[0].pose_sum == 0).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_dtype_is_kept_and_close_to_float64(dtype, tolerance):
    args = {name: x.to(dtype) if isinstance(x, torch.Tensor) else x for name, x in problem(3, 3, 2, padding=1).items()}
    routed, exact = (
        local_routing(**args),
        local_routing(*(x.double() if isinstance(x, torch.Tensor) else x for x in args.values())),
    )
    assert routed.poses.dtype == routed.pose_sum.dtype == dtype
    torch.testing.assert_close(routed.poses.double(), exact.poses, rtol=0, atol=tolerance)


def test_autocast_keeps_float32_at_both_ends():
    args = {name: x.float() if isinstance(x, torch.Tensor) else x for name, x in problem(3, 3, 2).items()}
    with torch.autocast("cpu", torch.bfloat16):
        routed = local_routing(**args)
    assert routed.poses.dtype == torch.float32
    torch.testing.assert_close(routed.poses, local_routing(**args).poses, rtol=0, atol=0.03)


@pytest.mark.slow
def test_compiles_whole(fresh_dynamo):
    args = problem(3, 3, 2, padding=1, batch=(2,))
    inputs = [args[name].requires_grad_() for name in ("poses", "weight", "bias")]
    results = [
        op(**args).poses for op in (torch.compile(local_routing, fullgraph=True, backend="aot_eager"), local_routing)
    ]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(x.square().sum(), inputs) for x in results))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"poses": torch.ones(2 * 12, 2)},
            r"2 types on 9 places are \[..., 18 capsules, 2 dimensions each\], got \[24, 2\]",
        ),
        ({"poses": torch.ones(18, 1)}, r"\[..., 18 capsules, 2 dimensions each\], got \[18, 1\]"),
        ({"weight": torch.ones(2, 1, 3, 2, 3)}, "the grid's kernel has 4 members, the weight is for 1"),
        ({"bias": torch.ones(1, 3)}, r"bias must be \[3, 3\] for this weight, got \[1, 3\]"),
        ({"n_iters": 0}, "needs at least one iteration, got n_iters=0"),
        ({"couplings": "random"}, "has no prior logits for random couplings; use softmax, leaky, max-min or uniform"),
        ({"couplings": "hard"}, "couplings must be one of .* got 'hard'"),
    ],
    ids=lambda x: "+".join(x) if isinstance(x, dict) else "",
)
def test_what_would_pass_in_silence_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        local_routing(**problem(3, 3, 2) | change)


def test_a_kernel_larger_than_the_grid_is_refused():
    with pytest.raises(
        ValueError, match="a kernel of 5 does not fit a 3x9 grid with padding 0; make it smaller or pad more"
    ):
        local_grid(3, 9, 5)
    assert local_grid(3, 9, 5, padding=1).shape == (1, 7)


GRIDS = {"borders": (3, 3, 2), "padding": (3, 2, 2, 1, 1), "children that nobody sees": (4, 4, 3, 2)}


@pytest.mark.parametrize("sizes", GRIDS.values(), ids=GRIDS)
def test_gathering_has_the_gradients_of_plain_indexing(sizes, rng, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    grid = local_grid(*sizes)
    n_pairs, n_slots = grid.seen.numel(), grid.reach.numel()
    forms = {
        "in view": (grid.places, grid.seen, lambda x: grid.in_view(x, 0.5), 0.5),
        "by child": (n_pairs, grid.reach, lambda x: grid.by_child(x, -2.0), -2.0),
        "by parent": (n_slots, grid.slot, grid.by_parent, 0.0),
        "to parents": (len(grid.reach), grid.slot // grid.reach.shape[1], grid.to_parents, 0.0),
    }
    for name, (n, index, gather, nobody) in forms.items():
        x = torch.randn(2, n, 3, dtype=torch.float64, generator=rng).requires_grad_()
        plain, ours = pad(x, (0, 0, 0, 1), value=nobody)[:, index], gather(x)
        assert "Gathered" in str(ours.grad_fn) and torch.equal(plain, ours), name
        up = torch.randn(plain.shape, dtype=torch.float64, generator=rng)
        wanted, found = (torch.autograd.grad(y, x, up)[0] for y in (plain, ours))
        torch.testing.assert_close(found, wanted, msg=name)
        assert torch.autograd.gradgradcheck(gather, x.detach()[:, :, :1].requires_grad_()), name


def matrix_em(poses, grid):
    betas = poses.new_zeros(2), poses.new_zeros(2)
    weight = poses.new_ones(1, grid.seen.shape[1], 2, 2, 1)
    return matrix_em_routing(poses[..., 0], poses.unsqueeze(-2), weight, *betas, 2, grid=grid, backend="reference")


def dynamic(poses, grid):
    return local_routing(poses, poses.new_ones(1, grid.seen.shape[1], 2, 2, 1), poses.new_zeros(2, 1), grid)


class Called(TorchDispatchMode):
    """Names of the operators that are called, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: set[str] = set()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.ops.add(str(op))
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("sizes", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("route", [dynamic, matrix_em])
def test_no_compiled_gradient_is_scattered(route, sizes, rng, monkeypatch):
    """On a GPU a scatter adds up by atomics, in another order every time."""
    grid = local_grid(*sizes)
    poses = torch.randn(1, grid.places, 2, generator=rng)

    def gradient(poses):
        poses = poses.detach().requires_grad_()
        return torch.autograd.grad(route(poses, grid).poses.sum(), poses)[0]

    def scattered() -> list[str]:
        with Called() as called:
            gradient(poses)
        return [op for op in called.ops if "index_put" in op or "scatter" in op or "index_add" in op]

    assert scattered()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not scattered()


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)  # by PyTorch itself, at the first use
@pytest.mark.parametrize("route", [dynamic, matrix_em])
def test_forward_mode_works(route, rng):
    grid = local_grid(*GRIDS["borders"])
    poses, along = (torch.randn(grid.places, 2, dtype=torch.float64, generator=rng) for _ in range(2))

    def routed(poses):
        return route(poses, grid).poses

    _, found = torch.func.jvp(routed, (poses,), (along,))
    near = 1e-6 * along
    torch.testing.assert_close(found, (routed(poses + near) - routed(poses - near)) / 2e-6, rtol=1e-5, atol=1e-7)
