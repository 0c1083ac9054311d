"""Proves by torch's opcheck that every custom op is registered right: schema, fake tensors, autograd, dynamic shapes.

The table is held against all ops that the library registers with torch. Their kernels run on an NVIDIA GPU, or on CPU
tensors by Triton's interpreter (TRITON_INTERPRET=1), as `make test` runs this file.
"""

import os

import pytest
import torch
from torch import Tensor

import torchcaps  # noqa: F401  registers the ops
from torchcaps.ops.conv_relu.triton_op import conv_relu, conv_relu_backward
from torchcaps.ops.convolution.triton_op import (
    convolve_strided,
    convolve_strided_backward,
    convolve_strided_weight_backward,
)
from torchcaps.ops.dynamic import triton_op as dynamic
from torchcaps.ops.em import triton_op as em
from torchcaps.ops.matrix_em import triton_op as matrix_em
from torchcaps.ops.silu_sums.triton_conv_op import conv_silu_sums, conv_silu_sums_backward
from torchcaps.ops.silu_sums.triton_op import silu_sums, silu_sums_backward

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available() and not INTERPRETED
DEVICE = "cuda" if ON_GPU else "cpu"
# the interpreter makes a loop's bound a number in a way that numpy 2.4 refuses
BOUND = "ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning"
CHECKS = {"test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"}


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape).to(DEVICE)


def routing() -> tuple:
    return normal(2, 2, 1), normal(2, 2, 1, 1), normal(2, 1), 2, 2, False, False


def routing_backward() -> tuple:
    poses, weight, *rest = routing()
    out, pose_sum, *saved = dynamic.route(poses, weight, *rest)
    return torch.ones_like(out), torch.ones_like(pose_sum), poses, weight, *saved, False, True


def em_routing() -> tuple:
    return normal(1, 2), normal(1, 2, 1, 1), normal(2, 1, 1), normal(2, 1, 1), normal(2), normal(2), 2


def em_routing_pairs() -> tuple:
    return normal(1, 2), normal(1, 2, 1, 1), normal(2, 2, 1, 1), None, normal(2, 2), normal(2, 2), 2


def em_routing_backward() -> tuple:
    *tensors, n_iters = em_routing()
    *found, models, stats, softmax = em.route(*tensors, n_iters)
    return *(torch.ones_like(x) for x in found), *tensors, models, stats, softmax


def matrix_votes() -> tuple:
    return normal(1, 2, 1, matrix_em.LANES), normal(1, 1, 1, 1), None, 2


def matrix_fit() -> tuple:
    return normal(1, 2, 1, matrix_em.LANES), normal(1, 2, matrix_em.LANES), *matrix_votes()


def matrix_fit_backward() -> tuple:
    *tensors, places = matrix_fit()
    found = matrix_em.fit(*tensors, places)
    return *(torch.ones_like(x) for x in found[:3]), *tensors, *found, places, True


def matrix_densities() -> tuple:
    models = normal(1, 1, 1, matrix_em.LANES), normal(1, 1, 1, matrix_em.LANES)
    return normal(1, 1, matrix_em.LANES), *models, *matrix_votes()


def matrix_densities_backward() -> tuple:
    _, *arguments = matrix_densities()
    return normal(1, 2, 1, matrix_em.LANES), *arguments, True


def convolution() -> tuple:
    return normal(2, 4, 4, 64), normal(64, 2, 2, 64), 2


def convolution_backward() -> tuple:
    images, weight, stride = convolution()
    return torch.ones_like(convolve_strided(images, weight, stride)), weight, images, stride


def convolution_weight_backward() -> tuple:
    grad, weight, images, stride = convolution_backward()
    return grad, images, weight, stride


def relu() -> tuple:
    return normal(2, 4, 3, 16), normal(2, 16, 64), 1


def relu_backward() -> tuple:
    return normal(2, 3, 3, 64), normal(2, 3, 3, 64).relu(), normal(2, 4, 3, 16), 2, 13, 1


def silu() -> tuple:
    return normal(2, 3, 5), normal(5), normal(5)


def silu_backward() -> tuple:
    return normal(2, 3, 5), normal(2, 5), *silu()


def conv_silu() -> tuple:
    return normal(2, 2, 4, 5), normal(16, 2, 3, 3), normal(16), normal(16), 1


def conv_silu_backward() -> tuple:
    return normal(2, 2, 3, 16), normal(2, 16), *conv_silu()


# name of the op: the op, its arguments, whether they need gradients. Those of a backward op do not, since it refuses
# second derivatives
CASES = {
    "torchcaps::dynamic_routing": (dynamic.route, routing, True),
    "torchcaps::dynamic_routing_backward": (dynamic.route_backward, routing_backward, False),
    "torchcaps::em_routing": (em.route, em_routing, True),
    "torchcaps::em_routing of pairs": (em.route, em_routing_pairs, True),
    "torchcaps::em_routing_backward": (em.route_backward, em_routing_backward, False),
    "torchcaps::matrix_em_fit": (matrix_em.fit, matrix_fit, True),
    "torchcaps::matrix_em_fit_backward": (matrix_em.fit_backward, matrix_fit_backward, False),
    "torchcaps::matrix_em_densities": (matrix_em.densities, matrix_densities, True),
    "torchcaps::matrix_em_densities_backward": (matrix_em.densities_backward, matrix_densities_backward, False),
    "torchcaps::convolve_strided": (convolve_strided, convolution, True),
    "torchcaps::convolve_strided_backward": (convolve_strided_backward, convolution_backward, False),
    "torchcaps::convolve_strided_weight_backward": (
        convolve_strided_weight_backward,
        convolution_weight_backward,
        False,
    ),
    "torchcaps::conv_relu": (conv_relu, relu, False),
    "torchcaps::conv_relu_backward": (conv_relu_backward, relu_backward, False),
    "torchcaps::conv_silu_sums": (conv_silu_sums, conv_silu, True),
    "torchcaps::conv_silu_sums_backward": (conv_silu_sums_backward, conv_silu_backward, False),
    "torchcaps::silu_sums": (silu_sums, silu, True),
    "torchcaps::silu_sums_backward": (silu_sums_backward, silu_backward, False),
}
FAST = {
    "torchcaps::dynamic_routing",
    "torchcaps::convolve_strided",
    "torchcaps::silu_sums",
}  # a minute for all with the interpreter


def test_the_table_has_every_registered_op():
    registered = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("torchcaps::")}
    assert {name.split()[0] for name in CASES} == registered and len(registered) == 17


@pytest.mark.filterwarnings(BOUND)
@pytest.mark.skipif(not (INTERPRETED or ON_GPU), reason="needs an NVIDIA GPU or TRITON_INTERPRET=1")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in CASES]
)
def test_the_op_is_registered_as_torch_wants_it(name):
    op, arguments, needs_gradients = CASES[name]
    args = tuple(x.requires_grad_(needs_gradients) if isinstance(x, Tensor) else x for x in arguments())
    assert torch.library.opcheck(op, args) == dict.fromkeys(CHECKS, "SUCCESS")
