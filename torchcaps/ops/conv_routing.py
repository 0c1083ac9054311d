"""Dynamic routing in a convolutional capsule layer: every parent sees a local grid of children.

Letters beyond the usual: `n` input type, `q` input place, `m` output type, `p` output place, `k` member of the local
grid (kernel row and column), `c` a child place that reaches some parent, `r` its parents' places.
"""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from torchcaps.ops.backend import is_exporting
from torchcaps.ops.couplings import CouplingRule, coupling_rule
from torchcaps.ops.dynamic.reference import Routed
from torchcaps.ops.squash import squash


class LocalGrid(NamedTuple):
    """Tables of who sees whom, which point one past the end where there is nobody (padding, borders).

    Example:

        grid = local_grid(height=6, width=6, kernel=3)
        grid.shape, list(grid.seen.shape)  # ((4, 4), [16, 9])
    """

    seen: Int64[Tensor, "p k"]  # the input place that parent p sees as member k; q if it is padding
    reach: Int64[Tensor, "c r"]  # the (p k) pairs in which a child takes part; p·k if it has fewer than r
    slot: Int64[Tensor, "p k"]  # where (p k) stands in `reach`; c·r if it is padding
    shape: tuple[int, int]  # height and width of the parents' grid
    places: int  # q: how many places the children of one type stand on
    users: Int64[Tensor, "q r"]  # `reach` of every place, also of those that no parent sees

    def to(self, device: torch.device | str) -> "LocalGrid":
        """Move the tables to a device."""
        return LocalGrid(*(part.to(device) if isinstance(part, Tensor) else part for part in self))

    def in_view(self, children: Float[Tensor, "*b q d"], nobody: float = 0.0) -> Float[Tensor, "*b p k d"]:
        """Lay out numbers of the places as the parents see them; padding is `nobody`."""
        return gathered(children, self.seen, self.users, nobody)

    def by_child(self, pairs: Float[Tensor, "*b p_k d"], nobody: float) -> Float[Tensor, "*b c r d"]:
        """Turn the parents' view of all pairs into the children's; where a child has fewer parents it is `nobody`."""
        return gathered(pairs, self.reach, self.slot.view(-1, 1), nobody)

    def by_parent(self, shares: Float[Tensor, "*b c_r d"]) -> Float[Tensor, "*b p k d"]:
        """Turn the children's view back into the parents'; padding is 0."""
        return gathered(shares, self.slot, self.reach.view(-1, 1))

    def to_parents(self, totals: Float[Tensor, "*b c d"]) -> Float[Tensor, "*b p k d"]:
        """Lay out a value of each child as the parents see it; padding is 0."""
        return gathered(totals, self.slot // self.reach.shape[1], self.reach)


class _Gathered(torch.autograd.Function):
    """Numbers at places of an index, for compiled programs: the first gradient is gathered by the inverse table.

    Autograd scatters it, and TorchInductor does so by atomics: on a GPU bits could differ from run to run. Without a
    compiler plain indexing sums in a fixed order, and has derivatives of every kind.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(numbers: Tensor, index: Tensor, users: Tensor, nobody: float) -> Tensor:
        return pad(numbers, (0, 0, 0, 1), value=nobody)[..., index, :]

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx, grad):
        (users,) = ctx.saved_tensors
        return pad(grad.flatten(-3, -2), (0, 0, 0, 1))[..., users, :].sum(-2), None, None, None


def gathered(
    numbers: Float[Tensor, "*b x d"], index: Int64[Tensor, "y z"], users: Int64[Tensor, "x u"], nobody: float = 0.0
) -> Float[Tensor, "*b y z d"]:
    """Take numbers at the places of `index`; one past the end it is `nobody`.

    `users` is its inverse: where in the flattened index each place stands, one past its end if in fewer than u.
    """
    if torch.compiler.is_compiling() and not is_exporting():
        return _Gathered.apply(numbers, index, users, nobody)
    return _Gathered.forward(numbers, index, users, nobody)


def local_grid(height: int, width: int, kernel: int, stride: int = 1, padding: int = 0) -> LocalGrid:
    """Make the tables of a layer with a square kernel over a grid of height x width places."""
    rows, columns = (size + 2 * padding - kernel for size in (height, width))
    if min(rows, columns) < 0:
        raise ValueError(
            f"a kernel of {kernel} does not fit a {height}x{width} grid with padding {padding}; "
            "make it smaller or pad more"
        )
    out = (rows // stride + 1, columns // stride + 1)
    places = pad(torch.arange(height * width).view(height, width), [padding] * 4, value=height * width)
    seen = rearrange(places.unfold(0, kernel, stride).unfold(1, kernel, stride), "y x ky kx -> (y x) (ky kx)")
    pairs = seen.flatten()
    reached = [(pairs == place).nonzero().flatten() for place in range(height * width)]
    # a child that no parent sees has nobody to route to, and a softmax over nobody is NaN
    reached = [taken for taken in reached if len(taken)]
    most = max(len(taken) for taken in reached)
    reach = torch.full((len(reached), most), len(pairs))
    users = torch.full((height * width, most), len(pairs))
    slot = torch.full((len(pairs),), reach.numel())
    for child, taken in enumerate(reached):
        reach[child, : len(taken)] = taken
        users[pairs[taken[0]]] = reach[child]
        slot[taken] = child * most + torch.arange(len(taken))
    return LocalGrid(seen.contiguous(), reach, slot.view_as(seen), out, height * width, users)


def local_routing(
    poses: Float[Tensor, "*b i d"],
    weight: Float[Tensor, "n k m d e"],
    bias: Float[Tensor, "m e"],
    grid: LocalGrid,
    n_iters: int = 3,
    *,
    couplings: str = "softmax",
) -> Routed:
    """Route i = (n q) children to j = (m p) parents. Couplings run over ALL parents, type and place, of a child."""
    rule = coupling_rule(couplings)
    _check(poses, weight, bias, grid, n_iters, couplings)
    in_view = grid.in_view(rearrange(poses, "... (n q) d -> ... n q d", n=weight.shape[0]))  # [*b n p k d]
    votes = torch.einsum("...npkd,nkmde->...npkme", in_view, weight)
    logits = votes.new_zeros(votes.shape[:-1], dtype=torch.promote_types(votes.dtype, torch.float32))  # [*b n p k m]
    parents, pose_sum = None, 0.0
    for t in range(1 if rule.fixed else n_iters):
        if t > 0:
            pose_sum = pose_sum + parents
            logits = logits + (votes * rearrange(parents, "... p m e -> ... 1 p 1 m e")).sum(-1)
        shares = _couplings(logits, grid, rule).unsqueeze(-1)  # [*b n p k m 1]
        parents = squash((shares * votes).sum((-5, -3)) + bias)  # [*b p m e]
    pose_sum = torch.zeros_like(parents) + pose_sum
    return Routed(*(rearrange(x, "... p m e -> ... (m p) e").to(poses.dtype) for x in (parents, pose_sum)))


def _couplings(logits: Float[Tensor, "*b n p k m"], grid: LocalGrid, rule: CouplingRule) -> Float[Tensor, "*b n p k m"]:
    """Turn the parents' view of the logits into the children's, apply the rule there, and turn back."""
    by_child = grid.by_child(rearrange(logits, "... p k m -> ... (p k) m"), -torch.inf)
    couplings = rule.share(rearrange(by_child, "... c r m -> ... c (r m)"))
    return grid.by_parent(rearrange(couplings, "... c (r m) -> ... (c r) m", r=grid.reach.shape[1]))


def _check(poses, weight, bias, grid, n_iters, couplings) -> None:
    """Refuse what indexing, einsum and broadcasting would let pass in silence."""
    if n_iters < 1:
        raise ValueError(f"local_routing needs at least one iteration, got n_iters={n_iters}")
    if couplings == "random":
        raise ValueError(
            "local_routing has no prior logits for random couplings; use softmax, leaky, max-min or uniform"
        )
    n_types, members, n_out, d_in, d_out = weight.shape
    wanted = (n_types * grid.places, d_in)
    if poses.ndim < 2 or tuple(poses.shape[-2:]) != wanted:
        raise ValueError(
            f"local_routing: {n_types} types on {grid.places} places are "
            f"[..., {wanted[0]} capsules, {d_in} dimensions each], got {list(poses.shape)}"
        )
    if members != grid.seen.shape[1]:
        raise ValueError(
            f"local_routing: the grid's kernel has {grid.seen.shape[1]} members, the weight is for {members}"
        )
    if tuple(bias.shape) != (n_out, d_out):
        raise ValueError(f"local_routing: bias must be [{n_out}, {d_out}] for this weight, got {list(bias.shape)}")
