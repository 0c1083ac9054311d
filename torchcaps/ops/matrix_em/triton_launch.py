"""Launch the kernels of matrix EM routing: how a problem is cut, and which kernel follows which."""

from typing import NamedTuple

from torch import Tensor

from torchcaps.ops.gpus import tiles_on
from torchcaps.ops.kernel_op import launch
from torchcaps.ops.tiles import ceil_div, next_power_of_2

LANES = 32  # parents of a warp, one a thread
TYPE_WARPS = 4  # of a program whose warps have an output type each and walk over votes; they share the poses they load
VOTE_WARPS = 4  # of a program whose warps have votes each; they share the parents they load
VOTES = 2  # that a thread has at once there
PROGRAM_WARPS = 16  # for each multiprocessor, at least, where there are votes enough
LEAST_VOTES = 8  # of a chunk


class Problem(NamedTuple):
    """Inputs of every kernel that makes votes, and how they are cut."""

    seen: Tensor  # [g s r·d l]
    weight: Tensor  # [s m d e], or [n m d e] that `places` share
    coordinates: Tensor | None  # [place 2]
    places: int

    @property
    def n_groups(self) -> int:
        return self.seen.shape[0]

    @property
    def n_seen(self) -> int:
        return self.seen.shape[1]

    @property
    def n_out(self) -> int:
        return self.weight.shape[1]

    @property
    def rows(self) -> int:
        return self.seen.shape[2] // self.weight.shape[2]

    @property
    def numbers(self) -> int:
        """Dimensions of one output pose."""
        return self.rows * self.weight.shape[3]

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.seen, self.weight, self.seen if self.coordinates is None else self.coordinates

    @property
    def constants(self) -> dict[str, int | bool]:
        d_in, d_out = self.weight.shape[2:]
        flags = {"SHARED": len(self.weight) != self.n_seen, "COORDINATES": self.coordinates is not None}
        return {"R": self.rows, "D": d_in, "E": d_out, **flags}

    @property
    def type_warps(self) -> int:
        return min(TYPE_WARPS, next_power_of_2(self.n_out))

    def cut(self) -> tuple[int, int]:
        """Number of chunks of votes, and votes of each."""
        wanted = PROGRAM_WARPS * tiles_on(self.seen.device).multiprocessors
        n_chunks = ceil_div(wanted, self.n_groups * self.n_out)
        length = max(LEAST_VOTES, ceil_div(self.n_seen, n_chunks))
        return ceil_div(self.n_seen, length), length

    def over_votes(self, kernel, n_chunks: int, length: int, *tensors: Tensor, before: int, **flags: bool) -> None:
        """Launch a kernel that walks over votes; `before` of its tensors come before poses and transforms."""
        warps = self.type_warps
        sizes = self.n_seen, self.n_out, n_chunks, length, self.places
        launch(kernel, (self.n_groups * n_chunks * ceil_div(self.n_out, warps),))(
            *tensors[:before], *self.tensors, *tensors[before:], *sizes,
            **self.constants, **flags, WARPS=warps, num_warps=warps,
        )  # fmt: skip

    def new(self, *shape: int) -> Tensor:
        return self.seen.new_empty(shape)


def fit(problem: Problem, logits: Tensor | None, offset: Tensor, outputs: tuple[Tensor, ...]) -> None:
    """Write means, variances, amounts, highest logs and scales."""
    from torchcaps.ops.matrix_em import triton_forward as kernels

    n_chunks, length = problem.cut()
    partial = problem.new(problem.n_groups, problem.n_out, n_chunks, 2 * problem.numbers + 2, LANES)
    first = logits is None
    given = (offset if first else logits), offset, partial
    problem.over_votes(kernels.fit_chunks, n_chunks, length, *given, before=2, FIRST=first)
    warps = problem.type_warps
    launch(kernels.fit_whole, (problem.n_groups * ceil_div(problem.n_out, warps),))(
        partial, *outputs, problem.n_out, n_chunks, RE=problem.numbers, WARPS=warps, num_warps=warps
    )


def densities(problem: Problem, ready: Tensor, means: Tensor, factors: Tensor, logits: Tensor) -> None:
    """Write the logits."""
    from torchcaps.ops.matrix_em.triton_forward import log_densities

    problem.over_votes(log_densities, *problem.cut(), ready, means, factors, logits, before=3)


def moments(problem: Problem, grad: Tensor, means: Tensor) -> Tensor:
    """Sum a logit's gradient times vote - mean, times its square, and alone: [chunk g m 2·r·e+1 l]."""
    from torchcaps.ops.matrix_em import triton_backward as kernels

    n_chunks, length = problem.cut()
    partial = problem.new(n_chunks, problem.n_groups, problem.n_out, 2 * problem.numbers + 1, LANES)
    problem.over_votes(kernels.moments, n_chunks, length, grad, means, partial, before=2)
    return partial


class Slopes(NamedTuple):
    """Tensors that give the gradients of votes: see triton_backward.py. Numbers of a fit are None for densities."""

    logits: Tensor | None  # of a fit, None in the first iteration; or the gradients of logits
    means: Tensor
    curve: Tensor
    line: Tensor | None = None
    offset: Tensor | None = None
    highest: Tensor | None = None
    scale: Tensor | None = None
    level: Tensor | None = None

    @property
    def flags(self) -> dict[str, bool]:
        return {"FIT": self.line is not None, "FIRST": self.logits is None}

    def tensors(self, *names: str) -> list[Tensor]:
        """Return the tensors of these names; for one that is not there any tensor, which no kernel then reads."""
        found = (getattr(self, name) for name in names)
        return [self.means if x is None else x for x in found]


def votes_backward(
    problem: Problem, slopes: Slopes, grad_logits: Tensor, grad_offset: Tensor, grad_seen: Tensor, of_weight: bool
) -> Tensor | None:
    """Write the gradients of what a vote comes from; return that of every transform [s m d e] if wanted."""
    from torchcaps.ops.matrix_em import triton_backward as kernels

    tile = {"S": VOTES, "WARPS": VOTE_WARPS, "num_warps": VOTE_WARPS}
    n_blocks = ceil_div(problem.n_seen, VOTES * VOTE_WARPS)
    flags = problem.constants | slopes.flags | tile
    sizes = problem.n_seen, problem.n_out, problem.places
    launch(kernels.children, (problem.n_groups * n_blocks,))(
        *slopes.tensors("logits", "offset", "highest", "scale", "level", "means", "line", "curve"),
        *problem.tensors, grad_logits, grad_offset, grad_seen, *sizes, **flags,
    )  # fmt: skip
    if not of_weight:
        return None
    grad_weight = problem.new(problem.n_seen, *problem.weight.shape[1:])
    launch(kernels.transforms, (problem.n_out * n_blocks,))(
        *slopes.tensors("logits", "offset", "highest", "scale", "means", "line", "curve"),
        *problem.tensors, grad_weight, problem.n_groups, *sizes, **flags,
    )  # fmt: skip
    return grad_weight
