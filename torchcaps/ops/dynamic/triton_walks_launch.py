"""Launch the walks of dynamic routing: where they are taken, how a problem is cut, and which kernel follows which."""

from math import prod

import torch
from torch import Tensor

from torchcaps.ops.dynamic import triton_launch
from torchcaps.ops.dynamic.triton_launch import Problem, first_share
from torchcaps.ops.kernel_op import launch
from torchcaps.ops.tiles import ceil_div, next_power_of_2

# of the sums of one image, outputs times padded dimensions. With 256 a thread spills 256 bytes forward (compute
# capability 9.0), and tiles exceed the smallest shared memory
MOST_NUMBERS = 160
MOST_DIMENSIONS = 16  # of an input pose: a tile has two inputs at least
COLUMNS, MOST_INPUTS = 32, 4  # of a tile; a thread has one input then, and all of its dimensions
# images of a tile, sixteen for each warp: of the walks, and of the kernel that finds the couplings again
ROWS, COUPLE_ROWS = 32, 64
PROGRAMS = 2  # that the chunks of inputs make for each multiprocessor, about
STAGES = 3  # tiles in flight and at work
WEIGHT_ROWS, WEIGHT_OUTPUTS, WEIGHT_WARPS = 64, 2, 4  # of a program for the weight's gradient
FEW_ITERATIONS = 3  # whose tiles are loaded ahead for the weight's gradient; more fill the registers
AT_ONCE = 32  # chunks of a sum that are loaded together
# couplings and gradients of logits of all iterations that walks keep backward. With more, the kernels of
# triton_backward.py make them again, which took 1.3 ms of a step on CIFAR-10 (bench/h200-cifar10-kernels.txt)
KEPT_BYTES = 48 << 20
FLOAT32_TOO = False  # for tests: the interpreter computes bfloat16 in a wrong way, so that it judges walks in float32


def walks(weight: Tensor, n_out: int, low: bool) -> bool:
    """Whether a problem takes walks, by what its backward pass knows, too.

    Not in float32, whose products of three take more registers. Not with one transform for all inputs or all outputs:
    a walk would load it again for each. Not with more or wider outputs than registers hold. All these have the kernels
    of triton_forward.py.
    """
    if not (low or FLOAT32_TOO) or weight.ndim != 4:
        return False
    d_in, d_out = weight.shape[-2:]
    return d_in <= MOST_DIMENSIONS and n_out * _padded(d_out) <= MOST_NUMBERS


def _padded(d_out: int) -> int:
    return max(16, next_power_of_2(d_out))


