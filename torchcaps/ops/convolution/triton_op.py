"""A strided convolution without padding on tensor cores: the op that torch sees, and its launches.

In bfloat16, channels last: images [b h w c], weight [k y x c]. A pixel of the output and a pixel of the input that it
sees belong to one tap of the kernel: output += images x channels of the input pixel, times the tap's matrix. So a tile
is one pixel of many images, every operand is a plain matrix in memory, and the gradient of the input visits exactly the
pixels that saw it, where an implicit matrix product pads or divides indices. The weight's gradient is cuDNN's, which is
fast.
"""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from torchcaps.ops.gpus import tiles_on
from torchcaps.ops.kernel_op import kernel_op, launch
from torchcaps.ops.tiles import ceil_div, next_power_of_2

BLOCK = 64  # channels of a step
SPLITS = 3  # programs that share the sum of an output pixel, at most
ADDING_UP = 1.1  # estimated factor on a convolution's time for writing and reading the parts
WARPS, STAGES = 8, 4
_ORDERS: dict[tuple, Tensor] = {}  # of pixels, by shape and device; kept for good, because CUDA graphs read them


def supports(images: Tensor, weight: Tensor) -> bool:
    """Whether `convolve_strided` takes these shapes."""
    fits = all(kernel <= size for kernel, size in zip(weight.shape[1:3], images.shape[1:3], strict=True))
    return fits and len(images) > 0 and weight.shape[0] % BLOCK == 0 and weight.shape[3] % BLOCK == 0


def widest(n: int, wanted: int) -> int:
    """Find the widest tile of channels up to `wanted` that divides n."""
    return next(size for size in (256, 128, 64) if size <= wanted and n % size == 0)


def splits_of(n_programs: int, steps: int, multiprocessors: int) -> int:
    """Choose how many programs share a sum, so that few multiprocessors wait at the end.

    Each holds one program with tiles this large. CapsNet on MNIST has 36 for 132 multiprocessors, so three share; on
    CIFAR-10 it has 128, so none do.
    """

    def turns(splits: int) -> float:
        return ceil_div(n_programs * splits, multiprocessors) / splits * (1.0 if splits == 1 else ADDING_UP)

    return min(range(1, min(SPLITS, steps) + 1), key=turns)


def _tile(n_images: int) -> int:
    return min(128, max(16, next_power_of_2(n_images)))


