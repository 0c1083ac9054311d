"""Batch normalisation of poses and scores, and of batches that are split among processes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float
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
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)

    def _check_input_dim(self, numbers: Tensor) -> None:
        """Accept any number of spatial axes."""


class PoseNorm(SharedBatchNorm):
    """Batch normalisation of poses, for each type and dimension over samples and places. [*b i d] -> [*b i d].

    Capsules follow each other by type. Absent ones (not `present`) hold zeros, count for nothing and stay zero. Where
    processes train together, statistics are those of all, so in training every process has to call it.
    """

    def __init__(self, n_types: int, d: int) -> None:
        super().__init__(n_types * d)
        self.n_types, self.d = n_types, d

    def forward(self, poses: Float[Tensor, "*b i d"], present: Bool[Tensor, "*b i"]) -> Float[Tensor, "*b i d"]:
        numbers, counted = self._by_type(poses, present)
        mean, variance = self._of_batch(numbers, counted) if self.training else (self.running_mean, self.running_var)
        normal = (numbers - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias
        normal = normal.masked_fill(~counted, 0).to(poses.dtype)
        return rearrange(normal, "... p (n d) -> ... (n p) d", n=self.n_types)

    def fit(self, poses: Float[Tensor, "*b i d"], present: Bool[Tensor, "*b i"]) -> bool:
        """Set the running statistics to those of these poses, which every process has alike; tell whether they vary."""
        numbers, counted = self._by_type(poses, present)
        _check_several(numbers.shape[:-1].numel())
        return fit_statistics(self, numbers, counted)

    def _by_type(self, poses: Tensor, present: Tensor) -> tuple[Float[Tensor, "*b p c"], Bool[Tensor, "*b p c"]]:
        """Return the numbers of each place, by type and dimension, and which of them count."""
        if present.shape[-1] % self.n_types:
            raise ValueError(
                f"batch normalisation of {self.n_types} types of capsules wants as many of each, "
                f"got {present.shape[-1]} capsules; give a multiple of {self.n_types}"
            )
        counted = repeat(present, "... (n p) -> ... p (n d)", n=self.n_types, d=self.d)
        numbers = rearrange(poses, "... (n p) d -> ... p (n d)", n=self.n_types)
        return _wide(numbers), counted

    def _of_batch(
        self, numbers: Float[Tensor, "*b p c"], counted: Bool[Tensor, "*b p c"]
    ) -> tuple[Float[Tensor, "c"], Float[Tensor, "c"]]:
        """Compute and remember mean and variance of what counts, over all processes."""
        _check_several(numbers.shape[:-1].numel() * n_processes())
        mean, variance, count = _moments(numbers, counted, summed)
        self._remember(*_known(self, mean.detach(), variance.detach(), count))
        return mean, variance


class KeepsPoseNorms(nn.Module):
    """A layer whose `PoseNorm` stays when `nn.SyncBatchNorm.convert_sync_batchnorm` replaces every batch norm.

    It shares its statistics anyway, and PyTorch's norm would take no second argument.
    """

    def add_module(self, name: str, module: nn.Module | None) -> None:
        converted = isinstance(self._modules.get(name), PoseNorm) and isinstance(module, nn.SyncBatchNorm)
        if not converted:
            super().add_module(name, module)


class CapsuleNorm(KeepsPoseNorms):
    """Batch normalisation of scores and poses, for each type over samples and places. Returns both.

    Capsules follow each other by type. A score of -inf masks a capsule, which counts for nothing and stays masked. A
    score of +inf stays too and only its pose counts. Poses are vectors or matrices of `d` dimensions.
    """

    def __init__(self, n_types: int, d: int) -> None:
        super().__init__()
        self.scores, self.poses = PoseNorm(n_types, 1), PoseNorm(n_types, d)

    def forward(
        self, scores: Float[Tensor, "*b i"], poses: Float[Tensor, "*b i d"] | Float[Tensor, "*b i r d"]
    ) -> tuple[Tensor, Tensor]:
        numbers, finite, flat, present = _counted(scores, poses)
        normal = self.scores(numbers, finite).squeeze(-1)
        return torch.where(finite, normal, scores), self.poses(flat, present).reshape(poses.shape)

    def fit(self, scores: Float[Tensor, "*b i"], poses: Float[Tensor, "*b i d"] | Float[Tensor, "*b i r d"]) -> bool:
        """Set the running statistics to those of these capsules; tell whether their poses vary."""
        numbers, finite, flat, present = _counted(scores, poses)
        self.scores.fit(numbers, finite)
        return self.poses.fit(flat, present)


def _counted(scores: Tensor, poses: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return scores and poses as vectors, each with the mask of what counts; the rest, which may be NaN, is 0."""
    finite, present = scores.isfinite(), scores != -torch.inf
    flat = poses.flatten(scores.ndim).masked_fill(~present.unsqueeze(-1), 0)
    return scores.masked_fill(~finite, 0).unsqueeze(-1), finite, flat, present