class Walks(Problem):
    """A problem whose sums over inputs are made by walks."""

    def __init__(self, poses: Tensor, weight: Tensor, n_out: int, leaky: bool, low: bool) -> None:
        super().__init__(poses, weight, n_out, low)
        s = self.sizes
        self.leaky, padded = leaky, max(4, s.DP)
        self.walk_inputs = min(MOST_INPUTS, COLUMNS // padded)
        self.walk_tiles = ceil_div(s.n_in, self.walk_inputs)
        self.walk_tile = self.tile | {"IB": self.walk_inputs, "DP": padded, "num_stages": STAGES}
        self.walk_grid, self.walk_counts, self.walk_rows = self._cut(ROWS)
        n_chunks = self.walk_grid[1]
        self.rows = s.n_batch * s.n_out, n_chunks
        self.row_tile |= {"CHUNKS": max(AT_ONCE, next_power_of_2(n_chunks)), "AT_ONCE": AT_ONCE, "num_warps": 4}

    def _cut(self, most_rows: int) -> tuple[tuple[int, int], tuple[int, ...], dict[str, int]]:
        """Tiles of images and chunks of inputs, what a kernel is told of them, and the rows of a tile."""
        s = self.sizes
        rows = min(most_rows, max(16, next_power_of_2(s.n_batch)))
        image_tiles = ceil_div(s.n_batch, rows)
        chunks = max(1, PROGRAMS * self.tiles.multiprocessors // image_tiles)
        blocks = ceil_div(self.walk_tiles, chunks)
        grid = image_tiles, ceil_div(self.walk_tiles, blocks)
        return grid, (*self.counts, *self.layout[:2], blocks), {"BB": rows, "num_warps": rows // 16}

    def _partial(self) -> Tensor:
        s = self.sizes
        return self.poses.new_empty(self.walk_grid[1], s.n_batch, s.n_out, s.d_out, dtype=torch.float32)

    def walk(self, pose_sum: Tensor, first: bool) -> Tensor:
        from torchcaps.ops.dynamic.triton_walk import walk

        partial = self._partial()
        inputs = self.poses, self.weight, pose_sum, partial, *self.walk_counts
        launch(walk, self.walk_grid)(*inputs, **self.walk_tile | self.walk_rows, LEAKY=self.leaky, FIRST=first)
        return partial

    def couple(self, pose_sum: Tensor, grad: Tensor, kept: Tensor, grad_poses: Tensor, add: bool) -> None:
        from torchcaps.ops.dynamic.triton_walk_backward import couple

        grid, counts, rows = self._cut(COUPLE_ROWS)
        inputs = self.poses, self.weight, pose_sum, grad, kept, grad_poses, *counts, int(add)
        launch(couple, grid)(*inputs, **self.walk_tile | rows, AGAIN="ieee", LEAKY=self.leaky)

    def walk_backward(self, kept: Tensor) -> Tensor:
        from torchcaps.ops.dynamic.triton_walk_backward import walk_backward

        partial = self._partial()
        inputs = self.poses, self.weight, kept, partial, *self.walk_counts
        launch(walk_backward, self.walk_grid)(*inputs, **self.walk_tile | self.walk_rows)
        return partial

    def walk_weight(self, pose_sums, grads, kept: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
        """Gradient of the weight, from what the backward walks have kept."""
        s = self.sizes
        if s.places > 1:  # the sum over the places of a type: a loop that the other kernel has
            return self.weight_backward(pose_sums, grads, kept, kept, kept, dtype, scale, walked=self.walk_inputs)
        from torchcaps.ops.dynamic.triton_walk_weight import walk_weight

        out = torch.empty_like(self.weight, dtype=dtype)
        outputs = min(max(1, WEIGHT_OUTPUTS * 16 // s.EP), s.n_out)
        rows = min(WEIGHT_ROWS, max(16, next_power_of_2(s.n_batch)))
        tile = self.walk_tile | {"BB": rows, "JB": outputs, "N_ITERS": len(grads), "num_warps": WEIGHT_WARPS}
        if len(grads) > FEW_ITERATIONS:
            tile["num_stages"] = 1
        grid = self.walk_tiles, ceil_div(s.n_out, outputs)
        launch(walk_weight, grid)(self.poses, pose_sums, grads, kept, out, scale, *self.counts, **tile)
        return out

    def kept_shape(self, n_iters: int) -> tuple[int, ...]:
        """Shape of what walks keep: couplings and gradients of logits, side by side."""
        return n_iters - 1, self.sizes.n_batch, self.walk_tiles, self.sizes.n_out, self.walk_inputs, 2

    def keeps(self, n_iters: int, dtype: torch.dtype) -> bool:
        """Whether that is little enough. CapsNet on CIFAR-10 keeps 40 MiB for 128 images."""
        return prod(self.kept_shape(n_iters)) * dtype.itemsize <= KEPT_BYTES


def forward(
    poses: Tensor, weight: Tensor, bias: Tensor | None, n_out: int, leaky: bool, low: bool, outputs: tuple[Tensor, ...]
) -> None:
    """Write the outputs of `triton_op.route` but the bounds: walks find their own."""
    poses_out, pose_sum_out, totals, pose_sums, _, narrow = outputs
    if narrow.numel():
        weight = narrow.copy_(weight)
    problem = Walks(poses, weight, n_out, leaky, low)
    running = torch.empty_like(totals[0])
    bias = None if bias is None else bias.contiguous()
    for t in range(len(totals)):
        partial = problem.walk(pose_sums[t - 1] if t else poses, first=t == 0)
        scale = 1.0 if t else first_share(n_out, leaky)
        problem.finish(partial, bias, totals, running, pose_sums, poses_out, pose_sum_out, t, scale)


def backward(grad_poses_out, grad_pose_sum, poses, weight, totals, pose_sums, narrow, leaky, of_weight):
    """Compute the gradients of poses, weight (empty unless `of_weight`) and bias."""
    n_iters, n_batch, n_out, _ = totals.shape
    used, low = narrow if narrow.numel() else weight, pose_sums.dtype == torch.bfloat16
    problem = Walks(poses, used, n_out, leaky, low)
    if not problem.keeps(n_iters, pose_sums.dtype):
        bounds = poses.new_empty(n_iters - 1, 2, n_batch, poses.shape[1], dtype=torch.float32)
        for pose_sum, found in zip(pose_sums, bounds, strict=True):
            problem.denominators(pose_sum, found, leaky)
        given = poses, weight, totals, pose_sums, bounds, narrow, leaky, of_weight
        return triton_launch.backward(grad_poses_out, grad_pose_sum, *given)
    kept = pose_sums.new_empty(problem.kept_shape(n_iters))
    grads, running = torch.empty_like(totals), torch.empty_like(totals[0])
    low_grads = torch.empty_like(totals, dtype=pose_sums.dtype)
    summed = torch.empty_like(poses, dtype=torch.float32) if n_iters > 1 else None
    problem.finish_backward(None, grad_poses_out, running, totals[-1], grads[-1], low_grads[-1], keep=False)
    incoming = grad_pose_sum
    for t in range(n_iters - 1, 0, -1):
        problem.couple(pose_sums[t - 1], low_grads[t], kept[t - 1], summed, add=t < n_iters - 1)
        partial = problem.walk_backward(kept[t - 1])
        problem.finish_backward(partial, incoming, running, totals[t - 1], grads[t - 1], low_grads[t - 1], keep=True)
        incoming = running
        del partial  # it is large, and what comes next makes room for the gradients
    share = first_share(n_out, leaky)
    grad_poses = torch.empty_like(poses)
    problem.poses_backward_first(low_grads[0], summed, grad_poses, share)
    grad_weight = weight.new_empty(0)
    if of_weight:
        grad_weight = problem.walk_weight(pose_sums, low_grads, kept, weight.dtype, share)
    return grad_poses, grad_weight, problem.bias_backward(grads)
