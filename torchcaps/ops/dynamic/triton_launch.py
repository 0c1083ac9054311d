"""Launch the kernels of dynamic routing: how a problem is cut, and which kernel follows which."""

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.ops.gpus import Tiles, tiles_on
from torchcaps.ops.kernel_op import launch
from torchcaps.ops.squash import EPS
from torchcaps.ops.tiles import ceil_div, next_power_of_2

WIDE, WIDE_TRANSFORM = 64, 512  # dimensions of an output pose, entries of a transform, whose tiles have fewer images
PROGRAMS = 3  # programs that the chunks of a sum make for each multiprocessor, about
# input tiles of a chunk that are a constant of the program; more are counted at run time, so that few are compiled
UNROLLED = 8
# couplings and gradients of logits of all iterations are kept for the weight's gradient while they are this few
KEPT_BYTES = 16 << 20
WARPS = 4
LARGEST_GRID = 65_535  # programs along a second axis
PRECISION = "tf32x3"  # for float32: three TF32 products, as exact as one of float32 and twice as fast


def _is_wide(DP: int, EP: int) -> bool:
    return EP >= WIDE or DP * EP >= WIDE_TRANSFORM


class Sizes(NamedTuple):
    """Sizes of a problem and of its tiles, named as in the kernels."""

    n_batch: int
    n_in: int
    n_rows: int  # rows of the weight: inputs, types or one
    n_out: int
    d_in: int
    d_out: int
    BB: int
    IB: int
    DP: int
    EP: int
    programs: int  # at most so many, about, unless images and outputs alone make more

    @classmethod
    def of(cls, poses: Tensor, weight: Tensor, n_out: int, low: bool, tiles: Tiles, narrow: bool = False) -> "Sizes":
        n_batch, n_in, d_in = poses.shape
        d_out = weight.shape[-1]
        DP, EP = next_power_of_2(d_in), max(16, next_power_of_2(d_out))
        # tensor cores want 16 rows and columns at least
        columns, rows = tiles.columns if low and not narrow else tiles.narrow_columns, tiles.rows
        if _is_wide(DP, EP):
            rows = tiles.wide_rows if low else tiles.wide_rows_float32
        elif not low:
            rows = tiles.rows_float32
        BB = min(rows, max(16, next_power_of_2(n_batch)))
        IB = max(min(columns // DP, next_power_of_2(n_in)), 16 // DP, 1)
        n_rows = weight.shape[0] if weight.ndim == 4 else 1
        return cls(n_batch, n_in, n_rows, n_out, d_in, d_out, BB, IB, DP, EP, PROGRAMS * tiles.multiprocessors)

    @property
    def is_wide(self) -> bool:
        return _is_wide(self.DP, self.EP)

    @property
    def places(self) -> int:
        return self.n_in // self.n_rows

    @property
    def image_tiles(self) -> int:
        return ceil_div(self.n_batch, self.BB)

    @property
    def input_tiles(self) -> int:
        return ceil_div(self.n_in, self.IB)

    @property
    def blocks(self) -> int:
        """Input tiles of a chunk."""
        chunks = max(1, round(self.programs / (self.n_out * self.image_tiles)))
        return ceil_div(self.input_tiles, chunks)

    @property
    def chunks(self) -> int:
        return ceil_div(self.input_tiles, self.blocks)


class Problem:
    """Inputs as the kernels want them, how they are cut, and one method for each kernel."""

    def __init__(self, poses: Tensor, weight: Tensor, n_out: int, low: bool, narrow: bool = False) -> None:
        import triton.language as tl

        from torchcaps.ops.dynamic import triton_backward, triton_forward

        self.forward, self.backward, self.poses, self.weight = triton_forward, triton_backward, poses, weight
        # in float32 all kernels have the same tiles, so that what two of them compute is equal to the last bit
        self.tiles = tiles = tiles_on(poses.device)
        self.sizes = sizes = Sizes.of(poses, weight, n_out, low, tiles, narrow)
        if sizes.image_tiles > LARGEST_GRID:  # asked here, since a compiled program's batch may be free
            most = LARGEST_GRID * sizes.BB
            raise ValueError(
                f"dynamic_routing: the triton backend takes up to {most:,} images, got {sizes.n_batch:,}; cut them"
            )
        strides = (0,) * (4 - weight.ndim) + weight.stride()
        self.counts, self.layout = (sizes.n_batch, sizes.n_in), (sizes.places, strides[0], strides[1])
        self.tile = {
            "J": sizes.n_out, "D": sizes.d_in, "E": sizes.d_out,
            "BB": sizes.BB, "IB": sizes.IB, "DP": sizes.DP, "EP": sizes.EP,
            "T": tl.bfloat16 if low else tl.float32, "PRECISION": PRECISION,
            "num_warps": tiles.wide_warps if sizes.is_wide else WARPS,
        }  # fmt: skip
        n_rows, n_chunks = sizes.n_batch * sizes.n_out, sizes.chunks
        self.rows = n_rows, n_chunks
        self.row_tile = {"E": sizes.d_out, "RB": 4, "EP": sizes.EP, "CHUNKS": next_power_of_2(n_chunks), "EPS": EPS}
        self.row_tile |= {"AT_ONCE": 1, "num_warps": 1}
        self.row_grid = (ceil_div(n_rows, 4),)

    def denominators(self, pose_sum: Tensor, bounds: Tensor, leaky: bool) -> None:
        grid = self.sizes.input_tiles, self.sizes.image_tiles
        inputs = self.poses, self.weight, pose_sum, bounds
        launch(self.forward.denominators, grid)(*inputs, *self.counts, *self.layout, **self.tile, LEAKY=leaky)

    def sums(self, mode: int, pose_sum, grad, bounds, delta, kept: Tensor | None = None) -> Tensor:
        s = self.sizes
        partial = self.poses.new_empty(s.chunks, s.n_batch, s.n_out, s.d_out, dtype=torch.float32)
        grid = s.chunks, s.n_out, s.image_tiles
        keep = kept is not None
        inputs = self.poses, self.weight, pose_sum, grad, bounds, delta, partial, kept if keep else partial
        flags = {"BLOCKS": s.blocks if s.blocks <= UNROLLED else 0, "MODE": mode, "KEEP": keep}
        launch(self.forward.sums, grid)(*inputs, *self.counts, *self.layout, s.blocks, **self.tile, **flags)
        return partial

    def finish(self, partial, bias, totals, running, pose_sums, poses_out, pose_sum_out, t: int, scale: float) -> None:
        last = t == len(totals) - 1
        launch(self.forward.finish, self.row_grid)(
            partial, partial if bias is None else bias, totals[t],
            running, running if last else pose_sums[t], poses_out, pose_sum_out,
            *self.rows, scale, J=self.sizes.n_out, **self.row_tile,
            BIAS=bias is not None, FIRST_ITER=t == 0, LAST_ITER=last,
        )  # fmt: skip

    def finish_backward(self, partial, incoming, running, total, grad_total, narrow, keep: bool) -> None:
        given, add = incoming is not None, partial is not None
        inputs = partial if add else total, incoming if given else total, running, total, grad_total, narrow
        flags = {"GIVEN": given, "ADD": add, "KEEP": keep}
        launch(self.backward.finish_backward, self.row_grid)(*inputs, *self.rows, **self.row_tile, **flags)

    def bias_backward(self, grads: Tensor) -> Tensor:
        n_rows, n_columns = grads.shape[0] * grads.shape[1], grads.shape[2] * grads.shape[3]
        out = grads.new_empty(grads.shape[2:])
        blocks = next_power_of_2(ceil_div(n_rows, 128))
        launch(self.backward.bias_backward, (ceil_div(n_columns, 16),))(
            grads, out, n_rows, n_columns, CB=16, RB=128, BLOCKS=blocks, num_warps=4
        )
        return out

    def poses_backward(self, pose_sum, grad, bounds, delta, grad_poses, add: bool) -> None:
        grid = self.sizes.input_tiles, self.sizes.image_tiles
        inputs = self.poses, self.weight, pose_sum, grad, bounds, delta, grad_poses
        launch(self.backward.poses_backward, grid)(*inputs, *self.counts, *self.layout, **self.tile, ADD=add)

    def poses_backward_first(self, grad, before, grad_poses, scale: float) -> None:
        grid = self.sizes.input_tiles, self.sizes.image_tiles
        add = before is not None
        inputs = self.weight, grad, before if add else grad, grad_poses, scale
        launch(self.backward.poses_backward_first, grid)(*inputs, *self.counts, *self.layout, **self.tile, ADD=add)

    def weight_backward(
        self, pose_sums, grads, bounds, delta, kept, dtype: torch.dtype, scale: float, walked: int = 0
    ) -> Tensor:
        s = self.sizes
        per_pair = s.places == 1
        tiles = 1 if per_pair else ceil_div(s.places, s.IB)
        parts = 1 if per_pair else min(tiles, max(1, s.programs // (s.n_rows * s.n_out)))
        blocks = ceil_div(tiles, parts)
        parts = ceil_div(tiles, blocks)
        shape = s.n_rows, s.n_out, s.d_in, s.d_out
        out = self.weight.new_empty(shape if per_pair else (parts, *shape), dtype=dtype if per_pair else torch.float32)
        grid = s.input_tiles if per_pair else s.n_rows, s.n_out, parts
        inputs = self.poses, self.weight, pose_sums, grads, bounds, delta, bounds if kept is None else kept, out, scale
        flags = {"BATCHES": s.image_tiles, "N_ITERS": len(grads), "PER_PAIR": per_pair, "KEPT": kept is not None}
        flags |= {"WALKED": walked, "num_stages": self.tiles.weight_stages}
        launch(self.backward.weight_backward, grid)(
            *inputs, *self.counts, s.n_rows, *self.layout, blocks, **self.tile, **flags
        )
        out = out if per_pair else out.sum(0)
        return out.reshape(self.weight.shape).to(dtype) if self.weight.ndim > 2 else out.sum((0, 1)).to(dtype)


def first_share(n_out: int, leaky: bool) -> float:
    """Coupling of every pair in the first iteration."""
    return 1 / (n_out + 1 if leaky else n_out)


def forward(
    poses: Tensor, weight: Tensor, bias: Tensor | None, n_out: int, leaky: bool, low: bool, outputs: tuple[Tensor, ...]
) -> None:
    """Write the outputs of `triton_op.route`."""
    poses_out, pose_sum_out, totals, pose_sums, bounds, narrow = outputs
    if narrow.numel():
        weight = narrow.copy_(weight)
    problem = Problem(poses, weight, n_out, low)
    running = torch.empty_like(totals[0])
    bias = None if bias is None else bias.contiguous()
    for t in range(len(totals)):
        before, numbers = (pose_sums[t - 1], bounds[t - 1]) if t else (poses, poses)
        if t:
            problem.denominators(before, numbers, leaky)
        partial = problem.sums(1 if t else 0, before, poses, numbers, poses)
        scale = 1.0 if t else first_share(n_out, leaky)
        problem.finish(partial, bias, totals, running, pose_sums, poses_out, pose_sum_out, t, scale)


def backward(grad_poses_out, grad_pose_sum, poses, weight, totals, pose_sums, bounds, narrow, leaky, of_weight):
    """Compute the gradients of poses, weight (empty unless `of_weight`) and bias."""
    n_iters, n_batch, n_out, _ = totals.shape
    used, low = narrow if narrow.numel() else weight, pose_sums.dtype == torch.bfloat16
    problem = Problem(poses, used, n_out, low)
    grads, running = torch.empty_like(totals), torch.empty_like(totals[0])
    delta = bounds.new_empty(n_iters - 1, *bounds.shape[2:])
    low_grads = torch.empty_like(totals, dtype=pose_sums.dtype)
    several = n_iters > 1
    summed = torch.empty_like(poses, dtype=torch.float32) if several else None
    kept = _kept(pose_sums, n_out, n_batch, poses.shape[1]) if several and of_weight else None
    problem.finish_backward(None, grad_poses_out, running, totals[-1], grads[-1], low_grads[-1], keep=False)
    incoming = grad_pose_sum
    for t in range(n_iters - 1, 0, -1):
        last = t == n_iters - 1
        given = pose_sums[t - 1], low_grads[t], bounds[t - 1], delta[t - 1]
        Problem(poses, used, n_out, low, narrow=True).poses_backward(*given, summed, add=not last)
        partial = problem.sums(2, *given, None if kept is None else kept[t - 1])
        problem.finish_backward(partial, incoming, running, totals[t - 1], grads[t - 1], low_grads[t - 1], keep=True)
        incoming = running
    share = first_share(n_out, leaky)
    grad_poses = torch.empty_like(poses)
    problem.poses_backward_first(low_grads[0], summed, grad_poses, share)
    grad_weight = weight.new_empty(0)
    if of_weight:
        grad_weight = problem.weight_backward(pose_sums, low_grads, bounds, delta, kept, weight.dtype, share)
    return grad_poses, grad_weight, problem.bias_backward(grads)


def _kept(pose_sums: Tensor, n_out: int, n_batch: int, n_in: int) -> Tensor | None:
    """Make room for couplings and gradients of logits of all iterations, if they are few."""
    shape = len(pose_sums), 2, n_out, n_batch, n_in
    return pose_sums.new_empty(shape) if prod(shape) * pose_sums.itemsize <= KEPT_BYTES else None
