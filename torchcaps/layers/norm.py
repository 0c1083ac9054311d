"""Batch normalisation over a batch that is split among processes."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.runtime.distributed import n_processes, summed


class SharedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation with mean and variance over all processes, on any device. Parts must be equally large."""

    def forward(self, numbers: Float[Tensor, "b c *place"]) -> Float[Tensor, "b c *place"]:
        if not self.training:
            return super().forward(numbers)
        with torch.autocast(numbers.device.type, enabled=False):
            wide = numbers.float() if numbers.dtype in (torch.bfloat16, torch.float16) else numbers
            return self._by_all(wide).to(numbers.dtype)

    def _by_all(self, numbers: Float[Tensor, "b c *place"]) -> Float[Tensor, "b c *place"]:
        axes = [axis for axis in range(numbers.dim()) if axis != 1]
        count = numbers.numel() // numbers.shape[1] * n_processes()
        mean = summed(numbers.sum(axes, keepdim=True)) / count
        away = numbers - mean
        variance = summed(away.square().sum(axes, keepdim=True)) / count
        if self.track_running_stats:
            self._remember(mean.detach().flatten(), variance.detach().flatten() * (count / max(count - 1, 1)))
        normal = away * torch.rsqrt(variance + self.eps)
        if not self.affine:
            return normal
        weight, bias = (part.view(mean.shape) for part in (self.weight, self.bias))
        return normal * weight + bias

    @torch.no_grad()
    def _remember(self, mean: Float[Tensor, "c"], variance: Float[Tensor, "c"]) -> None:
        self.num_batches_tracked += 1
        share = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)

    def _check_input_dim(self, numbers: Tensor) -> None:
        """Accept any number of spatial axes."""


def share_statistics(model: nn.Module) -> nn.Module:
    """Replace every batch norm of a model by `SharedBatchNorm`; parameters and buffers keep their names and tensors."""
    for name, child in list(model.named_children()):
        setattr(model, name, share_statistics(child))
    if not isinstance(model, nn.modules.batchnorm._BatchNorm) or isinstance(model, SharedBatchNorm):
        return model
    shared = SharedBatchNorm(model.num_features, model.eps, model.momentum, model.affine, model.track_running_stats)
    shared._parameters, shared._buffers, shared.training = model._parameters, model._buffers, model.training
    return shared
