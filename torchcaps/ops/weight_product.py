"""Products with weights whose gradients autocast does not round."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx


def weight_product(inputs: Float[Tensor, "n r i"], weight: Float[Tensor, "n i o"]) -> Float[Tensor, "n r o"]:
    """`torch.bmm`; under autocast the gradient of a float32 weight is summed and written in float32.

    Autograd writes it in bfloat16 and converts that. For the ladder's 43 million weights, of which a step uses each once, that is
    one more pass over all gradients, and 16 of their 24 bits are gone.
    """
    device = inputs.device.type
    if not torch.is_autocast_enabled(device) or weight.dtype != torch.float32:
        return torch.bmm(inputs, weight)
    dtype = torch.get_autocast_dtype(device)
    return _Product.apply(inputs.to(dtype), weight.to(dtype), weight)


class _Product(Function):
    """`low` is the weight as it is multiplied: the first gradient goes by the weight itself, a second one finds its way through both."""

    @staticmethod
    def forward(ctx: FunctionCtx, inputs: Tensor, low: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, low)
        return torch.bmm(inputs, low)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, None, Tensor]:
        inputs, low = ctx.saved_tensors
        by_inputs = torch.bmm(gradient, low.mT) if ctx.needs_input_grad[0] else None
        return by_inputs, None, _in_float32(inputs.mT, gradient)


def _in_float32(left: Tensor, right: Tensor) -> Tensor:
    # a product that is written wider than its factors has no gradient of its own; a compiled one is never asked for it
    if left.is_cuda and (torch.compiler.is_compiling() or not torch.is_grad_enabled()):
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())
