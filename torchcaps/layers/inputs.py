"""Checks of the type of an input, shared by layers and models."""

from typing import Any

import torch
from torch import Tensor

from torchcaps.ops.backend import autocast_dtype


def check_tensor(model: str, what: str, given: Any) -> None:
    """Refuse an input that is no tensor, such as an array."""
    if not isinstance(given, Tensor):
        kind = type(given)
        do = "torch.from_numpy" if kind.__module__ == "numpy" else "torch.as_tensor"
        raise ValueError(
            f"{model} expects {what} as a torch.Tensor, got {kind.__module__}.{kind.__name__}; give {do}({what})"
        )


def check_floating(layer: str, what: str, given: Any) -> None:
    """Refuse an input that is no tensor of floating point, whose numbers a layer would cut or overflow."""
    check_tensor(layer, what, given)
    if not given.is_floating_point():
        raise ValueError(f"{layer} expects {what} in floating point, got {given.dtype}; give {what}.float()")


def check_dtype(model: str, what: str, given: Tensor, dtype: torch.dtype) -> None:
    """Refuse an input whose dtype is not that of the weights; inside autocast any floating dtype will do."""
    check_tensor(model, what, given)
    if given.dtype == dtype or (given.is_floating_point() and autocast_dtype(given.device)):
        return
    if given.is_floating_point():
        do = f"give {what}.to({dtype}), or convert the model by .to({given.dtype})"
    else:
        do = f"give {what}.float() / 255 for bytes"
    raise ValueError(f"{model} expects {what} of {dtype}, as its weights are, got {given.dtype}; {do}")


def check_pose_dtype(layer: str, poses: Tensor, dtype: torch.dtype) -> None:
    """Refuse poses whose dtype is not that of the weights, except float16, whose votes are computed in float32."""
    if poses.dtype != torch.float16:
        check_dtype(layer, "poses", poses, dtype)
