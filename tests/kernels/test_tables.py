"""Numbers of the kernels with the tiles of every kind of GPU, forced on the one that is here."""

import pytest
import torch
from problems import DTYPES, ON_GPU, arguments, em_problem, judge
from torch.nn.functional import conv2d

from torchcaps.ops import dynamic_routing
from torchcaps.ops.convolution.triton_op import convolve_strided
from torchcaps.ops.dynamic.triton_launch import Sizes
from torchcaps.ops.em.triton_launch import STATISTICS_OUTPUTS, STATISTICS_PROGRAMS, Problem
from torchcaps.ops.gpus import TABLES, forced_tiles, tiles_on
from torchcaps.ops.testing import compare_routing


@pytest.fixture(params=TABLES.values(), ids=TABLES)
def tiles(request, device):
    """Every table in turn."""
    if ON_GPU and tiles_on(torch.device(device)).shared < request.param.shared:
        pytest.skip("needs more shared memory than this GPU has")
    with forced_tiles(request.param):
        yield request.param


def test_dynamic_routing_is_right_with_every_table(tiles, rng, device):
    """Narrow poses in float32 and so many images that tiles differ: the interpreter has no other difference."""
    args = arguments(rng, device, b=40, i=2, j=2, d=4, e=4)
    rows = {name: Sizes.of(args["poses"], args["weight"], 2, False, table).BB for name, table in TABLES.items()}
    assert rows == {"227 KB": 64, "163 KB": 64, "99 KB": 32}
    compare_routing(dynamic_routing, args, backend="triton")


LARGE = [
    {"b": 128, "i": 1152, "j": 10, "d": 8, "e": 16},
    {"b": 32, "i": 4608, "j": 10, "d": 8, "e": 16},
    {"b": 70, "i": 33, "j": 7, "d": 64, "e": 64},
    {"b": 64, "i": 1296, "j": 32, "d": 16, "e": 16},
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", LARGE, ids=str)
def test_large_problems_are_right_with_every_table(tiles, gpu_only, rng, sizes, dtype):
    compare_routing(dynamic_routing, arguments(rng, "cuda", **sizes), backend="triton", dtype=dtype)


@pytest.mark.parametrize("weight", ["njde", "jde"])
def test_shared_transforms_are_right_with_every_table(tiles, gpu_only, rng, weight):
    args = arguments(rng, "cuda", weight, b=40, i=1296, n=16, j=32, d=16, e=16)
    compare_routing(dynamic_routing, args, backend="triton", dtype=torch.bfloat16)


@pytest.mark.parametrize("weight", ["jde", "ijde"])
def test_em_routing_is_right_with_every_table(tiles, gpu_only, weight):
    """Scores around 36 are rounded by 2e-6, and poses of the next iteration turn that into 2e-6 to 2e-5 by chance.

    Of 48 problems the worst was off by 4.4 budgets; so was the reference with its inputs in reverse, by 4.2.
    """
    judge(lambda seed: of_chunks(weight, "cuda", seed))


def of_chunks(weight, device, seed=0):
    return em_problem(weight, device, batch=(16,), i=1153, j=7, r=4, d=4, e=4, seed=seed)


def test_the_tables_differ_in_the_chunks_of_em_routing(device):
    problem = Problem.of(**of_chunks("jde", device))
    cuts = {}
    for name, table in TABLES.items():
        with forced_tiles(table):
            cuts[name] = problem.cut(STATISTICS_OUTPUTS, STATISTICS_PROGRAMS)[0]
    assert cuts == {"227 KB": 65, "163 KB": 53, "99 KB": 42}


def test_the_convolution_is_right_with_every_table(tiles, gpu_only, rng):
    images = torch.randn(128, 20, 20, 256, generator=rng)
    weight = torch.randn(256, 9, 9, 256, generator=rng) * (81 * 256) ** -0.5

    def op(images, weight, backend):
        if backend == "triton":
            return convolve_strided(images, weight, 2)
        return conv2d(images.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2), stride=2).permute(0, 2, 3, 1)

    args = {"images": images.cuda(), "weight": weight.cuda()}
    compare_routing(op, args, backend="triton", dtype=torch.bfloat16)