def _output(images, weight, stride):
    n, h, w, _ = images.shape
    k, rows, columns, _ = weight.shape
    return images.new_empty(n, (h - rows) // stride + 1, (w - columns) // stride + 1, k)


@kernel_op("torchcaps::convolve_strided", _output)
def convolve_strided(images: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Convolve: [b h w c], [k y x c] -> [b p q k]."""
    from torchcaps.ops.convolution import triton_kernels as kernels

    images, weight = images.contiguous(), weight.contiguous()
    out = _output(images, weight, stride)
    _launch_forward(kernels, images, weight, out, stride)
    return out


def _launch_forward(kernels, images: Tensor, weight: Tensor, out: Tensor, stride: int) -> None:
    n, h, w, c = images.shape
    k, rows, columns, _ = weight.shape
    p, q = out.shape[1:3]
    steps = rows * columns * (c // BLOCK)
    tiles = tiles_on(images.device)
    BM, BN = _tile(n), widest(k, tiles.channels)
    channel_tiles, image_tiles = k // BN, ceil_div(n, BM)
    splits = splits_of(p * q * channel_tiles * image_tiles, steps, tiles.multiprocessors)
    partial = out if splits == 1 else images.new_empty((splits, n, p, q, k), dtype=torch.float32)
    launch(kernels.forward, (p * q, channel_tiles, splits * image_tiles))(
        images, weight, partial, n, q, stride, h, w, p * q,
        C=c, K=k, COLUMNS=columns, BM=BM, BN=BN, BK=BLOCK,
        STEPS=ceil_div(steps, splits), ALL=steps, SPLITS=splits, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    if splits > 1:
        launch(kernels.add_up, (ceil_div(out.numel(), 1024),))(
            partial, out, out.numel(), SPLITS=splits, SIZE=1024, num_warps=4
        )


def _gradient(grad, weight, like, stride):
    return like.new_empty(like.shape)


@kernel_op("torchcaps::convolve_strided_backward", _gradient)
def convolve_strided_backward(grad: Tensor, weight: Tensor, like: Tensor, stride: int) -> Tensor:
    """Compute the gradient of the images."""
    from torchcaps.ops.convolution import triton_kernels as kernels

    grad, weight = grad.contiguous(), weight.contiguous()
    out = like.new_empty(like.shape)
    _launch_backward(kernels, grad, weight, out, stride)
    return out


def _launch_backward(kernels, grad: Tensor, weight: Tensor, out: Tensor, stride: int) -> None:
    n, h, w, c = out.shape
    k, rows, columns, _ = weight.shape
    p, q = grad.shape[1:3]
    BM, BN = _tile(n), widest(c, tiles_on(out.device).channels)
    order = order_of_pixels((h, w), (p, q), (rows, columns), stride, out.device)
    launch(kernels.backward, (h * w * (c // BN) * ceil_div(n, BM),))(
        grad, weight, out, order, n, h, w, p, q, C=c, K=k, ROWS=rows, COLUMNS=columns, STRIDE=stride,
        BM=BM, BN=BN, BK=BLOCK, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip


def order_of_pixels(
    size: tuple[int, int], places: tuple[int, int], kernel: tuple[int, int], stride: int, device: torch.device
) -> Tensor:
    """Order the pixels of the input, the longest sums first: [h w] flat. Made once for each shape and device.

    A CUDA graph cannot record a copy from the host. Where one is captured and nobody asked before, the pixels come as
    they lie: slower, and right.
    """
    shape = size, places, kernel, stride
    if (shape, device) not in _ORDERS:
        if _is_captured(device):
            return torch.arange(size[0] * size[1], dtype=torch.int32, device=device)
        _ORDERS[shape, device] = _kept(longest_first(*shape), device)
    return _ORDERS[shape, device]


def _kept(numbers: list[int], device: torch.device) -> Tensor:
    """Make a tensor that outlives this call.

    Where PyTorch warms up for a graph, as in mode "reduce-overhead", this thread's memory comes from the graph's pool,
    in which PyTorch wants nothing to stay. Another thread's does not.
    """
    with ThreadPoolExecutor(max_workers=1) as apart:
        return apart.submit(torch.tensor, numbers, dtype=torch.int32, device=device).result()


def _is_captured(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def longest_first(size: tuple[int, int], places: tuple[int, int], kernel: tuple[int, int], stride: int) -> list[int]:
    """Sort the pixels of the input by the number of output pixels that saw them, most first.

    The longest programs then start first: CapsNet's longest has 100 steps, an H200's multiprocessors have 88 each on
    average, and one that starts late is waited for.
    """
    rows, columns = (
        [sum(0 <= at - place * stride < long for place in range(n)) for at in range(n_in)]
        for n_in, n, long in zip(size, places, kernel, strict=True)
    )
    seen = [row * column for row in rows for column in columns]
    return sorted(range(len(seen)), key=lambda pixel: -seen[pixel])


@torch.library.custom_op("torchcaps::convolve_strided_weight_backward", mutates_args=())
def convolve_strided_weight_backward(grad: Tensor, images: Tensor, like: Tensor, stride: int) -> Tensor:
    """Compute the gradient of the weight, by cuDNN.

    An op of its own, because TorchInductor gives `convolution_backward` its inputs channels first and takes the
    gradient as such: it would copy images and gradient, and autograd the gradient once more to the weight's layout.
    """
    grad, images, like = (x.contiguous().permute(0, 3, 1, 2) for x in (grad, images, like))
    arguments = None, [stride] * 2, [0, 0], [1, 1], False, [0, 0], 1, [False, True, False]
    found = torch.ops.aten.convolution_backward(grad, images, like, *arguments)[1]
    return found.permute(0, 2, 3, 1).contiguous()


@convolve_strided_weight_backward.register_fake
def _(grad, images, like, stride):
    return like.new_empty(like.shape)


def _keep(ctx, inputs, output) -> None:
    images, weight, ctx.stride = inputs
    ctx.save_for_backward(images, weight)


def _backward(ctx, grad):
    images, weight = ctx.saved_tensors
    grad = grad.contiguous()  # here a compiled program writes it so at once, for both
    grad_images = convolve_strided_backward(grad, weight, images, ctx.stride) if ctx.needs_input_grad[0] else None
    grad_weight = None
    if ctx.needs_input_grad[1]:
        grad_weight = convolve_strided_weight_backward(grad, images, weight, ctx.stride)
    return grad_images, grad_weight, None


def _refuse_second(ctx, *grads):
    raise RuntimeError(
        "convolve: the Triton convolution has no second derivatives; leave it out with torchcaps.ops.without_kernels()"
    )


convolve_strided.register_autograd(_backward, setup_context=_keep)
for _op in (convolve_strided_backward, convolve_strided_weight_backward):
    _op.register_autograd(_refuse_second)
