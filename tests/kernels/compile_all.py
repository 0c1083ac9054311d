"""Compile kernels for a GPU that need not be here, and print what each uses as JSON. Run without TRITON_INTERPRET.

    python compile_all.py few|all TARGET...

TARGET is a compute capability times ten. few: the kernel that fills shared memory, one of matrix EM
routing, and those of first layers. all: every form that a benchmark or a registered network takes, and the widest poses.
"""

import json
import sys
from collections.abc import Callable

import torch
from ahead import compiled_instead_of_run

from torchcaps.ops.conv_relu import triton_op as relu_op
from torchcaps.ops.convolution import triton_op as convolution_op
from torchcaps.ops.dynamic import triton_op as dynamic_op
from torchcaps.ops.em import triton_op as em_op
from torchcaps.ops.matrix_em import triton_op as matrix_op
from torchcaps.ops.silu_sums import triton_conv_op as first_op
from torchcaps.ops.silu_sums import triton_op as silu_op
from torchcaps.ops.tiles import ceil_div

FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16


def dynamic(
    dtype: torch.dtype,
    weight: tuple[int, ...],
    batch: int = 128,
    n_in: int = 1152,
    n_iters: int = 3,
    leaky: bool = False,
) -> None:
    weight = torch.empty(weight)
    *_, n_out, d_in, d_out = weight.shape
    poses, bias = torch.empty(batch, n_in, d_in, dtype=dtype), torch.empty(n_out, d_out)
    outputs = dynamic_op.route(poses, weight, bias, n_out, n_iters, leaky, dtype == BFLOAT16)
    dynamic_op.route_backward(outputs[0], None, poses, weight, *outputs[2:], leaky, True)


def em(weight: tuple[int, ...], rows: int, n_in: int, batch: int = 20) -> None:
    *shared, d_in, d_out = weight
    arguments = [
        torch.empty(batch, n_in), torch.empty(batch, n_in, rows, d_in),
        torch.empty(weight), torch.empty(*shared, rows, d_out), torch.empty(shared), torch.empty(shared),
    ]  # fmt: skip
    outputs = em_op.route(*arguments, 3)
    em_op.route_backward(*outputs[:3], *arguments, *outputs[3:])


def matrix_em(
    weight: tuple[int, ...], n_seen: int, n_parents: int, rows: int = 4, places: int = 1, coordinates: bool = False
) -> None:
    weight = torch.empty(weight)
    n_groups, lanes = ceil_div(n_parents, matrix_op.LANES), matrix_op.LANES
    seen, offset = torch.empty(n_groups, n_seen, rows * weight.shape[2], lanes), torch.empty(n_groups, n_seen, lanes)
    common = seen, weight, torch.empty(places, 2) if coordinates else None
    for first in (True, False):
        logits = None if first else torch.empty(n_groups, n_seen, weight.shape[1], lanes)
        found = matrix_op.fit(logits, offset, *common, places)
        matrix_op.fit_backward(*found[:3], logits, offset, *common, *found, places, True)
    logits = matrix_op.densities(found[2], *found[:2], *common, places)
    matrix_op.densities_backward(logits, *found[:2], *common, places, True)


def matrix_em_densities() -> None:
    """A kernel that makes votes and compiles in seconds."""
    model, seen = torch.empty(72, 32, 16, 32), torch.empty(72, 288, 16, 32)
    matrix_op.densities(torch.empty(72, 32, 32), model, model, seen, torch.empty(288, 32, 4, 4), None, 1)


def convolve(batch: int = 128, size: int = 20) -> None:
    images = torch.empty(batch, size, size, 256, dtype=BFLOAT16)
    weight = torch.empty(256, 9, 9, 256, dtype=BFLOAT16)
    maps = convolution_op.convolve_strided(images, weight, 2)
    convolution_op.convolve_strided_backward(maps, weight, images, 2)


def convolve_forward() -> None:
    """With so few pixels that several programs share a sum on every GPU."""
    convolution_op.convolve_strided(
        torch.empty(128, 12, 12, 256, dtype=BFLOAT16), torch.empty(256, 9, 9, 256, dtype=BFLOAT16), 2
    )


def conv_relu(c: int = 1, channels: int = 256, kernel: tuple[int, int] = (9, 9), batch: int = 128) -> None:
    rows, columns = kernel
    stripes = relu_op.stripes_of(torch.empty(batch, c, 19 + rows, 19 + columns), columns, 1, BFLOAT16)
    filters = relu_op.filters_of(torch.empty(channels, c, *kernel), torch.empty(channels), stripes.shape[-1])
    maps = relu_op.conv_relu(stripes, filters.to(BFLOAT16), 1)
    relu_op.conv_relu_backward(maps, maps, stripes, rows, c * columns + 1, 1)