@torch.no_grad()
def fit_statistics(
    norm: nn.modules.batchnorm._BatchNorm, numbers: Float[Tensor, "*b c"], counted: Bool[Tensor, "*b c"]
) -> bool:
    """Set the running statistics of a batch norm to those of the numbers that count; every process has the same.

    Tell whether the numbers differ from constants by more than rounding.
    """
    for kept, start in ((norm.running_mean, 0.0), (norm.running_var, 1.0)):
        kept.masked_fill_(~kept.isfinite(), start)
    wide = _wide(numbers)
    found = _moments(wide, counted, lambda total: total)
    for kept, known in zip((norm.running_mean, norm.running_var), _known(norm, *found), strict=True):
        kept.copy_(known)
    mean, variance, count = found
    rounding = 8 * torch.finfo(wide.dtype).eps
    several = count > 1
    return bool(variance[several].sum() > rounding**2 * mean[several].square().sum())  # NaN: no


def check_varied(who: str, varied: bool) -> None:
    """Refuse to calibrate to constant inputs, of which batch normalisation would leave rounding errors."""
    if not varied:
        raise ValueError(
            f"{who}.calibrate: the inputs are all zero, not finite, or constant; give a batch of real inputs"
        )


def _wide(numbers: Tensor) -> Tensor:
    """Widen numbers whose sums want more than half precision."""
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))


def _check_several(n: int) -> None:
    if n == 1:
        raise ValueError(
            "batch normalisation of poses wants more than one pose of each type to train or calibrate, got one; "
            "give a larger batch, or call eval() on the model"
        )


def _moments(
    numbers: Float[Tensor, "*b c"], counted: Bool[Tensor, "*b c"], added: Callable[[Tensor], Tensor]
) -> tuple[Float[Tensor, "c"], Float[Tensor, "c"], Float[Tensor, "c"]]:
    """Compute mean, variance and number of what counts; `added` adds up the sums of all processes."""
    axes = tuple(range(numbers.ndim - 1))
    count = added(counted.sum(axes).to(numbers.dtype))
    mean = added(numbers.sum(axes)) / count.clamp(min=1)
    variance = added((numbers - mean).masked_fill(~counted, 0).square().sum(axes)) / count.clamp(min=1)
    return mean, variance, count


def _known(norm: nn.modules.batchnorm._BatchNorm, mean: Tensor, variance: Tensor, count: Tensor) -> tuple[Tensor, ...]:
    """Return mean and unbiased variance, those so far where none or one counted, which says nothing of a variance."""
    unbiased = variance * (count / (count - 1).clamp(min=1))
    return torch.where(count > 0, mean, norm.running_mean), torch.where(count > 1, unbiased, norm.running_var)


@contextmanager
def kept_if_refused(model: nn.Module) -> Iterator[None]:
    """Put back what a model holds if the block refuses its inputs by a ValueError, and in any case its modes."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [(layer, layer.training) for layer in model.modules()]
    try:
        yield
    except ValueError:
        model.load_state_dict(before)
        raise
    finally:
        for layer, mode in modes:
            layer.training = mode


def share_statistics(model: nn.Module) -> nn.Module:
    """Replace every batch norm of a model by `SharedBatchNorm`; parameters and buffers keep their names and tensors."""
    for name, child in list(model.named_children()):
        setattr(model, name, share_statistics(child))
    if not isinstance(model, nn.modules.batchnorm._BatchNorm) or isinstance(model, SharedBatchNorm):
        return model
    shared = SharedBatchNorm(model.num_features, model.eps, model.momentum, model.affine, model.track_running_stats)
    shared._parameters, shared._buffers, shared.training = model._parameters, model._buffers, model.training
    return shared
