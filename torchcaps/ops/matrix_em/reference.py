"""EM routing of matrix capsules (Hinton, Sabour and Frosst 2018): a parent is a Gaussian over the votes it explains.

Paper's symbols: poses M_i, transforms W_ij, votes V_ij, assignments R_ij, means and variances of a parent's votes,
inverse temperature λ, costs β_u (`beta_use`) and β_a (`beta_activate`); an activity a_j is the sigmoid of the score
here. Letters beyond the usual: `r` row of a pose, `n` input type, `q` input place, `m` output type, `p` output place,
`k` member of a parent's field, `s` one of all n · k votes that a parent gets, `v` (batch, output place).

The assignments of a child sum to 1 over EVERY parent whose field holds it, at any place. Votes lie as [s v h m], h a
number of a pose, as a matrix product leaves them; all that follows are sums over s or h, which torch.compile fuses.
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid, pad
from torch.utils.checkpoint import checkpoint

from torchcaps.ops.conv_routing import LocalGrid

EPSILON = 1e-4  # least variance: poses are of size 1
RISE = 0.95  # λ after t iterations is `inverse_temperature` · (1 - RISE^t)
ABSENT = -1e4  # log of the activity of padding and of masked children: no part, and no NaN


class MatrixEMRouted(NamedTuple):
    """Score, mean and variance of every parent.

    Example:

        weight, beta = torch.randn(32, 10, 4, 4), torch.zeros(10)
        routed = matrix_em_routing(torch.zeros(32), torch.randn(32, 4, 4), weight, beta, beta)
        list(routed.scores.shape), list(routed.poses.shape)  # ([10], [10, 4, 4])
    """

    scores: Float[Tensor, "*b j"]
    poses: Float[Tensor, "*b j r e"]
    variances: Float[Tensor, "*b j r e"]


class MatrixEMStep(NamedTuple):
    """One iteration, for figures and tests. Without a grid p is 1 and k runs over the places.

    Example:

        weight, beta = torch.randn(32, 10, 4, 4), torch.zeros(10)
        steps = list(matrix_em_routing_steps(torch.zeros(32), torch.randn(32, 4, 4), weight, beta, beta, n_iters=3))
        len(steps), list(steps[-1].assignments.shape)  # (3, [32, 1, 1, 10])
    """

    assignments: Float[Tensor, "*b n p k m"]  # R, before it is multiplied by the activity of the child
    scores: Float[Tensor, "*b j"]
    poses: Float[Tensor, "*b j r e"]
    variances: Float[Tensor, "*b j r e"]


class _Fitted(NamedTuple):
    """Gaussians of all parents after an M-step."""

    scores: Float[Tensor, "v m"]
    means: Float[Tensor, "v h m"]
    variances: Float[Tensor, "v h m"]


def routed(
    scores: Float[Tensor, "*b i"],
    poses: Float[Tensor, "*b i r d"],
    weight: Float[Tensor, "n m d e"] | Float[Tensor, "n k m d e"],
    beta_use: Float[Tensor, "m"],
    beta_activate: Float[Tensor, "m"],
    n_iters: int,
    grid: LocalGrid | None,
    coordinates: Float[Tensor, "q 2"] | None,
    inverse_temperature: float,
    density_power: float,
    recompute: bool,
) -> MatrixEMRouted:
    """Compute what `matrix_em_routing` promises; the votes lie in the open."""
    field = Field(scores, poses, weight, grid)
    votes = field.votes(poses, weight, coordinates)
    fitted = None
    for t in range(n_iters):
        warmth = inverse_temperature * (1 - RISE ** (t + 1))
        args = (votes, field.log_activity, beta_use.to(votes), beta_activate.to(votes), warmth)
        if recompute and torch.is_grad_enabled():
            fitted = checkpoint(_iterate, field.share, fitted, density_power, *args, use_reentrant=False)
        else:
            fitted = _iterate(field.share, fitted, density_power, *args)
    return field.routed(fitted)


def matrix_em_routing_steps(
    scores: Float[Tensor, "*b i"],
    poses: Float[Tensor, "*b i r d"],
    weight: Float[Tensor, "n m d e"] | Float[Tensor, "n k m d e"],
    beta_use: Float[Tensor, "m"],
    beta_activate: Float[Tensor, "m"],
    n_iters: int = 3,
    *,
    grid: LocalGrid | None = None,
    coordinates: Float[Tensor, "q 2"] | None = None,
    inverse_temperature: float = 0.01,
    density_power: float = 1.0,
) -> Iterator[MatrixEMStep]:
    """Yield every iteration, as `matrix_em_routing` computes it."""
    check(scores, poses, weight, beta_use, beta_activate, n_iters, grid, coordinates)
    field = Field(scores, poses, weight, grid)
    votes = field.votes(poses, weight, coordinates)
    fitted = None
    for t in range(n_iters):
        warmth = inverse_temperature * (1 - RISE ** (t + 1))
        shares = _assign(field.share, fitted, density_power, votes)
        fitted = _fit(shares, votes, field.log_activity, beta_use.to(votes), beta_activate.to(votes), warmth)
        members = rearrange(shares.exp(), "(n k) (b p) m -> b n p k m", n=field.n_types, p=field.n_places)
        yield MatrixEMStep(members.reshape(*field.batch, *members.shape[1:]), *field.routed(fitted))


def _iterate(share: Callable, fitted: _Fitted | None, density_power: float, votes: Tensor, *rest) -> _Fitted:
    return _fit(_assign(share, fitted, density_power, votes), votes, *rest)


def _assign(
    share: Callable[[Tensor], Tensor], fitted: _Fitted | None, density_power: float, votes: Float[Tensor, "s v h m"]
) -> Float[Tensor, "s v m"]:
    """E-step: compute log R. `share` subtracts the log of what all parents claim of a child; at first all alike."""
    if fitted is None:
        return share(votes.new_zeros(*votes.shape[:2], votes.shape[-1]))
    off = (votes - fitted.means).square() * (0.5 / fitted.variances)
    ready = logsigmoid(fitted.scores) - density_power / 2 * fitted.variances.log().sum(-2)  # [v m]
    return share(ready - density_power * off.sum(-2))


def _fit(
    shares: Float[Tensor, "s v m"],
    votes: Float[Tensor, "s v h m"],
    log_activity: Float[Tensor, "s v"],
    beta_use: Float[Tensor, "m"],
    beta_activate: Float[Tensor, "m"],
    warmth: float,
) -> _Fitted:
    """M-step: fit a Gaussian to the votes by weight R · a, and score the parent by what it saves in description."""
    used = shares + log_activity.unsqueeze(-1)  # [s v m]
    # weights that sum to 1, from logs: a parent whom all have left still has a mean
    weights = used.softmax(0).unsqueeze(-2)
    means = (weights * votes).sum(0)  # [v h m]
    variances = (weights * (votes - means).square()).sum(0) + EPSILON
    cost = (votes.shape[-2] * beta_use + variances.log().sum(-2) / 2) * used.exp().sum(0)  # [v m]
    return _Fitted(warmth * (beta_activate - cost), means, variances)


class Field:
    """Who sees whom: turns children into the votes that each parent gets, and parents back into capsules."""

    def __init__(self, scores: Tensor, poses: Tensor, weight: Tensor, grid: LocalGrid | None) -> None:
        self.grid, self.n_types, self.batch = grid, weight.shape[0], scores.shape[:-1]
        self.n_places = 1 if grid is None else grid.seen.shape[0]
        self.rows, self.given = poses.shape[-2], (scores.dtype, poses.dtype)
        self.dtype = torch.promote_types(poses.dtype, torch.float32)
        self.gone = scores == -torch.inf
        logs = logsigmoid(scores.to(self.dtype)).clamp(min=ABSENT)
        self.log_activity = self._seen(logs.unsqueeze(-1), ABSENT).flatten(0, 1).squeeze(-1)  # [s v]

    def votes(self, poses, weight, coordinates) -> Float[Tensor, "s v h m"]:
        """Multiply what each parent sees by the transforms; sums of the votes are taken in float32 at least."""
        rows, d_in = poses.shape[-2:]
        if poses.dtype == torch.float16:  # votes could overflow
            poses, weight = poses.float(), weight.float()
        seen = self.seen(poses).unflatten(-1, (rows, d_in))  # [n k v r d]
        pairs = "nkvrd,nmde->nkvrem" if self.grid is None else "nkvrd,nkmde->nkvrem"
        votes = torch.einsum(pairs, seen, weight).to(self.dtype)
        if coordinates is not None:
            moved = pad(coordinates.to(self.dtype), (0, rows - 2)).unsqueeze(-1)  # [k r 1]
            votes = votes + rearrange(pad(moved, (votes.shape[-2] - 1, 0)), "k r e -> k 1 r e 1")
        return rearrange(votes, "n k v r e m -> (n k) v (r e) m")

    def seen(self, poses: Float[Tensor, "*b i r d"]) -> Float[Tensor, "n k v rd"]:
        """Lay out the poses as the parents see them."""
        # masked children may hold NaN, and 0 · NaN is not 0
        poses = poses.masked_fill(rearrange(self.gone, "... i -> ... i 1 1"), 0)
        return self._seen(poses.flatten(-2), 0.0)

    def share(self, logits: Float[Tensor, "s v m"]) -> Float[Tensor, "s v m"]:
        """Subtract the log of the sum of what all parents, of every type and place, claim of a child."""
        return logits - self.claimed(logits.logsumexp(-1)).unsqueeze(-1)

    def claimed(self, claims: Float[Tensor, "s v"]) -> Float[Tensor, "s v"]:
        """Sum, in logs, what the parents of every place claim of a child; `claims` are sums over types."""
        if self.grid is None:
            return claims
        claims = rearrange(claims, "(n k) (b p) -> b n (p k) 1", n=self.n_types, p=self.n_places)
        by_child = self.grid.by_child(claims, -torch.inf).logsumexp(-2)  # [b n c 1]
        totals = self.grid.to_parents(by_child)  # [b n p k 1]; padding is nobody's, and never used
        return rearrange(totals, "b n p k 1 -> (n k) (b p)")

    def routed(self, fitted: _Fitted) -> MatrixEMRouted:
        """Order parents as (type, place), in the dtypes of the inputs."""
        scores = rearrange(fitted.scores, "(b p) m -> b (m p)", p=self.n_places).to(self.given[0])
        models = (
            rearrange(part, "(b p) (r e) m -> b (m p) r e", p=self.n_places, r=self.rows).to(self.given[1])
            for part in (fitted.means, fitted.variances)
        )
        return MatrixEMRouted(*(part.reshape(*self.batch, *part.shape[1:]) for part in (scores, *models)))

    def _seen(self, numbers: Float[Tensor, "*b i d"], nobody: float) -> Float[Tensor, "n k v d"]:
        """Lay out numbers of children as the parents see them; padding is filled with `nobody`."""
        by_type = rearrange(
            numbers.reshape(prod(self.batch), *numbers.shape[-2:]), "b (n q) d -> b n q d", n=self.n_types
        )
        if self.grid is None:
            return rearrange(by_type, "b n q d -> n q b d")
        return rearrange(self.grid.in_view(by_type, nobody), "b n p k d -> n k (b p) d")


def grid_coordinates(height: int, width: int) -> Float[Tensor, "q 2"]:
    """Return (row, column) of the centre of each place of a grid, from 0 to 1."""
    rows, columns = ((torch.arange(size) + 0.5) / size for size in (height, width))
    return torch.cartesian_prod(rows, columns)


def check(scores, poses, weight, beta_use, beta_activate, n_iters, grid, coordinates) -> None:
    """Refuse what indexing, einsum and broadcasting would let pass in silence."""
    if n_iters < 1:
        raise ValueError(f"matrix_em_routing needs at least one iteration, got n_iters={n_iters}")
    form = "[n k m d e] with a grid" if grid is not None else "[n m d e]"
    if poses.ndim < 3 or weight.ndim != (4 if grid is None else 5):
        raise ValueError(
            f"matrix_em_routing expects poses [*b i r d] and a weight {form}; "
            f"got {list(poses.shape)} and {list(weight.shape)}"
        )
    if scores.shape != poses.shape[:-2]:
        raise ValueError(
            f"matrix_em_routing: poses {list(poses.shape)} need scores {list(poses.shape[:-2])}, "
            f"got {list(scores.shape)}"
        )
    n_types, n_out, d_in = weight.shape[0], weight.shape[-3], weight.shape[-2]
    n_in = poses.shape[-3]
    fits = n_types > 0 and (n_in % n_types == 0 if grid is None else n_in == n_types * grid.places)
    if not fits or poses.shape[-1] != d_in:
        wanted = f"a multiple of {n_types}" if grid is None else n_types * grid.places
        raise ValueError(
            f"matrix_em_routing: the weight {list(weight.shape)} takes {wanted} capsules with rows of "
            f"{d_in} dimensions, got {list(poses.shape)}"
        )
    if grid is not None and weight.shape[1] != grid.seen.shape[1]:
        raise ValueError(
            f"matrix_em_routing: the grid's kernel has {grid.seen.shape[1]} members, the weight is for "
            f"{weight.shape[1]}"
        )
    for name, beta in (("beta_use", beta_use), ("beta_activate", beta_activate)):
        if tuple(beta.shape) != (n_out,):
            raise ValueError(f"matrix_em_routing: {name} must be [{n_out}] for this weight, got {list(beta.shape)}")
    if coordinates is not None and poses.shape[-2] < 2:
        raise ValueError(
            f"matrix_em_routing: coordinates go to two rows of a pose, got poses of {poses.shape[-2]}; "
            "give two or more, or no coordinates"
        )
    places = n_in // n_types if grid is None else weight.shape[1]
    if coordinates is not None and tuple(coordinates.shape) != (places, 2):
        raise ValueError(
            f"matrix_em_routing: coordinates must be [{places}, 2], a row and a column for every place, "
            f"got {list(coordinates.shape)}"
        )
