"""Products with weights whose gradients autocast does not round."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

from torchcaps.ops.backend import autocast_dtype


def weight_product(
    inputs: Float[Tensor, "n r i"], weight: Tensor, *, transposed: bool = False
) -> Float[Tensor, "n r o"]:
    """`torch.bmm` with a weight [n i o], or [n o i] if `transposed`, whose gradient is float32 under autocast too.

    Autograd writes the gradient in bfloat16, converts it, and transposes it if the weight was. For the ladder's 43
    million weights, which a step uses once each, that is a needless walk over all gradients, and loses 16 of 24 bits.
    """
    dtype = autocast_dtype(inputs.device)
    if dtype is None or weight.dtype != torch.float32 or inputs.dtype == torch.float64:
        return torch.bmm(inputs, weight.mT if transposed else weight)
    return _Product.apply(inputs.to(dtype), weight.to(dtype), weight, transposed)


class _Product(Function):
    """Product with `low`, the weight as it is multiplied.

    The first gradient goes to the weight itself, a second one finds its way through both.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor, low: Tensor, weight: Tensor, transposed: bool) -> Tensor:
        return torch.bmm(inputs, low.mT if transposed else low)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, Tensor, Tensor, bool], output: Tensor) -> None:
        factor, low, _, ctx.transposed = inputs
        ctx.save_for_backward(factor, low)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        inputs, low = ctx.saved_tensors
        left, right = (gradient, inputs) if ctx.transposed else (inputs, gradient)
        by_inputs = torch.bmm(gradient, low if ctx.transposed else low.mT) if ctx.needs_input_grad[0] else None
        by_weight = _in_float32(left.mT, right) if ctx.needs_input_grad[2] else None
        return by_inputs, None, by_weight, None


def _in_float32(left: Tensor, right: Tensor) -> Tensor:
    # a product that is written wider than its factors has no gradient of its own; a compiled one is never asked for it
    if left.is_cuda and torch.version.hip is None and (torch.compiler.is_compiling() or not torch.is_grad_enabled()):
        return torch.bmm(left, right, out_dtype=torch.float32)
    with torch.autocast(left.device.type, enabled=False):
        return torch.bmm(left.float(), right.float())