def silu_sums(channels: int, dtype: torch.dtype = BFLOAT16) -> None:
    maps, bias = torch.empty(20, 44, 44, channels, dtype=dtype), torch.empty(channels)
    out, sums = silu_op.silu_sums(maps, bias, bias)
    silu_op.silu_sums_backward(out, sums, maps, bias, bias)


def first_layer(c: int, channels: int, batch: int = 20) -> None:
    images, weight = torch.empty(batch, c, 96, 96, dtype=BFLOAT16), torch.empty(channels, c, 3, 3, dtype=BFLOAT16)
    bias = torch.empty(channels)
    out, sums = first_op.conv_silu_sums(images, weight, bias, bias, 1)
    first_op.conv_silu_sums_backward(out, sums, images, weight, bias, bias, 1)


# poses of the registered networks: transforms, rows, number of inputs
EM_SHARED = [((64, 4, 4), 4, 5184), ((64, 64, 2), 1, 1900)]
EM_PAIRS = [
    ((64, 5, 4, 4), 4, 64), ((64, 5, 2, 2), 1, 64), ((64, 2, 4, 4), 1, 64), ((32, 10, 2, 4), 4, 32),
    ((576, 32, 2, 2), 4, 576),
]  # fmt: skip
DYNAMIC = [((16, 32, 16, 16), 64, 1296), ((576, 32, 8, 8), 128, 576), ((576, 10, 6, 8), 128, 576)]
# layers of a MatrixCapsNet: transforms, votes of a parent, parents
MATRIX = [((288, 32, 4, 4), 288, 2304), ((72, 16, 4, 4), 72, 2304)]
# outputs that kernels walk to, beside those above: the widest, and the widest and narrowest inputs
WALKS = [(1152, 5, 16, 32), (1152, 2, 8, 64), (32, 10, 5, 12), (1152, 10, 2, 16)]
WIDE = [(33, 7, 64, 64), (7, 33, 64), (33, 7, 1, 64)]


def everything() -> None:
    """Every form that a benchmark or a registered network takes, every rule, the widest poses of all kinds."""
    convolve()
    convolve(batch=1)
    convolve(size=64)  # so many pixels that no programs share a sum
    conv_relu()
    for c, kernel in ((1, (31, 15)), (3, (15, 9)), (7, (7, 8))):  # the largest products with stripes of 16, 32, 64
        conv_relu(c=c, kernel=kernel, batch=32)
    conv_relu(channels=64, kernel=(3, 3))
    for channels in (16, 64, 96, 256):
        silu_sums(channels)
    for c, channels in ((4, 64), (3, 64), (7, 32), (3, 16)):
        first_layer(c, channels)
    for weight, rows, n_in in EM_SHARED + EM_PAIRS:
        em(weight, rows, n_in)
    em((200, 2, 2), 2, 300)  # more outputs than a program has lanes
    em((300, 200, 2, 2), 2, 300)
    for weight, n_seen, n_parents in MATRIX:
        matrix_em(weight, n_seen, n_parents)
    matrix_em((32, 5, 4, 4), 512, 64, places=16, coordinates=True)
    for dtype in (FLOAT32, BFLOAT16):
        dynamic(dtype, (1152, 10, 8, 16))
        dynamic(dtype, (1152, 10, 8, 16), batch=1)
        dynamic(dtype, (1152, 10, 8, 16), n_iters=1)
        dynamic(dtype, (4608, 10, 8, 16), batch=32, n_in=4608)
        dynamic(dtype, (1152, 200, 8, 16), batch=32)
        dynamic(dtype, (32, 200, 8, 16), batch=32, n_in=10_816)
        for weight, batch, n_in in DYNAMIC:
            dynamic(dtype, weight, batch, n_in)
        for weight in WIDE:
            dynamic(dtype, weight, batch=70, n_in=33)
    dynamic(BFLOAT16, (1152, 10, 8, 16), n_iters=2, leaky=True)
    for weight in WALKS:
        dynamic(BFLOAT16, weight, batch=70)


def few() -> None:
    convolve_forward()
    conv_relu()
    matrix_em_densities()
    silu_sums(64)
    first_layer(4, 64)


FORMS: dict[str, Callable[[], None]] = {"few": few, "all": everything}

if __name__ == "__main__":
    found = {}
    for target in sys.argv[2:]:
        with compiled_instead_of_run(int(target)) as done:
            FORMS[sys.argv[1]]()
        found[target] = [kernel._asdict() for kernel in done]
    sys.stdout.write(json.dumps(found))
